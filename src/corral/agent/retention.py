"""Which directories of acknowledged tasks are kept: the newest, and none that is too old."""

from __future__ import annotations

import shutil
from collections import deque
from pathlib import Path

import msgspec

from corral.model.ids import TaskKey


class Kept(msgspec.Struct, frozen=True):
    """An acknowledged task and when its end was acknowledged (seconds since the epoch)."""

    task: TaskKey
    incarnation: int
    directory: Path
    acknowledged_at: float


class Retention:
    """Keeps at most ``count`` directories, each for at most ``age_s`` seconds."""

    def __init__(self, count: int, age_s: float, kept: list[Kept]) -> None:
        self._count = count
        self._age_s = age_s
        self._kept = deque(sorted(kept, key=lambda task: task.acknowledged_at))

    def add(self, task: Kept) -> None:
        """Count one more."""
        self._kept.append(task)

    def due(self, now: float, limit: int) -> list[Kept]:
        """Take out up to ``limit`` tasks whose directories are to go, oldest first."""
        gone: list[Kept] = []
        while self._kept and len(gone) < limit:
            if len(self._kept) <= self._count and now - self._kept[0].acknowledged_at < self._age_s:
                break
            gone.append(self._kept.popleft())
        return gone


def remove(tasks: list[Kept]) -> list[str]:
    """Remove directories; return what could not be removed, in words."""
    problems: list[str] = []
    for task in tasks:
        try:
            shutil.rmtree(task.directory)
        except FileNotFoundError:
            continue
        except OSError as error:
            problems.append(f"cannot remove {task.directory}: {error.strerror}")
    return problems
