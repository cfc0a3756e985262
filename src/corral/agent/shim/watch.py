"""What a shim looks at from time to time: the lease, the duration, the memory."""

from __future__ import annotations

from collections.abc import Callable

from corral.agent.shim import ending as endings
from corral.agent.shim.ending import Ending
from corral.agent.shim.lease import Act, LeaseWatch, read_deadline
from corral.agent.shim.memory import MemoryGuard
from corral.agent.shim.spec import TaskSpec
from corral.agent.shim.tree import Tree

_LEASE_EVERY_S = 1.0
# A program that does not await the checkpoint signal yet, as at its start, is looked at again.
_CHECKPOINT_AGAIN_S = 0.5


class Watch:
    """Looks at the clocks of one task and acts on what is due. Times are CLOCK_BOOTTIME in seconds.

    The duration runs from ``began``, setup included. It stands still while the task waits for another's setup and while
    it is frozen: neither is the task's doing.

    Attributes:
        guard: The memory limit, ``None`` without one.
        paused_s: How long the duration stood still.
    """

    def __init__(self, spec: TaskSpec, tree: Tree, ending: Ending, began: float, tell: Callable[[str], int]) -> None:
        """``tell`` is called with ``checkpoint``, ``frozen`` and ``thawed`` when that has to be said or done.

        It returns how many processes a checkpoint was asked of.
        """
        self.guard = None if spec.memory_mib is None else MemoryGuard(tree, spec.memory_mib)
        self.paused_s = 0.0
        self._spec = spec
        self._tree = tree
        self._ending = ending
        self._began = began
        self._tell = tell
        self._paused_since: float | None = None
        self._lease = None if spec.lease is None else LeaseWatch(spec.lease)
        # Without a lease that can be read an exclusive task must not run.
        self._deadline = float("-inf")
        self._lease_at = began
        self._memory_at = began
        self._checkpoint_at = began if spec.checkpoint_signal is not None else None

    @property
    def peak_mib(self) -> float:
        """Return the largest use of memory that the limit saw, 0 without one."""
        return 0.0 if self.guard is None else self.guard.peak_mib

    def out_of_memory(self) -> str | None:
        """Return in words that the kernel killed a process for the limit's sake, ``None`` when it did not."""
        return None if self.guard is None else self.guard.killed_by_kernel()

    def pause(self, now: float) -> None:
        """Let the duration stand still from now on."""
        if self._paused_since is None:
            self._paused_since = now

    def resume(self, now: float) -> None:
        """Let the duration run on."""
        if self._paused_since is not None:
            self.paused_s += now - self._paused_since
            self._paused_since = None

    def tick(self, now: float) -> None:
        """Do what is due."""
        if now >= self._lease_at:
            self._look_at_lease(now)
        if self._ending.kill_at is not None and not self._ending.saving(now):
            return
        if self.guard is not None and now >= self._memory_at:
            message = self.guard.look()
            self._memory_at = now + self.guard.every_s
            if message is not None:
                # A kernel that killed one process has made room for the others to end properly; else there is no time.
                killed = self.guard.killed_by_kernel() is not None
                self._ending.request(endings.MEMORY, message, now, self._spec.grace_s if killed else 0.0)
        limit_s = self._spec.max_duration_s
        if limit_s is not None and self._left_s(now, limit_s) <= 0:
            self._ending.request(
                endings.MAX_DURATION, f"the maximum duration of {limit_s:g} s is over", now, self._spec.grace_s
            )
        elif self._checkpoint_due_s(now) == 0:
            self._checkpoint_at = None if self._tell("checkpoint") else now + _CHECKPOINT_AGAIN_S

    def next_s(self, now: float) -> float | None:
        """Return in how many seconds :meth:`tick` is due again, ``None`` when it never is."""
        due = []
        if self._lease is not None:
            due.append(self._lease_at - now)
        if self._ending.kill_at is None or self._ending.saving(now):
            if self.guard is not None:
                due.append(self._memory_at - now)
            if self._spec.max_duration_s is not None and self._paused_since is None:
                due.append(self._left_s(now, self._spec.max_duration_s))
            checkpoint_s = self._checkpoint_due_s(now)
            due += [] if checkpoint_s is None else [checkpoint_s]
        return max(0.0, min(due)) if due else None

    def _checkpoint_due_s(self, now: float) -> float | None:
        """Return in how many seconds to ask for a checkpoint before the time is over, ``None`` for never."""
        limit_s = self._spec.max_duration_s
        if (
            limit_s is None
            or self._checkpoint_at is None
            or self._ending.kill_at is not None
            or self._paused_since is not None
        ):
            return None
        return max(0.0, self._left_s(now, limit_s) - self._spec.checkpoint_grace_s, self._checkpoint_at - now)

    def _left_s(self, now: float, limit_s: float) -> float:
        standing = 0.0 if self._paused_since is None else now - self._paused_since
        return self._began + limit_s + self.paused_s + standing - now

    def _look_at_lease(self, now: float) -> None:
        spec, lease = self._spec.lease, self._lease
        if spec is None or lease is None:
            self._lease_at = float("inf")
            return
        read = read_deadline(spec.path)
        if read is not None:
            self._deadline = read
        act = lease.step(now, self._deadline)
        # Not every wait is a full second: the lease ends at its deadline, not up to a second later.
        self._lease_at = now + min(_LEASE_EVERY_S, lease.next_s(now, self._deadline) or _LEASE_EVERY_S)
        if act is Act.FREEZE and self._ending.kill_at is not None:
            # It is ending already: it does not get the rest of its grace without a lease.
            self._ending.kill_by(now)
        elif act is Act.FREEZE or (self._tree.frozen and act is Act.NOTHING):
            self._freeze(now)
        elif act is Act.THAW and self._ending.kill_at is None:
            self._tree.thaw()
            self.resume(now)
            self._tell("thawed")
        elif act is Act.CHECKPOINT:
            self._tell("checkpoint")
        elif act is Act.EXPIRE:
            message = f"no contact for {spec.freeze_max_s:g} s after the lease had run out"
            self._ending.request(endings.LEASE_EXPIRED, message, now, 0.0)

    def _freeze(self, now: float) -> None:
        first = not self._tree.frozen
        self._tree.freeze()
        if first:
            self.pause(now)
            self._tell("frozen")
