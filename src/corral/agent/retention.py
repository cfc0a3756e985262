"""Which ended tasks the journal knows of, and how long their directories are kept.

The acknowledged tasks of a node are lines of one file: a file for each would cost more than the rest of a short task.
The file is not flushed. A line that a crash of the machine takes is written again when the end is reported once more.
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from pathlib import Path

import msgspec

# The file is written anew when it holds this many lines more than there are directories.
STALE_LINES_MAX = 20_000


class Kept(msgspec.Struct, frozen=True):
    """An acknowledged task by its marker, and when its end was acknowledged (seconds since the epoch)."""

    marker: str
    acknowledged_at: float


class Retention:
    """Keeps at most ``count`` task directories, each for at most ``age_s`` seconds."""

    def __init__(self, path: Path, count: int, age_s: float) -> None:
        self._path = path
        self._count = count
        self._age_s = age_s
        self._kept: deque[Kept] = deque()
        self._file: int | None = None
        self._stale = 0

    def load(self) -> dict[str, Kept]:
        """Read what earlier runs of the agent wrote; damaged lines are skipped."""
        found: dict[str, Kept] = {}
        try:
            lines = self._path.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return found
        for line in lines:
            at, _, marker = line.partition(" ")
            try:
                task = Kept(marker, float(at))
            except ValueError:
                continue
            if marker:
                found[marker] = task
        return found

    def open(self, kept: list[Kept]) -> None:
        """Go on with those of the loaded tasks whose directories exist. Raises ``OSError``."""
        self._kept = deque(sorted(kept, key=lambda task: task.acknowledged_at))
        try:
            self._rewrite()
        except OSError:
            # A full disk: the lines of those that are gone may stay.
            self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def add(self, task: Kept) -> None:
        """Write one more down. Raises ``OSError``."""
        assert self._file is not None, "open() comes first"
        self._kept.append(task)
        os.write(self._file, _line(task))

    def due(self, now: float, limit: int) -> list[Kept]:
        """Take out up to ``limit`` tasks whose directories are to go, oldest first. Raises ``OSError``."""
        gone: list[Kept] = []
        while self._kept and len(gone) < limit:
            if len(self._kept) <= self._count and now - self._kept[0].acknowledged_at < self._age_s:
                break
            gone.append(self._kept.popleft())
        self._stale += len(gone)
        if self._stale > STALE_LINES_MAX:
            self._rewrite()
        return gone

    def _rewrite(self) -> None:
        fresh = self._path.with_name(f".{self._path.name}.new")
        fresh.write_bytes(b"".join(map(_line, self._kept)))
        file = os.open(fresh, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        fresh.rename(self._path)
        self.close()
        self._file, self._stale = file, 0


def remove(tasks_dir: Path, tasks: list[Kept]) -> list[str]:
    """Remove directories; return what could not be removed, in words."""
    problems: list[str] = []
    for task in tasks:
        try:
            shutil.rmtree(tasks_dir / task.marker)
        except FileNotFoundError:
            continue
        except OSError as error:
            problems.append(f"cannot remove {tasks_dir / task.marker}: {error.strerror}")
    return problems


def _line(task: Kept) -> bytes:
    return f"{task.acknowledged_at:.3f} {task.marker}\n".encode()
