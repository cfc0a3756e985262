"""The memory limit of a task: the kernel's where the task has a memory cgroup, else by looking each second."""

from __future__ import annotations

import time

from corral.agent.shim.tree import Tree

LOOK_EVERY_S = 1.0
# Looking may cost this part of one CPU at most: with very many processes it is done less often.
_COST_PART = 0.01
_HINT = "ask for more with --memory"


class MemoryGuard:
    """Watches one task.

    Attributes:
        peak_mib: The largest use that was seen, in MiB (shared pages count once per process).
        every_s: How long to wait until the next look.
    """

    def __init__(self, tree: Tree, limit_mib: int) -> None:
        self.peak_mib = 0.0
        self.every_s = LOOK_EVERY_S
        self._tree = tree
        self._limit_mib = limit_mib
        self._kernel = tree.cgroup is not None and tree.cgroup.has("memory")

    def look(self) -> str | None:
        """Return why the task must end, in words, ``None`` when it is within its limit."""
        if self._kernel:
            return self.killed_by_kernel()
        began = time.monotonic()
        used = self._tree.rss_mib()
        self.peak_mib = max(self.peak_mib, used)
        if used > self._limit_mib:
            # Workers that share pages with their parent count them several times: only then the exact figure is worth
            # its price.
            used = self._tree.pss_mib()
        self.every_s = max(LOOK_EVERY_S, (time.monotonic() - began) / _COST_PART)
        if used <= self._limit_mib:
            return None
        return f"out of memory: the task used {used:.0f} MiB, its limit is {self._limit_mib} MiB; {_HINT}"

    def killed_by_kernel(self) -> str | None:
        """Return in words that the kernel killed a process of the task for memory, ``None`` when it did not."""
        cgroup = self._tree.cgroup
        if not self._kernel or cgroup is None:
            return None
        used = cgroup.anonymous_mib()
        self.peak_mib = max(self.peak_mib, used)
        if cgroup.oom_kills() == 0:
            return None
        # What the dead used is no longer counted: only the kernel's own peak still knows of it.
        peak_mib = cgroup.peak_mib()
        peak = f" (peak use {peak_mib:.0f} MiB)" if peak_mib else ""
        return f"out of memory: the task reached its limit of {self._limit_mib} MiB{peak}; {_HINT}"
