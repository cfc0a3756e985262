"""The course of events: true time, what is to happen when, and the log with its digest."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from hashlib import sha256
from random import Random

from corral.model.errors import SimulationStuck

Act = Callable[[], None]
SAME_INSTANT_MAX = 20_000


class Course:
    """Events by true time in seconds, those of one instant in the order in which they were planned.

    No part of the pool can read true time: every host has a clock of its own. ``chance`` is the one source of luck.
    """

    def __init__(self, seed: int, listen: Callable[[str], None] | None = None) -> None:
        """``listen`` gets every line of the log."""
        self.now = 0.0
        self.steps = 0
        self.chance = Random(seed)  # noqa: S311 - luck, not secrets
        self._heap: list[tuple[float, int, Act]] = []
        self._planned = 0
        self._here = 0
        self._digest = sha256()
        self._listen = listen

    def after(self, delay_s: float, act: Act) -> None:
        """Let something happen after a while."""
        self._planned += 1
        heapq.heappush(self._heap, (self.now + max(0.0, delay_s), self._planned, act))

    def step(self, until: float) -> bool:
        """Let the next thing happen; return ``False`` when there is none before ``until``.

        Raises ``SimulationStuck`` when time does not move on.
        """
        if not self._heap or self._heap[0][0] > until:
            self.now = max(self.now, until)
            return False
        at, _, act = heapq.heappop(self._heap)
        self._here = self._here + 1 if at == self.now else 0
        if self._here > SAME_INSTANT_MAX:
            raise SimulationStuck(f"{SAME_INSTANT_MAX} things happened at {at:.3f} s and there is no end of it")
        self.now = at
        self.steps += 1
        act()
        return True

    def note(self, who: str, words: str) -> None:
        """Write a line into the log."""
        line = f"{self.now:10.4f} {who:<8} {words}"
        self._digest.update(line.encode())
        self._digest.update(b"\n")
        if self._listen is not None:
            self._listen(line)

    def absorb(self, data: bytes) -> None:
        """Let something count for the digest that is not worth a line."""
        self._digest.update(data)

    @property
    def digest(self) -> str:
        """Return the digest of all that was noted or absorbed so far: equal for two runs that took the same course."""
        return self._digest.hexdigest()[:16]
