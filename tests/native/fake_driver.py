"""The state of a fake device library, as its C source describes it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests import needs

HERE = Path(__file__).parent
FLAGS = ("-std=gnu17", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", f"-I{HERE}")


def compile_library(target: Path, source: Path, flags: Sequence[str] = ()) -> None:
    """Make a shared library, once; several test processes may do so at a time."""
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    new = target.with_name(f"{target.name}.{os.getpid()}")
    command: list[str | Path] = [needs.program("gcc", package="gcc"), *FLAGS, *flags]
    subprocess.run([*command, f"-Wl,-soname,{target.name}", "-o", new, source], check=True, timeout=60)
    new.replace(target)


class FakeDriver:
    """Devices with fields, and lines for the driver as a whole, in the file that the library reads.

    ``variable`` is the environment variable that names the file to the library.
    """

    def __init__(self, state: Path, variable: str, devices: dict[int, dict[str, Any]]) -> None:
        self.state = state
        self.variable = variable
        self.devices = devices
        self.lines: dict[str, Any] = {}
        self.save()

    def save(self) -> None:
        """Make the state visible to the library, all at once."""
        lines = [f"{key} {value}" for key, value in self.lines.items()]
        for index, device in self.devices.items():
            lines += [f"{index}.{field} {value}" for field, value in device.items()]
        new = self.state.with_name(f"{self.state.name}.new")
        new.write_text("\n".join(lines) + "\n")
        new.replace(self.state)

    def set(self, index: int, **fields: Any) -> None:
        """Change fields of a device; ``None`` removes one (which then is not supported)."""
        self.devices[index] = {k: v for k, v in (self.devices[index] | fields).items() if v is not None}
        self.save()

    def say(self, line: str, value: Any) -> None:
        """Set a line of the driver as a whole; ``None`` removes it."""
        self.lines = {k: v for k, v in (self.lines | {line: value}).items() if v is not None}
        self.save()

    def environment(self, libraries: Path) -> dict[str, str]:
        """Return what a process needs to find this driver."""
        return {"LD_LIBRARY_PATH": str(libraries), self.variable: str(self.state)}
