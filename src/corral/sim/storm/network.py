"""The network between hosts: who reaches whom, and connections whose messages stay in order.

A connection that is cut stalls, as TCP does: what was sent arrives when the way is free again, unless one side has
given the connection up by then. A message is never lost or doubled within a connection; a new connection begins empty.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from corral.sim.storm.course import Act, Course

LATE_S = 5.0
"""The longest that a message is under way."""


class Network:
    """Hosts by name. A cut has a direction."""

    def __init__(self, course: Course) -> None:
        self.slowness = 1.0
        self._course = course
        self._cuts: dict[tuple[str, str], int] = {}
        self._stalled: dict[Act, None] = {}

    def reaches(self, source: str, target: str) -> bool:
        """Return whether what is sent from one host arrives at another."""
        return (source, target) not in self._cuts

    def cut(self, source: str, target: str) -> None:
        """Let nothing through any more. Cuts are counted: each is mended on its own."""
        self._cuts[source, target] = self._cuts.get((source, target), 0) + 1

    def mend(self, source: str, target: str) -> None:
        """Undo one cut."""
        left = self._cuts.get((source, target), 0) - 1
        if left > 0:
            self._cuts[source, target] = left
        elif self._cuts.pop((source, target), None) is not None:
            self._flush()

    def mend_all(self) -> None:
        """Undo all cuts."""
        self._cuts.clear()
        self.slowness = 1.0
        self._flush()

    def delay_s(self) -> float:
        """Return how long a message is under way: a millisecond, now and then much longer."""
        chance = self._course.chance
        late = chance.random()
        worst_s = 0.002 if late < 0.9 else 0.1 if late < 0.99 else 1.0
        return min(LATE_S, chance.uniform(0.0002, worst_s) * self.slowness)

    def when_mended(self, act: Act) -> None:
        """Call back once when any cut is mended."""
        self._stalled[act] = None

    def _flush(self) -> None:
        stalled, self._stalled = self._stalled, {}
        for act in stalled:
            self._course.after(0.0, act)


class Line:
    """One direction of a connection: messages arrive in the order in which they were sent."""

    def __init__(
        self, course: Course, network: Network, source: str, target: str, arrive: Callable[[bytes], None]
    ) -> None:
        self._course = course
        self._network = network
        self._ends = (source, target)
        self._arrive = arrive
        self._under_way: deque[tuple[float, bytes]] = deque()
        self._open = True
        self._waiting = False

    def send(self, message: bytes) -> None:
        """Put a message on its way."""
        if not self._open:
            return
        self._under_way.append((self._course.now + self._network.delay_s(), message))
        self._wait()

    def close(self) -> None:
        """Drop what is under way; nothing arrives any more."""
        self._open = False
        self._under_way.clear()

    def _wait(self) -> None:
        if not self._waiting and self._under_way:
            self._waiting = True
            self._course.after(self._under_way[0][0] - self._course.now, self._deliver)

    def _deliver(self) -> None:
        self._waiting = False
        if not self._under_way:
            return
        if not self._network.reaches(*self._ends):
            self._waiting = True
            self._network.when_mended(self._deliver)
            return
        if self._under_way[0][0] <= self._course.now:
            message = self._under_way.popleft()[1]
            self._course.absorb(message)
            self._arrive(message)
        self._wait()
