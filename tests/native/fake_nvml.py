"""Builds the fake NVML and writes the state that it reads. Any test of a process that asks NVML may use it."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path
from typing import Any

from tests import needs

SOURCE = Path(__file__).with_name("fake_nvml.c")
LIBRARY = "libnvidia-ml.so.1"
H100 = {"name": "NVIDIA H100 80GB HBM3", "total": 81559, "reserved": 561, "used": 4, "util": 0, "temp": 31}
FLAGS = ("-std=c17", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", f"-Wl,-soname,{LIBRARY}")


def build(cache: Path, *omit: str) -> Path:
    """Return a directory for ``LD_LIBRARY_PATH`` that holds the library without the functions ``omit``."""
    compiler = needs.program("gcc", package="gcc")
    place = cache / ("nvml-" + hashlib.sha256(repr(sorted(omit)).encode()).hexdigest()[:12])
    if not (place / LIBRARY).exists():
        place.mkdir(exist_ok=True)
        new = place / f"{LIBRARY}.{os.getpid()}"
        command: list[str | Path] = [compiler, *FLAGS, *(f"-DOMIT_{name}" for name in omit), "-o", new, SOURCE]
        subprocess.run(command, check=True, timeout=60)
        new.replace(place / LIBRARY)
    return place


class FakeNvml:
    """The state of the fake driver: devices with fields, and lines for the driver as a whole.

    ``devices[i]`` maps a field to its value; ``lines`` maps ``init``, ``hang``, ``fail FUNCTION``, ``nvlink I``.
    """

    def __init__(self, state: Path, devices: int = 0) -> None:
        self.state = state
        self.lines: dict[str, Any] = {}
        self.devices: dict[int, dict[str, Any]] = {
            index: {
                **H100,
                "uuid": f"GPU-00000000-0000-0000-0000-{index:012x}",
                "bus": f"00000000:{0x1B + index:02X}:00.0",
                "power": 70_000 + index,
            }
            for index in range(devices)
        }
        self.save()

    def save(self) -> None:
        """Make the state visible to the library, all at once."""
        lines = [f"{key} {value}" for key, value in self.lines.items()]
        lines += [
            f"{index}.{field} {value}" for index, device in self.devices.items() for field, value in device.items()
        ]
        new = self.state.with_suffix(".new")
        new.write_text("\n".join(lines) + "\n")
        new.replace(self.state)

    def set(self, index: int, **fields: Any) -> None:
        """Change fields of a device; ``None`` removes one (which then is not supported)."""
        self.devices[index].update(fields)
        self.devices[index] = {field: value for field, value in self.devices[index].items() if value is not None}
        self.save()

    def say(self, line: str, value: Any) -> None:
        """Set a line of the driver as a whole; ``None`` removes it."""
        self.lines[line] = value
        self.lines = {key: each for key, each in self.lines.items() if each is not None}
        self.save()

    def environment(self, libraries: Path) -> dict[str, str]:
        """Return what a process needs to find this driver."""
        return {"LD_LIBRARY_PATH": str(libraries), "FAKE_NVML_STATE": str(self.state)}
