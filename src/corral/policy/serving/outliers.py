"""Which replicas fail while others do not: they get no requests for a while.

Balancing by load sends most requests to whoever fails fastest; so a replica whose answers are errors is taken out. At
most half of those that answer at all are: a fault that all share is no reason to have fewer. Those that are down
(their health checks fail) get nothing anyway, and do not count.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

import msgspec


class OutlierConfig(msgspec.Struct, frozen=True):
    """Constants: seconds, counts and shares.

    A replica is an outlier when in the last ``window_s`` it had ``errors_min`` errors, they are at least ``share`` of
    its answers, and ``above`` more than the share of errors of all others together. It comes back after ``eject_s``, a
    multiple of it when it was one again and again, at most ``eject_max_s``.
    """

    window_s: float = 2.0
    errors_min: int = 5
    share: float = 0.3
    above: float = 0.2
    eject_s: float = 5.0
    eject_max_s: float = 60.0
    ejected_max_share: float = 0.5


class Count(msgspec.Struct, frozen=True):
    """What a replica has answered since the beginning: all, and those that were errors. ``up``: its checks are good."""

    name: str
    answers: int
    errors: int
    up: bool = True


class _Watched(msgspec.Struct):
    seen: deque[tuple[float, int, int]]
    times: int = 0
    until: float | None = None
    good_since: float = 0.0


class Outliers:
    """Watches the replicas of one service."""

    def __init__(self, config: OutlierConfig | None = None) -> None:
        self._config = config if config is not None else OutlierConfig()
        self._watched: dict[str, _Watched] = {}
        self.ejections = 0

    @property
    def ejected(self) -> frozenset[str]:
        """Return who is out now."""
        return frozenset(name for name, one in self._watched.items() if one.until is not None)

    def look(self, now: float, counts: Iterable[Count]) -> frozenset[str]:
        """Take in how it stands (seconds on any clock that does not go back); return who is out from now on."""
        known = {count.name: count for count in counts}
        for name in [name for name in self._watched if name not in known]:
            del self._watched[name]
        for count in known.values():
            self._note(now, count)
        self._bring_back(now)
        alive = [name for name, count in known.items() if count.up]
        out = [name for name in alive if self._watched[name].until is not None]
        room = int(len(alive) * self._config.ejected_max_share) - len(out)
        recent = {name: self._recent(name) for name in alive if name not in out}
        for name in sorted(recent, key=lambda name: (-_share(recent[name]), name)):
            if room <= 0:
                break
            if self._is_outlier(name, recent):
                self._eject(now, name)
                room -= 1
        return self.ejected

    def _note(self, now: float, count: Count) -> None:
        watched = self._watched.get(count.name)
        if watched is None:
            watched = self._watched[count.name] = _Watched(deque(), good_since=now)
        if watched.seen and count.answers < watched.seen[-1][1]:
            watched.seen.clear()
        watched.seen.append((now, count.answers, count.errors))
        while len(watched.seen) > 1 and watched.seen[1][0] <= now - self._config.window_s:
            watched.seen.popleft()

    def _recent(self, name: str) -> tuple[int, int]:
        """Return the answers and errors within the window."""
        seen = self._watched[name].seen
        return seen[-1][1] - seen[0][1], seen[-1][2] - seen[0][2]

    def _is_outlier(self, name: str, recent: Mapping[str, tuple[int, int]]) -> bool:
        answers, errors = recent[name]
        share = _share((answers, errors))
        if errors < self._config.errors_min or share < self._config.share:
            return False
        others = [counted for other, counted in recent.items() if other != name]
        pooled = (sum(one[0] for one in others), sum(one[1] for one in others))
        return share - _share(pooled) >= self._config.above

    def _eject(self, now: float, name: str) -> None:
        watched = self._watched[name]
        # Good for as long as the longest absence lasts: what was before is forgotten.
        watched.times = 1 if now - watched.good_since > self._config.eject_max_s else watched.times + 1
        watched.until = now + min(self._config.eject_max_s, self._config.eject_s * watched.times)
        self.ejections += 1

    def _bring_back(self, now: float) -> None:
        for watched in self._watched.values():
            if watched.until is not None and now >= watched.until:
                watched.until = None
                watched.good_since = now
                last = watched.seen[-1]
                watched.seen.clear()
                watched.seen.append(last)


def _share(counted: tuple[int, int]) -> float:
    answers, errors = counted
    return errors / answers if answers > 0 else 0.0
