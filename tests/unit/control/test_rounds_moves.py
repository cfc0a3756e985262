"""Moves, new sizes and the order of those who lost a round."""

from __future__ import annotations

from msgspec.structs import replace

from corral.model.ids import GangKey, JobId, TaskKey, TenantId
from corral.model.job import Cause, JobState
from corral.model.market import Award, Eviction, Loss, Preemption, PreemptionKind, RoundPlan
from corral.model.offer import Proposal
from tests.unit.control.rounding import TENURE_S, answer, asked, here, house, obey_stops, stopping


def test_a_gang_moves() -> None:
    world = house(n1=2, n2=2)
    world.solver = None
    world.submit(asked(nodes=1), asked(nodes=1))
    book = world.core.book
    bids = book.waiting.proposals[JobId("1")].bids
    for name in "12":
        book.propose(world.now, world.job(name), Proposal(JobId(name), 1, (*bids, replace(bids[0], throughput=0.5))))
    world.advance(TENURE_S + 1.0)
    where = {name: world.job(name).gangs[0].placements[0].devices[0].uuid for name in "12"}
    free = next(f"n2-gpu{i}" for i in (0, 1) if f"n2-gpu{i}" not in where.values())
    key = GangKey(JobId("1"), 0)
    moved = Award(key, TenantId("default"), bids[0], here(world, free))
    plan = RoundPlan(1, (moved,), (Eviction(key, 1, Preemption(PreemptionKind.MOVE)),))
    answer(world, plan)
    assert [fact.job for fact in stopping(world)] == ["1"]
    obey_stops(world)
    gang = world.job("1").gangs[0]
    assert (gang.incarnation, gang.placements[0].devices[0].uuid, gang.preemptions) == (2, free, 1)


def test_an_elastic_gang_shrinks_for_another_and_grows_again() -> None:
    world = house(n1=2, n2=2)
    world.solver = None
    (elastic,) = world.submit(asked(nodes=4, node_counts=(4, 2)))
    (other,) = world.submit(asked(nodes=2))
    world.advance(TENURE_S + 1.0)
    key = GangKey(elastic, 0)
    large, small = world.core.book.waiting.proposals[elastic].bids[:2]
    assert (large.shape.ranks, small.shape.ranks) == (4, 2)
    devices = [s.uuid for p in world.job(elastic).gangs[0].placements for s in p.devices]
    shrunk = Award(key, TenantId("default"), small, here(world, *devices[:2]))
    room = Award(GangKey(other, 0), TenantId("default"), small, here(world, *devices[2:]))
    answer(world, RoundPlan(1, (shrunk, room), (Eviction(key, 1, Preemption(PreemptionKind.RESIZE)),)))
    for rank in range(3):
        world.end(elastic, rank=rank, cause=Cause.PREEMPTED)
        assert world.job(other).state is JobState.PENDING or rank == 2
    world.end(elastic, rank=3, cause=Cause.PREEMPTED)
    gang = world.job(elastic).gangs[0]
    assert (len(gang.tasks), gang.bid, gang.incarnation) == (2, small, 2)
    assert world.job(other).state is JobState.RUNNING
    launch = world.launched[TaskKey(elastic, 0, 1)]
    assert [peer.rank for peer in launch.peers] == [0, 1]
    # The other one ends, and the fill has nobody for its devices: the next round lets it grow.
    for rank in range(2):
        world.end(other, rank=rank)
    world.advance(TENURE_S + 1.0)
    grown = Award(key, TenantId("default"), large, here(world, *devices))
    answer(world, RoundPlan(1, (grown,), (Eviction(key, 2, Preemption(PreemptionKind.RESIZE)),)))
    obey_stops(world)
    gang = world.job(elastic).gangs[0]
    assert (len(gang.tasks), gang.bid, gang.preemptions, gang.restarts) == (4, large, 2, 0)


def test_who_lost_a_round_waits_in_the_order_of_what_it_is_worth() -> None:
    world = house(n1=1)
    world.solver = None
    world.submit(*[asked()] * 4)
    world.advance(1.0)
    keys = {number: GangKey(JobId(number), 0) for number in "234"}
    values = {"2": 0.01, "3": 0.011, "4": 0.9}
    losses = {keys[number]: Loss(value, 0.0, "price") for number, value in values.items()}
    answer(world, RoundPlan(1, losses=losses))
    (late,) = world.submit(asked())
    index = world.core.book.waiting.index
    # One GPU is the whole pool. -log2(0.9) is 0.15, -log2(0.01) is 6.6: in quarters, upwards.
    assert [c.urgency for c in map(index.get, keys.values()) if c] == [6.75, 6.75, 0.25]
    order = []
    for _ in range(4):
        (running,) = [job.id for job in world.core.book.state.jobs.values() if job.state is JobState.RUNNING]
        world.end(running)
        order.append(running)
    # Job 2 was first in line before the round and keeps its reservation.
    assert order == ["1", "2", "4", "3"]
    assert world.job(late).state is JobState.RUNNING
