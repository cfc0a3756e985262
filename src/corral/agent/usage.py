"""What running tasks use, read from ``/proc`` and from the files that they and their shims write."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from corral.agent import processes
from corral.agent.shim.log_reader import read_log
from corral.agent.taskdir import PROGRESS
from corral.model.ids import TaskKey
from corral.model.messages import Usage

T = TypeVar("T")

BLOCKED_S = 10.0
_PROGRESS_BYTES = 256
_MIB = 1 << 20
# Fields 14 to 17 of /proc/PID/stat (proc(5)), counted from the state, which is field 3.
_TIMES = slice(11, 15)
_CHILDREN_TIMES = slice(13, 15)


class Turns(Generic[T]):
    """Takes a few of many things at a time, all of them in turn."""

    def __init__(self, most: int = 64) -> None:
        self._most = most
        self._first = 0

    def next(self, things: Sequence[T]) -> Sequence[T]:
        """Return those whose turn it is."""
        if len(things) <= self._most:
            return things
        self._first = (self._first + self._most) % len(things)
        return [*things, *things][self._first : self._first + self._most]


class Halts:
    """Tells which tasks have a main process that lives and does not run."""

    def __init__(self) -> None:
        self._blocked_since: dict[tuple[TaskKey, int], float] = {}

    def look(self, name: tuple[TaskKey, int], main: processes.ProcessStat | None, now: float) -> str | None:
        """Return why a main process does not run, ``None`` when it does. ``now`` is monotonic.

        Any process waits in the kernel (D) for moments: what counts is that every look for a while finds it there.
        """
        if main is None or main.state != "D":
            self._blocked_since.pop(name, None)
            return "its main process is stopped by a signal" if main is not None and main.stopped else None
        blocked_s = now - self._blocked_since.setdefault(name, now)
        if blocked_s < BLOCKED_S:
            return None
        return f"its main process has waited in the kernel (state D) for {blocked_s:.0f} s"

    def forget_others(self, names: set[tuple[TaskKey, int]]) -> None:
        """Forget the tasks that are not among ``names``."""
        for gone in self._blocked_since.keys() - names:
            del self._blocked_since[gone]


def sample(task: TaskKey, incarnation: int, directory: Path, shim: int | None, halts: Halts) -> Usage:
    """Return what one task uses now. ``shim`` is the pid of its shim, ``None`` when it is not known yet."""
    rss_mib: int | None = None
    cpu_s: float | None = None
    halted: str | None = None
    if shim is not None:
        members = processes.descendants(shim)
        if members:
            pages = sum(stat.rss_pages for stat in members)
            rss_mib = pages * os.sysconf("SC_PAGE_SIZE") // _MIB
            ticks = _ticks(shim, _CHILDREN_TIMES) + sum(_ticks(stat.pid, _TIMES) for stat in members)
            cpu_s = ticks / os.sysconf("SC_CLK_TCK")
        # A shim has one child of its own at a time; orphans of the task come after it.
        halted = halts.look((task, incarnation), members[0] if members else None, time.monotonic())
    progress = read_progress(directory / PROGRESS)
    return Usage(
        task=task,
        incarnation=incarnation,
        rss_mib=rss_mib,
        cpu_s=cpu_s,
        progress=None if progress is None else progress.step,
        log_bytes=_log_bytes(directory),
        progress_total=None if progress is None else progress.total,
        checkpointed_at=None if progress is None else progress.saved,
        halted=halted,
    )


class Progress(NamedTuple):
    """How far a task says it is, in its own units: the step, the last one, and the one that its checkpoint holds."""

    step: float
    total: float | None = None
    saved: float | None = None


def read_progress(path: Path) -> Progress | None:
    """Return the last line of a progress file, ``STEP [TOTAL [SAVED]]``; ``None`` when there is none that says this.

    The file is replaced as a whole, or lines are added to it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        size = os.fstat(descriptor).st_size
        lines = os.pread(descriptor, _PROGRESS_BYTES, max(0, size - _PROGRESS_BYTES)).rstrip().splitlines()
    except OSError:
        return None
    finally:
        os.close(descriptor)
    words = lines[-1].split() if lines else []
    if not 1 <= len(words) <= len(Progress._fields):
        return None
    numbers = [_amount(word) for word in words]
    step, total, saved = (*numbers, None, None)[: len(Progress._fields)]
    if step is None:
        return None
    return Progress(step, total or None, None if saved is None else min(saved, step))


def _amount(word: bytes) -> float | None:
    try:
        value = float(word)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _log_bytes(directory: Path) -> int | None:
    try:
        return read_log(directory, 0, 0).end
    except OSError:
        return None


def _ticks(pid: int, fields: slice) -> int:
    raw = processes.read_small(f"/proc/{pid}/stat")
    if not raw:
        return 0
    return sum(map(int, raw[raw.rindex(b")") + 2 :].split()[fields]))


def memory_available_mib() -> int | None:
    """Return the memory that programs could get without swapping (``MemAvailable`` of proc(5)) in MiB."""
    raw = processes.read_small("/proc/meminfo") or b""
    for line in raw.splitlines():
        if line.startswith(b"MemAvailable:"):
            return int(line.split()[1]) // 1024
    return None
