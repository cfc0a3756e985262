"""How many replicas a service's load asks for: more at once, fewer after a while with less, none when nobody asks."""

from __future__ import annotations

import math
from collections import deque

import msgspec

from corral.model.service import Scaling

TOLERANCE = 0.1
"""The part of a replica's target by which load may be over: a service that is right at a target would swing."""


class Load(msgspec.Struct, frozen=True):
    """What all front ends see of a service together.

    ``outstanding`` are requests under way, ``waiting`` those for which there is no replica yet, ``requests_s`` comes in
    a second, and the last request came ``idle_s`` ago.
    """

    outstanding: float = 0.0
    waiting: int = 0
    requests_s: float = 0.0
    idle_s: float = 0.0


class Wanted(msgspec.Struct, frozen=True):
    """Another number of replicas, and why."""

    replicas: int
    reason: str


def need_of(scaling: Scaling, load: Load) -> int:
    """Return how many replicas a load needs, whatever the limits."""
    need = 0.0
    if scaling.target_outstanding is not None:
        need = (load.outstanding + load.waiting) / scaling.target_outstanding
    if scaling.target_requests_s is not None:
        need = max(need, load.requests_s / scaling.target_requests_s)
    return max(0, math.ceil(need - TOLERANCE))


class Scaler:
    """Remembers what one service needed lately."""

    def __init__(self) -> None:
        self._needed: deque[tuple[float, int]] = deque()
        self._since: float | None = None

    def begin_again(self, now: float) -> None:
        """Forget: somebody said another number, and fewer are taken only after a whole while with less load."""
        self._needed.clear()
        self._since = now

    def look(self, now: float, scaling: Scaling, wanted: int, load: Load) -> Wanted | None:
        """Return the number of replicas that there should be from now on, ``None`` when it stays."""
        if not scaling.automatic:
            return None
        if self._since is None:
            self._since = now
        targets = scaling.target_outstanding is not None or scaling.target_requests_s is not None
        need = need_of(scaling, load) if targets else wanted
        low = scaling.replicas_min
        if low == 0:
            rests = load.idle_s >= scaling.idle_s and not load.waiting and load.outstanding < 1.0
            if rests and wanted <= 1:
                return Wanted(0, f"nobody asked for it for {load.idle_s:.0f} s") if wanted else None
            asked = load.waiting > 0 or load.outstanding >= 1.0
            low = 1 if wanted or asked else 0
        need = min(max(need, low), scaling.replicas_max)
        self._remember(now, scaling, need)
        if need > wanted:
            return Wanted(need, _words(scaling, load))
        most = max(count for _, count in self._needed)
        if most < wanted and now - self._since >= scaling.down_after_s:
            return Wanted(most, f"less load for {scaling.down_after_s:.0f} s")
        return None

    def _remember(self, now: float, scaling: Scaling, need: int) -> None:
        self._needed.append((now, need))
        while self._needed[0][0] < now - scaling.down_after_s:
            self._needed.popleft()


def _words(scaling: Scaling, load: Load) -> str:
    if scaling.target_outstanding is None and scaling.target_requests_s is not None:
        return f"{load.requests_s:.1f} requests a second"
    if load.waiting and not load.outstanding:
        return f"{load.waiting} requests wait for a replica" if load.waiting > 1 else "a request waits for a replica"
    return f"{load.outstanding + load.waiting:.0f} requests under way or waiting"
