"""Who lives in a machine made of namespaces, seen from outside of it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path


def inside(first: int) -> list[int]:
    """Return the ids, as this machine counts them, of the processes in the host whose first process is ``first``.

    The first process and what it runs itself are left out.
    """
    own, outside = _group_of(first), _space(os.getpid(), "pid")
    found = [pid for pid in _in_network_of(first) if _space(pid, "pid") != outside]
    return [pid for pid in found if _group_of(pid) not in {own, 0}]


def doors(first: int) -> list[int]:
    """Return the ids of the ``nsenter`` that run something in the host of ``first``: they stand outside of it.

    Such a process stops when what it runs is stopped, and must be told to go on. While it is stopped it collects no
    ended child, and a host with an uncollected process cannot end.
    """
    outside = _space(os.getpid(), "pid")
    return [pid for pid in _in_network_of(first) if _space(pid, "pid") == outside]


def state_of(pid: int) -> str:
    """Return the state letter of a process as in ``man proc``; X when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "X"


def children_of(pid: int) -> list[int]:
    """Return the ids of the children of a process with one thread."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    """Signal processes; some may have ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _in_network_of(first: int) -> list[int]:
    wanted = _space(first, "net")
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if wanted and _space(pid, "net") == wanted]


def _space(pid: int, kind: str) -> str:
    # The kernel forgets the namespaces of a process that has ended.
    try:
        return str(Path(f"/proc/{pid}/ns/{kind}").readlink())
    except OSError:
        return ""


def _group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0
