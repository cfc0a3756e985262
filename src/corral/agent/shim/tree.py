"""All processes of one task: the descendants of its shim, which is their subreaper.

That nothing is left is certain, not guessed: a process without children (``ECHILD``) that is a subreaper has no
descendants.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from typing import NamedTuple

from corral.agent import processes
from corral.agent.shim.task_cgroup import TaskCgroup

_STOP_ROUNDS_MAX = 50


class Ended(NamedTuple):
    """A process that was reaped: the wait status (see wait(2)) and its largest resident size in MiB."""

    pid: int
    status: int
    max_rss_mib: float


class Tree:
    """Looks at, signals, freezes and reaps the processes of the task.

    Attributes:
        cgroup: The task's groups, ``None`` without.
        empty: Whether the last :meth:`reap` found that no descendant exists.
        frozen: Whether :meth:`freeze` is in force.
    """

    def __init__(self, cgroup: TaskCgroup | None) -> None:
        self.cgroup = cgroup
        self.empty = True
        self.frozen = False
        self._shim = os.getpid()
        self._stopped: dict[int, int] = {}

    def members(self) -> list[processes.ProcessStat]:
        """Return the living processes of the task."""
        return processes.descendants(self._shim)

    def reap(self) -> list[Ended]:
        """Collect all children that have ended."""
        ended: list[Ended] = []
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                self.empty = True
                return ended
            if pid == 0:
                self.empty = False
                return ended
            ended.append(Ended(pid, status, usage.ru_maxrss / 1024))

    def terminate(self) -> None:
        """Send SIGTERM to every process, and SIGCONT to those that somebody stopped, so that they see it."""
        for stat in self.members():
            processes.send_signal(stat.pid, stat.start_ticks, signal.SIGTERM)
            if stat.stopped:
                processes.send_signal(stat.pid, stat.start_ticks, signal.SIGCONT)

    def kill(self) -> None:
        """Send SIGKILL to every process. To be repeated until :attr:`empty`: some fork while others are killed."""
        if self.cgroup is not None:
            self.cgroup.kill()
        for stat in self.members():
            processes.send_signal(stat.pid, stat.start_ticks, signal.SIGKILL)

    def freeze(self) -> None:
        """Stop every process where it is: the freezer's way where there is one, else by SIGSTOP.

        To be repeated while :attr:`frozen`: a process that was just forked may have escaped SIGSTOP.
        """
        self.frozen = True
        if self.cgroup is None or not self.cgroup.freeze():
            self._stop_all()

    def _stop_all(self) -> None:
        for _ in range(_STOP_ROUNDS_MAX):
            running = [stat for stat in self.members() if not stat.stopped]
            if not running:
                return
            for stat in running:
                if processes.send_signal(stat.pid, stat.start_ticks, signal.SIGSTOP):
                    self._stopped[stat.pid] = stat.start_ticks
            time.sleep(0.001)

    def thaw(self) -> None:
        """Let everything go on that :meth:`freeze` stopped, and nothing that was stopped before."""
        self.frozen = False
        if self.cgroup is not None:
            self.cgroup.thaw()
        for pid, ticks in self._stopped.items():
            processes.send_signal(pid, ticks, signal.SIGCONT)
        self._stopped.clear()

    def ask_checkpoint(self, main: int, number: int) -> int:
        """Send the checkpoint signal to the main child; return how many processes got it.

        A process that neither catches nor blocks the signal would die of it, as ``bash -c`` does around a training
        program. So when the main child does not await it, those of its descendants do that do.
        """
        members = self.members()
        awaiting = [stat for stat in members if _awaits(stat.pid, number)]
        chosen = [stat for stat in awaiting if stat.pid == main] or awaiting
        return sum(processes.send_signal(stat.pid, stat.start_ticks, number) for stat in chosen)

    def rss_mib(self) -> float:
        """Return the resident memory of all processes, shared pages counted once per process, in MiB."""
        return sum(stat.rss_pages for stat in self.members()) * resource.getpagesize() / (1 << 20)

    def pss_mib(self) -> float:
        """Return the memory of all processes, shared pages divided among their users, in MiB. Slow: walks all pages."""
        total_kib = 0
        for stat in self.members():
            raw = processes.read_small(f"/proc/{stat.pid}/smaps_rollup")
            lines = (line.split() for line in raw.splitlines()) if raw else ()
            shares = [int(fields[1]) for fields in lines if fields and fields[0] == b"Pss:"]
            total_kib += shares[0] if shares else stat.rss_pages * resource.getpagesize() // 1024
        return total_kib / 1024


def _awaits(pid: int, number: int) -> bool:
    """Return whether a process catches or blocks a signal (``SigCgt`` and ``SigBlk`` of proc(5))."""
    raw = processes.read_small(f"/proc/{pid}/status") or b""
    bit = 1 << (number - 1)
    for line in raw.splitlines():
        name, _, mask = line.partition(b":")
        if name in (b"SigCgt", b"SigBlk") and int(mask, 16) & bit:
            return True
    return False
