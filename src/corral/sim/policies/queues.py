"""Baselines that let gangs run to their end: first in first out, EASY backfilling, dominant resource fairness."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

from corral.model.ids import TenantId
from corral.model.market import Market, RoundPlan
from corral.model.offer import Candidate
from corral.model.resources import Amount
from corral.policy.config import SchedulingConfig
from corral.sim.policies.packing import Contender, Places, Roster, Scene, take
from corral.sim.runs import Truth


def in_order(pending: Iterable[Candidate]) -> list[Candidate]:
    """Return candidates in the order of their arrival."""
    return sorted(pending, key=attrgetter("order"))


class Fifo:
    """Strictly in the order of arrival: who does not fit blocks all behind it."""

    def __init__(self, config: SchedulingConfig) -> None:
        self._config = config

    def __call__(self, market: Market) -> RoundPlan:
        """Start the head of the queue as long as it fits."""
        scene = Scene(market)
        places, left = Places(scene, self._config), scene.free
        for candidate in in_order(market.pending) if any(left.values()) else ():
            contender = Contender.waits(candidate)
            if not take(contender, left) or not places.find(contender):
                break
        return places.plan()


class Easy:
    """EASY backfilling: Lifka, "The ANL/IBM SP Scheduling System", JSSPP 1995.

    The head of the queue has a reservation at the earliest time at which enough devices have come free; behind it
    starts who ends before that time, or takes only devices that the head does not need then. Durations are the true
    ones (``truth``) or those that the jobs declared; who declared none never ends.
    """

    def __init__(self, config: SchedulingConfig, truth: Truth | None) -> None:
        self._config = config
        self._truth = truth
        self._roster = Roster()

    def __call__(self, market: Market) -> RoundPlan:
        """Start what fits in order, then fill in behind the first that does not."""
        scene = Scene(market)
        places, left = Places(scene, self._config), scene.free
        if not any(left.values()):
            return places.plan()
        queue = sorted(self._roster.waiting(market), key=attrgetter("order"))
        at: int = 0
        started: list[Contender] = []
        while at < len(queue) and take(queue[at], left) and places.find(queue[at]):
            started.append(queue[at])
            at += 1
        open_milli = sum(left.values())
        if at < len(queue) and open_milli:
            shadow, extra = self._reservation(queue[at], [*scene.running(), *started], open_milli, scene.now)
            for contender in queue[at + 1 :]:
                in_time = self._ends_at(contender, scene.now) <= shadow
                if not in_time and contender.milli > extra:
                    continue
                if take(contender, left) and places.find(contender):
                    extra -= 0 if in_time else contender.milli
                    open_milli -= contender.milli
                    if not open_milli:
                        break
        return places.plan()

    def _reservation(self, head: Contender, running: list[Contender], free: int, now: float) -> tuple[float, int]:
        """Return when the head can start, and the milli-GPUs that it leaves free then."""
        for end, milli in sorted((self._ends_at(one, now), one.milli) for one in running):
            free += milli
            if free >= head.milli:
                return end, free - head.milli
        return float("inf"), 0

    def _ends_at(self, contender: Contender, now: float) -> float:
        if self._truth is not None:
            return self._truth.ends_at(contender.key, now)
        holding = contender.holding
        if holding is not None:
            return holding.ends_at if holding.ends_at is not None else float("inf")
        remaining = [bid.remaining_s for bid in contender.bids if bid.remaining_s is not None]
        return now + min(remaining) if remaining else float("inf")


class Drf:
    """Dominant resource fairness: Ghodsi et al., NSDI 2011. Nothing is preempted.

    The tenant with the smallest weighted dominant share takes next, with its jobs in the order of arrival; one whose
    next job does not fit is passed over in this round.
    """

    def __init__(self, config: SchedulingConfig) -> None:
        self._config = config

    def __call__(self, market: Market) -> RoundPlan:
        """Fill progressively."""
        scene = Scene(market)
        places, left = Places(scene, self._config), scene.free
        capacity = market.snapshot.capacity
        queues: dict[TenantId, list[Contender]] = {}
        for candidate in reversed(in_order(market.pending)):
            queues.setdefault(candidate.tenant, []).append(Contender.waits(candidate))
        held = {name: standing.held for name, standing in market.standings.items()}
        weights = {name: standing.tenant.weight for name, standing in market.standings.items()}

        def share(name: TenantId) -> tuple[float, TenantId]:
            return held.get(name, Amount()).dominant_share(capacity) / weights.get(name, 1.0), name

        while queues:
            name = min(queues, key=share)
            contender = queues[name].pop()
            if not take(contender, left) or not places.find(contender):
                del queues[name]
                continue
            shape = contender.bids[0].shape
            held[name] = held.get(name, Amount()) + Amount.of(shape.demand).times(shape.ranks)
            if not queues[name]:
                del queues[name]
        return places.plan()
