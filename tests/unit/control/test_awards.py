"""Awards: who is in their way, found by node as by looking at everybody, and which of them may start together."""

from __future__ import annotations

import random

from corral.control.awards import Holders, overlaps
from corral.control.inputs import Administer
from corral.model.events import GangPlaced, TenantSet
from corral.model.ids import GangKey, JobId, TenantId
from corral.model.market import Award, Eviction, Preemption, PreemptionKind, RoundPlan
from corral.model.offer import Bid
from corral.model.tenant import Quota, Tenant
from tests.unit.control.rounding import TENURE_S, answer, asked, here, obey_stops, stopping
from tests.unit.control.rounding import house as pool
from tests.unit.policy.building import candidate, holding, place_on, shape


def test_holders_in_the_way_are_those_on_the_devices_of_an_award_and_its_own_gang() -> None:
    rng = random.Random(0)
    holdings = [
        holding(job, *(place_on(f"n{rng.randrange(20)}", *rng.sample(range(8), rng.randrange(3))) for _ in range(2)))
        for job in range(60)
    ]
    holders, found = Holders(holdings), 0
    for job in range(120):
        placements = tuple(place_on(f"n{rng.randrange(25)}", *rng.sample(range(8), rng.randrange(3))) for _ in "ab")
        key = candidate(job).key
        award = Award(key, TenantId("a"), Bid(shape(1)), placements)
        everybody = [h for h in holdings if h.key == key or overlaps(placements, h)]
        assert sorted(h.key for h in holders.in_the_way(award)) == sorted(h.key for h in everybody)
        found += len(everybody)
    assert found > 60


def test_awards_that_come_free_in_one_moment_start_within_the_limit_of_their_tenant() -> None:
    world = pool(n1=2, n2=2)
    world.solver = None
    c = Tenant(TenantId("c"), limit=Quota(3000))
    world.tell(Administer(TenantSet(at=world.now, tenant=c, by="me"), create=True))
    (wide,) = world.submit(asked("c", gpus=1, nodes=3))
    (other,) = world.submit(asked("b", gpus=1))
    first, second = world.submit(asked("c", gpus=1, nodes=2), asked("c", gpus=1))
    for rank in range(3):
        world.start(wide, rank=rank)
    world.advance(TENURE_S + 11)
    free = [p.devices[0].uuid for p in world.job(wide).gangs[0].placements]
    version = world.markets[-1].snapshot.version
    awards = tuple(
        Award(GangKey(JobId(job), 0), TenantId("c"), bid_of(world.markets[-1], job), here(world, *devices))
        for job, devices in ((first, free[:2]), (second, free[2:]))
    )
    gives_way = Eviction(GangKey(JobId(wide), 0), 1, Preemption(PreemptionKind.ROOM, JobId(first)))
    answer(world, RoundPlan(version, awards, (gives_way,)))
    assert [fact.job for fact in stopping(world)] == [wide]
    # Its tenant's limit shrinks while it gives way: now only one of the two may start.
    world.tell(Administer(TenantSet(at=world.now, tenant=Tenant(TenantId("c"), limit=Quota(2000)), by="me")))
    obey_stops(world)
    placed = [fact.job for fact in world.journal if isinstance(fact, GangPlaced)]
    assert placed[-1:] == [first]
    assert world.core.book.state.tenant_held[TenantId("c")].gpu_milli == 2000
    assert other in placed


def bid_of(market: object, job: str) -> Bid:
    return next(c.bids[0] for c in market.pending if c.key.job == job)  # type: ignore[attr-defined]
