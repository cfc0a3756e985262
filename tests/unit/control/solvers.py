"""Simple solvers of global rounds: one that gives guarantees and priorities their due, and one that gambles."""

from __future__ import annotations

from random import Random

from corral.model.ids import GangKey, NodeId
from corral.model.market import Award, Eviction, Market, Preemption, PreemptionKind, RoundPlan
from corral.model.offer import Bid, Candidate, Holding
from corral.model.resources import Placement
from corral.policy.arbitration import gang_amount
from corral.policy.config import SchedulingConfig
from corral.policy.fairness import below_guarantee
from corral.policy.placement import Wish, place
from corral.policy.trial import Trial

CONFIG = SchedulingConfig()
FOREVER = float("inf")


def find(
    trial: Trial, bids: tuple[Bid, ...], without: frozenset[NodeId] = frozenset()
) -> tuple[Bid, tuple[Placement, ...]] | None:
    for bid in bids:
        placements = place(trial, Wish.of(bid, CONFIG, without))
        if placements is not None:
            return bid, placements
    return None


def award_of(gang: Candidate | Holding, found: tuple[Bid, tuple[Placement, ...]]) -> Award:
    return Award(gang.key, gang.tenant, found[0], found[1])


def just(market: Market) -> RoundPlan:
    """Give way for guarantees (reclaim) and for priorities within a tenant, the youngest holder first."""
    trial = Trial(market.snapshot.nodes)
    for holding in market.snapshot.holdings:
        if holding.stopping:
            trial.release(holding.placements)
    awards: list[Award] = []
    evictions: list[Eviction] = []
    gone: set[GangKey] = set()
    for wanting in sorted(market.pending, key=lambda c: (-c.priority, c.order)):
        found = find(trial, wanting.bids)
        victims = [] if found is not None else sorted(_victims(market, wanting, gone), key=lambda h: -h.started_at)
        taken = []
        while found is None and victims:
            victim = victims.pop(0)
            taken.append(victim)
            trial.release(victim.placements)
            found = find(trial, wanting.bids)
        if found is None:
            for victim in taken:
                trial.take(victim.placements, FOREVER)
            continue
        trial.take(found[1], FOREVER)
        awards.append(award_of(wanting, found))
        gone |= {victim.key for victim in taken}
        evictions += [_eviction(market, victim, wanting) for victim in taken]
    return RoundPlan(market.snapshot.version, tuple(awards), tuple(evictions))


def _victims(market: Market, wanting: Candidate, gone: set[GangKey]) -> list[Holding]:
    floor = below_guarantee(market.standings[wanting.tenant], gang_amount(wanting.bids[0]))
    return [
        h
        for h in market.snapshot.holdings
        if not h.stopping
        and h.key not in gone
        and h.tenure_until <= market.snapshot.at
        and ((floor and h.tenant != wanting.tenant) or (h.tenant == wanting.tenant and h.priority < wanting.priority))
    ]


def _eviction(market: Market, victim: Holding, wanting: Candidate) -> Eviction:
    kind = PreemptionKind.PRIORITY if victim.tenant == wanting.tenant else PreemptionKind.RECLAIM
    since = victim.saved_at if victim.saved_at is not None else victim.started_at
    return Eviction(
        victim.key,
        victim.incarnation,
        Preemption(kind, wanting.key.job, wanting.tenant, market.snapshot.at - since),
    )


def gamble(market: Market, chance: Random) -> RoundPlan:
    """Evict and award at random: moves, new sizes, evictions for nobody, and now and then something impossible."""
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
