"""A program that notes when it began: what a job runs to tell how long it took to start.

Compiled from stamp.c where there is a C compiler, else a line of shell, whose own start is then part of the measure.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).with_name("stamp.c")
SHELL = '#!/bin/sh\ndate +%s%N > "$1"\n'
POLL_S = 0.005


class Stamp(NamedTuple):
    """The program; ``kind`` says what it is, ``clock`` which clock it reads."""

    program: Path
    kind: str
    clock: int

    def now_ns(self) -> int:
        """Return the time now on the clock that the program reads."""
        return time.clock_gettime_ns(self.clock)

    def argv(self, file: Path) -> list[str]:
        """Return what to run so that ``file`` gets the time of the beginning."""
        return [str(self.program), str(file)]

    def wait(self, file: Path, limit_s: float) -> int:
        """Return the time in ``file`` in nanoseconds once it is there. Raises ``TimeoutError``."""
        deadline = time.monotonic() + limit_s
        while True:
            text = file.read_text() if file.exists() else ""
            if text.endswith("\n"):
                return int(text)
            if time.monotonic() > deadline:
                raise TimeoutError(f"a job did not begin within {limit_s:g} s")
            time.sleep(POLL_S)


def make_stamp(directory: Path) -> Stamp:
    """Make the program in ``directory``, where every user may run it."""
    program = directory / "stamp"
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is not None:
        # Static, where the C library allows it: no loader runs before the first instruction.
        for kind, flags in (("static C program", ["-static"]), ("C program", list[str]())):
            if _compiled(compiler, flags, program):
                return Stamp(program, kind, time.CLOCK_BOOTTIME)
    program.write_text(SHELL)
    program.chmod(0o755)
    return Stamp(program, "sh and date", time.CLOCK_REALTIME)


def _compiled(compiler: str, flags: Sequence[str], program: Path) -> bool:
    command = [compiler, "-O2", *flags, "-o", str(program), str(SOURCE)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
