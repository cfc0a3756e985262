"""How much service a gang still needs when nobody says: a Gittins index over the gangs that ran before.

The index of a gang with attained service a is the best chance of ending per second that it can be given,

    G(a) = max over t > a of P(a < X <= t) / E[min(X, t) - a ; X > a]    (Gittins, J. R. Stat. Soc. B 41, 1979),

and always running the largest one gives the least mean completion time of all rules that do not know X, on one device
and with preemption for nothing. Its reciprocal is a remaining time: seconds of service per completion that can be had.
Unlike the mean it is not ruled by a few very long gangs, and a gang that has outlived its like falls behind.

X is distributed as the survival curve of Kaplan and Meier (J. Am. Stat. Assoc. 53, 1958) says: gangs that still run
or wait with attained service count as having lasted at least so long. Without them the history of a young pool knows
short gangs only, since the long ones have not ended yet. A class is shrunk to the pool and the pool to a scale-free
prior, because the index looks for the best moment and would otherwise believe every accident of a small sample.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from corral.model.experience import ServiceClass, ServiceHistory
from corral.model.ids import TenantId
from corral.model.market import Market
from corral.model.resources import Placement
from corral.policy.config import SchedulingConfig
from corral.policy.estimation import devices_of

PRIOR_ATOMS = 64
"""Points that stand for the prior, equally far apart in the logarithm: a fifth of a duration between two."""

POOL_ATOMS = 128
"""Points that stand for the pool where it only fills up a class: quantiles, so that a class costs what it holds."""

Weighted = tuple[float, float]
"""Seconds of service and the number of gangs (as a weight) that it stands for."""


class Expected(NamedTuple):
    """What is expected of a gang that says nothing.

    ``remaining_s`` is 1 / its Gittins index; ``inverse`` the mean of 1 / X in 1/s, X all the service it will have had:
    a second in the queue adds so much to the finish-time ratio that is expected of it.
    """

    remaining_s: float
    inverse: float


class Lifetimes:
    """A distribution of service times, made to be asked for its Gittins index: O(n log n) once, then a bisection.

    ``ended`` are gangs that ended after so much service, ``going`` gangs that have had so much and have not ended.
    """

    __slots__ = ("_failed", "_inverse", "_served", "_survive", "_tangent", "_times")

    def __init__(self, ended: Iterable[Weighted], going: Iterable[Weighted] = ()) -> None:
        self._times: list[float] = []
        """The different times of ends, ascending."""
        self._survive: list[float] = [1.0]
        """The part that lasts longer than the k-th time; the first is that at 0."""
        self._survival(sorted(ended), sorted(going))
        self._failed = [1.0 - alive for alive in self._survive]
        self._served = [0.0]
        """The mean service that is given up to the k-th time: the integral of the survival curve."""
        for index, time in enumerate(self._times):
            before = self._times[index - 1] if index else 0.0
            self._served.append(self._served[-1] + self._survive[index] * (time - before))
        self._inverse = [0.0] * len(self._survive)
        """The sum of 1 / time over the part that ends after the k-th time."""
        for index in range(len(self._times) - 1, -1, -1):
            ends = self._survive[index] - self._survive[index + 1]
            self._inverse[index] = self._inverse[index + 1] + ends / max(1.0, self._times[index])
        self._tangent = self._hull()

    def _survival(self, ended: list[Weighted], going: list[Weighted]) -> None:
        hazards: list[tuple[float, float]] = []
        at_risk, lost = 0.0, len(going)
        for time, ends in reversed(_merged(ended)):
            while lost and going[lost - 1][0] >= time:
                lost -= 1
                at_risk += going[lost][1]
            at_risk += ends
            hazards.append((time, ends / at_risk))
        for time, hazard in reversed(hazards):
            self._times.append(time)
            self._survive.append(self._survive[-1] * (1.0 - hazard))

    def _hull(self) -> list[int]:
        """Return for each point the next one on the upper concave hull of all points from it on."""
        count = len(self._served)
        following = [count] * count
        for index in range(count - 2, 0, -1):
            ahead = index + 1
            while following[ahead] < count and self._slope(index, following[ahead]) >= self._slope(index, ahead):
                ahead = following[ahead]
            following[index] = ahead
        return following

    def _slope(self, start: int, end: int) -> float:
        served = self._served[end] - self._served[start]
        return (self._failed[end] - self._failed[start]) / served if served > 0.0 else 0.0

    def inverse(self, attained_s: float) -> float | None:
        """Return the mean of 1 / X for those that last longer, in 1/s; ``None`` when none did.

        Who is never seen to end counts as never ending. A service below a second counts as one.
        """
        before = bisect_right(self._times, attained_s)
        if before == len(self._times) or self._survive[before] <= 0.0:
            return None
        return self._inverse[before] / self._survive[before]

    def remaining_s(self, attained_s: float) -> float | None:
        """Return 1 / the Gittins index, in seconds of service; ``None`` when no gang lasted longer."""
        before = bisect_right(self._times, attained_s)
        if before == len(self._times) or self._survive[before] <= 0.0:
            return None
        since = self._times[before - 1] if before else 0.0
        served = self._served[before] + self._survive[before] * (attained_s - since)
        failed = self._failed[before]
        best, end = math.inf, before + 1
        # The slopes from here to the hull rise to the tangent and fall after it: a few steps, mostly one.
        while end < len(self._served):
            cost = (self._served[end] - served) / max(1e-300, self._failed[end] - failed)
            if cost > best:
                break
            best, end = cost, self._tangent[end]
        return best


class RemainingService:
    """Expected remaining service in one round, for all contenders. Classes are built when they are first asked for.

    ``going`` are the attained seconds of service of all gangs that run or wait, by tenant and number of devices.
    """

    __slots__ = ("_atoms", "_config", "_going", "_history", "_known", "_lifetimes", "_pool")

    def __init__(
        self,
        history: ServiceHistory,
        config: SchedulingConfig,
        going: Mapping[ServiceClass, Sequence[float]] | None = None,
    ) -> None:
        self._history = history
        self._config = config
        self._going = dict(going or {})
        self._lifetimes: dict[ServiceClass, Lifetimes] = {}
        self._known: dict[tuple[ServiceClass, float], Expected] = {}
        self._atoms = _prior(config)
        pool = history.durations.get(ServiceClass(None, None), ())
        self._pool = _shrunk(pool, [a for some in self._going.values() for a in some], config.pool_gangs)

    def of(self, tenant: TenantId, devices: int, attained_s: float) -> Expected:
        """Return what is expected of a gang with ``attained_s`` of service; the remaining time is a second at least.

        A gang that has outlasted everything known is expected to go on for its age (a Pareto tail of exponent 1).
        """
        name = ServiceClass(tenant, devices)
        question = (name, attained_s)
        known = self._known.get(question)
        if known is None:
            lifetimes = self._lifetimes_of(name)
            found, inverse = lifetimes.remaining_s(attained_s), lifetimes.inverse(attained_s)
            remaining_s = max(1.0, attained_s if found is None else found)
            known = Expected(remaining_s, 1.0 / (attained_s + remaining_s) if inverse is None else inverse)
            self._known[question] = known
        return known

    def remaining_s(self, tenant: TenantId, devices: int, attained_s: float) -> float:
        """Return the seconds of service after ``attained_s`` per completion that can be had, one at least."""
        return self.of(tenant, devices, attained_s).remaining_s

    def _lifetimes_of(self, name: ServiceClass) -> Lifetimes:
        found = self._lifetimes.get(name)
        if found is None:
            ended, going = self._pool
            own = [(time, 1.0) for time in self._history.durations.get(name, ())]
            alive = [(time, 1.0) for time in self._going.get(name, ())]
            found = self._lifetimes[name] = Lifetimes([*self._atoms, *ended, *own], [*going, *alive])
        return found


def remaining_service(market: Market, config: SchedulingConfig) -> RemainingService:
    """Return what is expected of the contenders of a round: its history, and all that run or wait as still going."""
    now = market.snapshot.at
    going: dict[ServiceClass, list[float]] = {}
    for holding in market.snapshot.holdings:
        attained_s = holding.attained_s + max(0.0, now - holding.started_at)
        devices = devices_of(holding.won.shape) if holding.won is not None else _devices(holding.placements)
        going.setdefault(ServiceClass(holding.tenant, devices), []).append(attained_s)
    for candidate in market.pending:
        if candidate.attained_s > 0.0:
            name = ServiceClass(candidate.tenant, devices_of(candidate.shape))
            going.setdefault(name, []).append(candidate.attained_s)
    return RemainingService(market.history, config, going)


def _devices(placements: tuple[Placement, ...]) -> int:
    return sum(len(placement.devices) for placement in placements)


def _merged(sample: list[Weighted]) -> list[Weighted]:
    """Return the sorted sample with equal times as one."""
    merged: list[Weighted] = []
    for time, weight in sample:
        if merged and merged[-1][0] == time:
            merged[-1] = (time, merged[-1][1] + weight)
        else:
            merged.append((time, weight))
    return merged


def _prior(config: SchedulingConfig) -> list[Weighted]:
    """Return the scale-free prior: every duration from the shortest to the longest, evenly in its logarithm."""
    span = config.prior_longest_s / config.prior_shortest_s
    weight = config.prior_gangs / PRIOR_ATOMS
    return [
        (config.prior_shortest_s * math.pow(span, (atom + 0.5) / PRIOR_ATOMS), weight) for atom in range(PRIOR_ATOMS)
    ]


def _shrunk(ended: Sequence[float], going: Sequence[float], gangs: float) -> tuple[list[Weighted], list[Weighted]]:
    """Return the pool as no more than ``gangs`` ended gangs; those still going keep their proportion to them."""
    if not ended:
        return [], []
    part = min(1.0, gangs / len(ended))
    return _quantiles(sorted(ended), part), _quantiles(sorted(going), part)


def _quantiles(ordered: Sequence[float], part: float) -> list[Weighted]:
    """Return at most ``POOL_ATOMS`` of the values, evenly spread over them, each for as many gangs as it stands for."""
    count = min(POOL_ATOMS, len(ordered))
    return [(ordered[(2 * at + 1) * len(ordered) // (2 * count)], part * len(ordered) / count) for at in range(count)]
