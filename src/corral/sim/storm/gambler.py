"""A solver of global rounds that gambles: moves, new sizes, evictions for nobody, and now and then the impossible."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from corral.model.errors import SolverFault
from corral.model.ids import NodeId
from corral.model.market import Award, Eviction, Market, Preemption, PreemptionKind, RoundPlan
from corral.model.offer import Bid, Candidate, Holding
from corral.model.resources import Placement
from corral.policy.config import SchedulingConfig
from corral.policy.placement import Wish, place
from corral.policy.trial import Trial

CONFIG = SchedulingConfig()
FOREVER = float("inf")


def find(
    trial: Trial, bids: tuple[Bid, ...], without: frozenset[NodeId] = frozenset()
) -> tuple[Bid, tuple[Placement, ...]] | None:
    """Return the first bid that can be placed, and where."""
    for bid in bids:
        placements = place(trial, Wish.of(bid, CONFIG, without))
        if placements is not None:
            return bid, placements
    return None


def award_of(gang: Candidate | Holding, found: tuple[Bid, tuple[Placement, ...]]) -> Award:
    """Return the award of what was found for a gang."""
    return Award(gang.key, gang.tenant, found[0], found[1])


def gamble(market: Market, chance: Random) -> RoundPlan:
    """Evict and award at random."""
    trial = Trial(market.snapshot.nodes)
    evictions: list[Eviction] = []
    contenders: list[Candidate | Holding] = list(market.pending)
    for holding in market.snapshot.holdings:
        if holding.stopping:
            trial.release(holding.placements)
        elif holding.bids and chance.random() < 0.5:
            trial.release(holding.placements)
            other = chance.random() < 0.3
            goes_on = chance.random() < 0.6
            beneficiary = chance.choice(market.pending).key.job if market.pending and not goes_on else None
            kind = PreemptionKind.MOVE if goes_on else PreemptionKind.ROOM
            incarnation = holding.incarnation + (other and chance.random() < 0.3)
            evictions.append(Eviction(holding.key, incarnation, Preemption(kind, beneficiary, lost_s=chance.random())))
            if goes_on:
                contenders.append(holding)
    chance.shuffle(contenders)
    awards = []
    for gang in contenders:
        bids = tuple(chance.sample(gang.bids, len(gang.bids)))
        nodes = frozenset(p.node for p in gang.placements) if isinstance(gang, Holding) else frozenset[NodeId]()
        found = find(trial, bids, nodes if chance.random() < 0.7 else frozenset()) if chance.random() < 0.9 else None
        if found is None:
            continue
        if chance.random() < 0.9:
            trial.take(found[1], FOREVER)
        awards.append(award_of(gang, found))
    return RoundPlan(market.snapshot.version, tuple(awards), tuple(evictions))


class Gambler:
    """Implements ``ports.solver.RoundWorker``: takes its time and fails now and then.

    Once ``calm`` it lets everybody be: whoever gambles for ever keeps long jobs from their end.
    """

    def __init__(self, chance: Random, calm: Callable[[], bool]) -> None:
        self._chance = chance
        self._calm = calm

    async def solve(self, market: Market) -> RoundPlan:
        """Return a plan. Raises ``SolverFault`` now and then."""
        await asyncio.sleep(self._chance.uniform(0.01, 1.5))
        if self._chance.random() < 0.05:
            raise SolverFault("the solver failed, as it may")
        return RoundPlan(market.snapshot.version) if self._calm() else gamble(market, self._chance)

    async def close(self) -> None:
        """Do nothing."""
