"""From when to when the leases of a node run, as its agent's core knows it. Times are seconds of CLOCK_BOOTTIME."""

from __future__ import annotations

import math


class Leases:
    """The newest contact that the controller confirmed, and what it granted beyond the tasks' own leases."""

    def __init__(self) -> None:
        # Before the first confirmed contact there is no lease at all: what is launched waits frozen.
        self._contact_s = -math.inf
        self._granted_s = -math.inf

    @property
    def contact_s(self) -> float | None:
        """Return the sending of the newest message that was acknowledged, ``None`` before the first."""
        return self._contact_s if math.isfinite(self._contact_s) else None

    def confirm(self, sent_s: float, granted_s: float) -> bool:
        """Take an acknowledgement of what was sent at ``sent_s`` in; return whether it is news.

        ``granted_s`` is how long every lease lasts at least from there; 0 takes an earlier grant back.
        """
        if sent_s <= self._contact_s:
            return False
        self._contact_s = sent_s
        self._granted_s = sent_s + granted_s if granted_s > 0 else -math.inf
        return True

    def deadline_s(self, lease_s: float | None) -> float | None:
        """Return the end of a lease, ``None`` for a task without one."""
        return None if lease_s is None else max(self._contact_s + lease_s, self._granted_s)

    def over(self, lease_s: float | None, boottime_s: float) -> bool:
        """Return whether a lease has run out: its task is frozen."""
        deadline_s = self.deadline_s(lease_s)
        return deadline_s is not None and boottime_s >= deadline_s
