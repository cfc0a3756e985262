"""The agent's own hold on leases: a task whose shim does not stop it at the end of its lease is killed with its shim.

The shim freezes its task; this is for a shim that is stopped or hangs. A frozen task is left alone: it may be thawed.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

from corral.agent import processes, taskdir
from corral.agent.shim.handle import TaskHandle

# The shim looks once a second, and freezing takes it up to 0.2 s: more on a machine that is overloaded.
SHIM_LATE_S = 2.0
_STOP_PENDING = 1 << (signal.SIGSTOP - 1)


def boottime_s() -> float:
    """Return CLOCK_BOOTTIME, on which leases run."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def is_overdue(deadline_s: float | None, now_s: float) -> bool:
    """Return whether a task must surely be frozen by now. ``deadline_s`` is ``None`` for one without a lease."""
    return deadline_s is not None and now_s > deadline_s + SHIM_LATE_S


def runs_free(directory: Path) -> bool:
    """Return whether any process of a task runs, or would as soon as the kernel lets it."""
    shim = taskdir.read_shim(directory)
    if shim is None or shim.boot_id != processes.boot_id():
        return False
    if not processes.is_alive(shim.pid, shim.start_ticks):
        # What a dead shim left is swept anyway.
        return False
    cgroup = TaskHandle(directory).cgroup()
    if cgroup is not None and cgroup.is_frozen():
        return False
    return any(not stat.stopped and not _will_stop(stat.pid) for stat in processes.descendants(shim.pid))


def _will_stop(pid: int) -> bool:
    """Return whether a process that waits in the kernel has its SIGSTOP before it (``ShdPnd`` of proc(5))."""
    for line in (processes.read_small(f"/proc/{pid}/status") or b"").splitlines():
        name, _, mask = line.partition(b":")
        if name == b"ShdPnd":
            return bool(int(mask, 16) & _STOP_PENDING)
    # It is gone.
    return True
