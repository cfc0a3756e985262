"""Processes on devices: which are foreign, and whose they are."""

from __future__ import annotations

import pwd
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from corral.model.resources import ForeignProcess

MIB = 1 << 20


def mib(value: int | None) -> int | None:
    """Return bytes as MiB, rounded up: something is never nothing; unknown stays unknown."""
    return None if value is None else -(-value // MIB)


def owner_of(pid: int) -> str | None:
    """Return the user of a process, or ``None`` when it is gone or of another pid namespace."""
    try:
        uid = Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return None
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def foreign_processes(used_mib: Mapping[int, int | None], own_pids: Collection[int]) -> tuple[ForeignProcess, ...]:
    """Return the processes (pid to memory) that are not corral's, by pid."""
    return tuple(ForeignProcess(pid, used_mib[pid], owner_of(pid)) for pid in sorted(used_mib) if pid not in own_pids)


def merged(processes: Iterable[tuple[int, int | None]]) -> dict[int, int | None]:
    """Return one entry per process that may be listed twice (compute and graphics): the largest known memory."""
    found: dict[int, int | None] = {}
    for pid, used in processes:
        known = found.get(pid)
        found[pid] = used if known is None else max(known, used or 0)
    return found
