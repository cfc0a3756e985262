"""Processes known by a mark that only they carry: the path of a directory made for one run."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

END_LIMIT_S = 10.0


def carriers(mark: Path) -> list[int]:
    """Return the ids of the processes whose command line or environment names ``mark``, this process left out.

    ``mark`` must be a path that nobody else can have, such as a fresh temporary directory.
    """
    wanted = os.fsencode(mark)
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if wanted in (entry / "cmdline").read_bytes() or wanted in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found


def kill_carriers(mark: Path) -> None:
    """Kill the processes that :func:`carriers` finds until none is left. Raises ``TimeoutError`` when some stay."""
    deadline = time.monotonic() + END_LIMIT_S
    while left := carriers(mark):
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {left} of {mark} do not end")
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
