"""How far a round is in the lines of a tenant: what to try next, without looking at candidates that cannot fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet

from corral.model.ids import GangKey
from corral.model.offer import Candidate
from corral.policy.pending import Kind, Line

FOREVER = float("inf")
CLOSED = float("-inf")


class Cursor:
    """A place in one line. ``priority`` is what the line's queue adds to its candidates' own."""

    __slots__ = ("closed", "hesitant", "line", "priority", "start")

    def __init__(self, line: Line, priority: int) -> None:
        self.line = line
        self.priority = priority
        self.start = 0
        self.closed = False
        self.hesitant: Callable[[Candidate], bool] | None = None

    def head(self, longest_s: float, done: AbstractSet[GangKey], scan: int) -> Candidate | None:
        """Return the best candidate that declared to end within ``longest_s``; ``None`` closes the line.

        ``done`` are passed over, as are those for which ``hesitant`` holds. With a finite ``longest_s`` only ``scan``
        candidates are looked at in order, then the shortest of the rest is taken.
        """
        entries = self.line.entries
        while self.start < len(entries) and entries[self.start][4].key in done:
            self.start += 1
        if longest_s != FOREVER and self.line.shortest_s > longest_s:
            self.closed = True
            return None
        for entry in entries[self.start : self.start + scan]:
            if self._suits(entry[4], longest_s, done):
                return entry[4]
        rest = (entry[4] for entry in entries[self.start + scan :] if self._suits(entry[4], longest_s, done))
        shortest = min(rest, key=_duration, default=None)
        self.closed = shortest is None
        return shortest

    def _suits(self, candidate: Candidate, longest_s: float, done: AbstractSet[GangKey]) -> bool:
        if _duration(candidate) > longest_s or candidate.key in done:
            return False
        return self.hesitant is None or not self.hesitant(candidate)


def _duration(candidate: Candidate) -> float:
    return FOREVER if candidate.max_duration_s is None else candidate.max_duration_s


class TenantCursor:
    """The open lines of one tenant. ``until`` gives the time by which a kind's candidates have to end."""

    __slots__ = ("_chosen", "_cursors", "_done", "_now", "_scan", "_until")

    def __init__(
        self,
        cursors: Iterable[Cursor],
        until: Callable[[Kind], float],
        done: AbstractSet[GangKey],
        now: float,
        scan: int,
    ) -> None:
        self._cursors = list(cursors)
        self._until = until
        self._done = done
        self._now = now
        self._scan = scan
        self._chosen: tuple[Candidate, Cursor] | None = None

    def best(self) -> tuple[Candidate, Cursor] | None:
        """Return the tenant's best candidate that is worth a try, ``None`` when all its lines are closed."""
        if self._chosen is not None and self._until(self._chosen[1].line.kind) == FOREVER:
            return self._chosen
        self._chosen = None
        first: tuple[int, float, int, GangKey] | None = None
        for cursor in self._cursors:
            head = self._head(cursor)
            if head is None:
                continue
            key = (-cursor.priority - head.priority, head.urgency, head.order, head.key)
            if first is None or key < first:
                first, self._chosen = key, (head, cursor)
        self._cursors = [cursor for cursor in self._cursors if not cursor.closed]
        return self._chosen

    def forget(self) -> None:
        """Look anew at the next call of ``best``: the last answer was tried."""
        self._chosen = None

    def _head(self, cursor: Cursor) -> Candidate | None:
        if cursor.closed:
            return None
        until = self._until(cursor.line.kind)
        if until == CLOSED:
            cursor.closed = True
            return None
        return cursor.head(until - self._now, self._done, self._scan)
