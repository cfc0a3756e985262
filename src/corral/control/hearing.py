"""The time in which the controller could have heard its nodes: silence is counted on it, and on nothing else.

It stands still while the controller itself was held up (its disk, its database, a stopped process: then what the nodes
said waits to be read) and, for an hour, while no node answers at all (then the fault is the controller's or its
network's, as while the engine starts; nothing could be placed anywhere either). So neither a restart of the daemon or
of the engine nor a cut of the controller from everybody makes all nodes lost.
"""

from __future__ import annotations

HELD_UP_S = 2.0
"""Between two ticks, which come every half second, more than so long means that the controller was held up."""

NOBODY_MAX_S = 3600.0
"""Silence of everybody counts when it lasts longer: by then the nodes have killed what they froze, too."""


class Hearing:
    """Counts the time. Times are the controller's clock in seconds.

    Attributes:
        since: When the controller took over: the first tick after its start, ``None`` before.
    """

    def __init__(self, *, may_be_deaf: bool) -> None:
        """Without ``may_be_deaf`` (the engine cannot lose contact with the nodes) all time counts."""
        self.since: float | None = None
        self._may_be_deaf = may_be_deaf
        self._ticked_at = 0.0
        self._deaf_s = 0.0
        self._answered_at = 0.0

    def tick(self, now: float, *, answered: bool) -> None:
        """Let time pass. ``answered`` tells whether any node could be counted on since the last tick."""
        if self.since is None:
            self.since = self._answered_at = now
        elif self._may_be_deaf:
            nobody = not answered and now - self._answered_at <= NOBODY_MAX_S
            if nobody or now - self._ticked_at > HELD_UP_S:
                self._deaf_s += now - self._ticked_at
        if answered:
            self._answered_at = now
        self._ticked_at = now

    def at(self, now: float) -> float:
        """Return the hearing time, in seconds; only differences mean something."""
        return now - self._deaf_s
