"""What SIGSTOP does to a part of a machine: what should happen to it waits, in order, until it may go on."""

from __future__ import annotations

from collections import deque

from corral.sim.storm.course import Act, Course


class Gate:
    """Runs acts at once while it is open. Closed several times it is opened as often; shut for good it drops them."""

    def __init__(self, course: Course, closed: int = 0) -> None:
        self._course = course
        self._closed = closed
        self._dead = False
        self._waiting: deque[Act] = deque()

    @property
    def open(self) -> bool:
        """Return whether things happen now."""
        return not self._closed and not self._dead

    def let(self, act: Act) -> None:
        """Let something happen, now or as soon as the gate is open."""
        if self.open and not self._waiting:
            act()
        elif not self._dead:
            self._waiting.append(act)

    def stop(self) -> None:
        """Close."""
        self._closed += 1

    def go_on(self) -> None:
        """Undo one ``stop``."""
        self._closed -= 1
        if self.open:
            self._course.after(0.0, self._catch_up)

    def shut(self) -> None:
        """Drop everything from now on: the part is dead."""
        self._dead = True
        self._waiting.clear()

    def _catch_up(self) -> None:
        while self._waiting and self.open:
            self._waiting.popleft()()
