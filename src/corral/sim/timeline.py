"""What is to happen when, in virtual time."""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

T = TypeVar("T")


class Timeline(Generic[T]):
    """A queue of happenings by time (s). What falls on one instant comes out in the order in which it was planned."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, T]] = []
        self._planned = 0

    def __len__(self) -> int:
        return len(self._heap)

    def plan(self, at: float, what: T) -> None:
        """Let something happen at a time."""
        self._planned += 1
        heapq.heappush(self._heap, (at, self._planned, what))

    @property
    def next_at(self) -> float | None:
        """Return when the next thing happens, ``None`` when nothing is planned."""
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> list[T]:
        """Take out all that is planned until ``now``, oldest first."""
        found = []
        while self._heap and self._heap[0][0] <= now:
            found.append(heapq.heappop(self._heap)[2])
        return found
