"""A simple solver of global rounds that gives guarantees and priorities their due. (Storms have one that gambles.)"""

from __future__ import annotations

from corral.model.ids import GangKey
from corral.model.market import Award, Eviction, Market, Preemption, PreemptionKind, RoundPlan
from corral.model.offer import Candidate, Holding
from corral.policy.arbitration import gang_amount
from corral.policy.fairness import below_guarantee
from corral.policy.trial import Trial
from corral.sim.storm.gambler import FOREVER, award_of, find


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
