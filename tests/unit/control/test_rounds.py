"""Global rounds: when they come, what they are shown, and what becomes of their plans."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from corral.control.inputs import Administer, Cancel, Solved, Submit
from corral.model.events import GangRequeued, NodeCordoned
from corral.model.ids import GangKey, JobId, NodeId, TaskKey
from corral.model.job import Cause, CheckpointSpec, JobState, StopReason
from corral.model.market import Award, Eviction, Market, Preemption, PreemptionKind, RoundPlan
from corral.model.offer import Bid, Outlook, Proposal
from corral.model.resources import Placement
from corral.policy.market.solve import RoundSolver
from tests.unit.control.rounding import QUICK, TENURE_S, answer, asked, here, house, obey_stops, stopping
from tests.unit.control.solvers import just
from tests.unit.control.world import World


def test_a_guarantee_is_reclaimed_after_tenure_and_the_devices_go_to_who_was_promised_them() -> None:
    world = house()
    world.submit(*[asked("default")] * 4)
    world.advance(5.0)
    (number,) = world.submit(asked("b", nodes=2))
    world.advance(TENURE_S - 6.0)
    assert not stopping(world), "nobody gives way before its tenure is over"
    world.advance(8.0)
    first, second = stopping(world)
    assert {first.reason, second.reason} == {StopReason.PREEMPTED}
    assert first.preemption is not None
    assert (first.preemption.kind, first.preemption.beneficiary) == (PreemptionKind.RECLAIM, number)
    assert world.job(number).state is JobState.PENDING, "what is held is not given away"
    # A job that would fit on what comes free first does not get it.
    (late,) = world.submit(asked("default"))
    victims = [first.job, second.job]
    world.end(victims[0], cause=Cause.PREEMPTED)
    assert world.job(number).state is JobState.PENDING
    assert world.job(late).state is JobState.PENDING
    world.end(victims[1], cause=Cause.PREEMPTED)
    assert world.job(number).state is JobState.RUNNING
    assert [f.counted for f in world.journal if isinstance(f, GangRequeued)] == [False, False]
    victim = world.job(victims[0]).gangs[0]
    assert (victim.state, victim.preemptions, victim.restarts, victim.avoid) == (JobState.PENDING, 1, 0, ())
    # Now tenant b has what it is guaranteed: nobody gives way for more.
    world.submit(asked("b"))
    world.advance(3 * TENURE_S)
    assert len(stopping(world)) == 2


@pytest.mark.parametrize("nodes", [1, 2])
def test_the_production_solver_reclaims_a_guarantee_whatever_the_size_of_who_holds_it(nodes: int) -> None:
    world = house(floor=nodes, n1=8, n2=8)
    world.solver = RoundSolver(QUICK.scheduling)
    world.submit(asked(gpus=8), asked(gpus=8))
    world.advance(TENURE_S - 2.0)
    (number,) = world.submit(asked("b", nodes=nodes))
    world.advance(1.0)
    assert not stopping(world)
    world.advance(12.0)
    assert len(stopping(world)) == 1
    obey_stops(world)
    assert world.job(number).state is JobState.RUNNING
    world.advance(30.0)
    assert len(stopping(world)) == 1


def test_a_higher_priority_of_the_same_tenant_gets_room_early() -> None:
    world = house(replace(QUICK, scheduling=replace(QUICK.scheduling, round_s=600.0)), n1=1)
    world.submit(asked(), asked())
    world.advance(TENURE_S + 1.0)
    assert len(world.markets) == 1
    world.solver = None
    (urgent,) = world.submit(asked(priority=5))
    world.advance(1.5)
    assert len(world.markets) == 2, "long before the 600 s are over"
    answer(world, just(world.markets[-1]))
    (fact,) = stopping(world)
    assert fact.preemption is not None
    assert fact.preemption.kind is PreemptionKind.PRIORITY
    obey_stops(world)
    assert world.job(urgent).state is JobState.RUNNING
    assert [world.job("1").state, len(world.core.cycle.awards)] == [JobState.PENDING, 0]
    world.advance(500.0)
    assert len(world.markets) == 2, "nothing is broken any more"


def test_the_production_solver_lets_a_priority_in_after_hours_of_unsaved_work() -> None:
    world = house(n1=2)
    world.solver = RoundSolver(QUICK.scheduling)
    world.submit(asked(), asked("b"))
    for name in ("1", "2"):
        world.start(name)
    world.now += 36_000.0
    (urgent,) = world.submit(asked(priority=1))
    world.advance(12.0)
    (fact,) = stopping(world)
    assert (fact.job, fact.preemption and fact.preemption.kind) == ("1", PreemptionKind.PRIORITY)
    obey_stops(world)
    assert world.job(urgent).state is JobState.RUNNING
    world.advance(3 * TENURE_S)
    assert len(stopping(world)) == 1, "it stays, and nobody of another tenant gave way"


def test_asking_whether_a_round_is_due_changes_nothing() -> None:
    world = house(replace(QUICK, scheduling=replace(QUICK.scheduling, round_s=600.0)), n1=1)
    world.submit(asked(), asked())
    world.advance(TENURE_S + 1.0)
    world.core.handle(world.now, Submit((asked(priority=5),)))
    world.core.cycle.run(world.now)
    rounds = world.core.rounds
    world.now += 2.0
    assert [rounds.due(world.now) for _ in range(3)] == [True, True, True]
    world.settle()
    assert len(world.markets) == 2


def test_rounds_come_only_when_something_contends_and_something_changed() -> None:
    world = house(n1=1)
    world.submit(asked(max_duration_s=900.0))
    world.advance(100.0)
    assert not world.markets, "nothing waits"
    world.submit(asked())
    world.advance(0.5)
    assert len(world.markets) == 1
    world.advance(80.0)
    assert len(world.markets) == 1, "nothing changed"
    world.advance(30.0)
    assert len(world.markets) == 2, "time has changed what waiting is worth"
    world.submit(asked())
    world.advance(10.5)
    assert len(world.markets) == 3


def test_only_one_round_is_under_way_and_answers_to_others_are_passed_over() -> None:
    world = house(n1=1)
    world.solver = None
    world.submit(asked(), asked())
    world.advance(100.0)
    assert len(world.markets) == 1
    held = world.markets[0].snapshot.holdings[0]
    eviction = Eviction(held.key, 1, Preemption(PreemptionKind.ROOM))
    award = Award(GangKey(JobId("2"), 0), held.tenant, world.markets[0].pending[0].bids[0], here(world, "n1-gpu0"))
    world.tell(Solved(world.markets[0].snapshot.version + 1, RoundPlan(1, (award,), (eviction,))))
    assert not stopping(world)
    answer(world, RoundPlan(1, (award,), (eviction,)))
    assert len(stopping(world)) == 1


def test_a_solver_that_failed_changes_nothing_and_is_asked_again() -> None:
    world = house(n1=1)
    world.solver = None
    world.submit(asked(), asked())
    world.advance(1.0)
    world.tell(Solved(world.markets[0].snapshot.version))
    world.submit(asked())
    world.advance(11.0)
    assert len(world.markets) == 2
    assert world.job("1").state is JobState.RUNNING


def test_a_market_says_of_the_running_what_their_giving_way_costs() -> None:
    world = house(n1=2)
    saves = CheckpointSpec(grace_s=5.0)
    world.submit(asked(max_duration_s=500.0), asked(checkpoint=saves, priority=3))
    world.submit(asked("b"))
    book = world.core.book
    world.advance(1.0)
    started = world.job("1").gangs[0].placed_at
    bids = book.waiting.proposals[JobId("1")].bids
    slow = replace(bids[0], throughput=2.0)
    fast = Bid(replace(bids[0].shape, ranks=2), throughput=6.0)
    outlooks = {0: Outlook(remaining_s=30.0, saved_at=world.now, known_at=world.now)}
    book.propose(world.now, world.job("1"), Proposal(JobId("1"), 1, (fast, slow), outlooks))
    market = world.core.rounds.market(world.now + 2.0)
    one, two = sorted(market.snapshot.holdings, key=lambda h: h.order)
    assert (one.key.job, one.queue, one.priority, one.incarnation) == ("1", "default", 0, 1)
    assert (one.bids, one.won) == ((fast, slow), replace(bids[0], preferred=()))
    # 30 s on the first bid, with 6 units/s, are 90 s on the one that it runs on, with 2.
    assert (one.remaining_s, one.known_at, one.saved_at) == (90.0, world.now, world.now)
    assert started is not None
    assert (one.started_at, one.tenure_until) == (started, started + TENURE_S)
    assert one.ends_at == started + 500.0 + 10.0
    # Who saves itself when it is told to loses nothing.
    assert (two.priority, two.saved_at, two.remaining_s) == (3, world.now + 2.0, None)
    (waits,) = market.pending
    assert (waits.tenant, waits.submitted_at, waits.attained_s) == ("b", 1_000_000.0, 0.0)


def bad_plans(world: World, market: Market) -> dict[str, RoundPlan]:
    """Return plans that must not count, by why. Jobs 1 and 2 run on the node's two devices, job 3 waits for one."""
    waits = market.pending[0]
    bid = waits.bids[0]
    first, second = market.snapshot.holdings
    device = first.placements[0].devices[0].uuid
    award = Award(waits.key, waits.tenant, bid, here(world, device))
    room = Preemption(PreemptionKind.ROOM, waits.key.job)
    gives = Eviction(first.key, first.incarnation, room)
    double = replace(bid, shape=replace(bid.shape, ranks=2))
    own = Award(first.key, first.tenant, bid, (replace(first.placements[0], port=None),))
    return {
        "nobody needs it": RoundPlan(1, (), (gives,)),
        "of another incarnation": RoundPlan(1, (award,), (replace(gives, incarnation=7),)),
        "of a gang that does not run": RoundPlan(1, (award,), (replace(gives, key=GangKey(JobId("77"), 0)),)),
        "without an eviction": RoundPlan(1, (award,)),
        "other devices come free": RoundPlan(1, (award,), (Eviction(second.key, 1, room),)),
        "a bid that nobody made": RoundPlan(1, (replace(award, bid=double),), (gives,)),
        "fewer ranks than the bid": RoundPlan(1, (replace(award, placements=()),), (gives,)),
        "a device that is not there": RoundPlan(1, (replace(award, placements=here(world, "n1-gpu9")),), (gives,)),
        "a node that is not there": RoundPlan(1, (replace(award, placements=here(world, "n7-gpu0")),), (gives,)),
        "it goes on where it is": RoundPlan(1, (own,), (Eviction(first.key, 1, Preemption(PreemptionKind.MOVE)),)),
        "an award to who runs": RoundPlan(1, (replace(award, key=second.key),), (gives,)),
        "an award to nobody": RoundPlan(1, (replace(award, key=GangKey(JobId("88"), 3)),), (gives,)),
    }


@pytest.mark.parametrize("case", range(12))
def test_what_does_not_hold_does_not_count(case: int) -> None:
    world = house(n1=2)
    world.solver = None
    world.submit(asked(), asked(), asked())
    world.advance(TENURE_S + 1.0)
    plans = bad_plans(world, world.markets[-1])
    assert len(plans) == 12
    name, plan = list(plans.items())[case]
    answer(world, plan)
    assert not stopping(world), name
    assert not world.core.cycle.awards, name
    assert world.core.rounds.ruling.refused, name


def test_tenure_is_judged_when_the_plan_comes_not_when_it_was_made() -> None:
    world = house(n1=1)
    world.solver = None
    world.submit(asked(), asked())
    world.advance(1.0)
    market = world.markets[-1]
    held, waits = market.snapshot.holdings[0], market.pending[0]
    award = Award(waits.key, waits.tenant, waits.bids[0], here(world, "n1-gpu0"))
    plan = RoundPlan(1, (award,), (Eviction(held.key, 1, Preemption(PreemptionKind.ROOM, waits.key.job)),))
    answer(world, plan)
    assert world.core.rounds.ruling.refused[held.key] == "its tenure is not over"
    world.submit(asked())
    world.advance(TENURE_S)
    answer(world, plan)
    assert len(stopping(world)) == 1


def test_of_more_evictions_than_are_needed_those_that_lose_most_are_left_out() -> None:
    world = house(n1=4)
    world.solver = None
    # Each holds a quarter of the node's 64 CPUs, so two of them have to go for 30.
    world.submit(*[asked()] * 4)
    world.submit(asked(gpus=0, cpus_milli=30_000, memory_mib=1))
    world.advance(TENURE_S + 1.0)
    market = world.markets[-1]
    waits = market.pending[0]
    place = Placement(0, NodeId("n1"), (), 30_000, 1)
    losses = {"1": 50.0, "2": 10.0, "3": 70.0}
    evictions = tuple(
        Eviction(h.key, 1, Preemption(PreemptionKind.ROOM, waits.key.job, lost_s=losses[h.key.job]))
        for h in market.snapshot.holdings
        if h.key.job in losses
    )
    assert [h.placements[0].cpus_milli for h in market.snapshot.holdings] == [16_000] * 4
    answer(world, RoundPlan(1, (Award(waits.key, waits.tenant, waits.bids[0], (place,)),), evictions))
    assert sorted(fact.job for fact in stopping(world)) == ["1", "2"]
    assert world.core.rounds.ruling.refused == {GangKey(JobId("3"), 0): "nobody needs its devices"}
    obey_stops(world)
    assert world.job(waits.key.job).state is JobState.RUNNING


def test_awards_die_with_their_gang_their_node_and_a_victim_that_does_not_stop() -> None:
    for end in ("cancel", "cordon", "patience"):
        world = house(n1=1, n2=1)
        world.solver = None
        world.submit(asked(), asked(grace_s=10.0), asked())
        world.advance(TENURE_S + 1.0)
        market = world.markets[-1]
        waits, held = market.pending[0], market.snapshot.holdings[0]
        node = held.placements[0].node
        award = Award(waits.key, waits.tenant, waits.bids[0], here(world, f"{node}-gpu0"))
        answer(world, RoundPlan(1, (award,), (Eviction(held.key, 1, Preemption(PreemptionKind.ROOM, JobId("3"))),)))
        assert waits.key in world.core.cycle.awards
        if end == "cancel":
            world.tell(Cancel(JobId("3"), "me"))
        elif end == "cordon":
            world.tell(Administer(NodeCordoned(at=world.now, node=node, by="me")))
        else:
            world.advance(39.0)
            assert waits.key in world.core.cycle.awards
            world.advance(3.0)
        assert waits.key not in world.core.cycle.awards, end
        assert len(world.notices) == (end != "cancel"), end
        assert end != "patience" or f"held by {held.key.job}.0" in world.notices[0]


def test_after_a_restart_nothing_is_left_of_a_plan_but_the_gangs_that_are_stopping() -> None:
    world = house()
    world.submit(*[asked("default")] * 4)
    world.submit(asked("b", nodes=2))
    world.advance(TENURE_S + 12.0)
    victims = {fact.job for fact in stopping(world)}
    assert len(victims) == 2
    again = world.replayed()
    assert not again.cycle.awards
    assert {j.id for j in again.book.state.jobs.values() for g in j.gangs.values() if g.stopping} == victims
    assert {h.key.job for h in again.book.board.holdings.values() if h.stopping} == victims


def test_after_a_restart_running_jobs_are_asked_for_their_bids_with_the_first_round() -> None:
    world = house(n1=2)
    world.submit(asked(), asked(), asked(priority=1))
    again = world.replayed()
    running = [job.id for job in again.book.state.jobs.values() if job.state is JobState.RUNNING]
    assert not any(name in again.book.waiting.proposals for name in running)
    again.settle(world.now)
    assert not again.rounds.due(world.now + 1.0), "nodes get one interval to be heard again"
    market = again.rounds.market(world.now + 10.0)
    assert [h.bids for h in market.snapshot.holdings] == [again.book.waiting.proposals[name].bids for name in running]
    assert all(h.won == replace(h.bids[0], preferred=()) for h in market.snapshot.holdings)


def test_without_the_fill_only_awards_start_gangs() -> None:
    world = house(replace(QUICK, fill=False), n1=2)
    world.solver = None
    world.submit(asked(), asked())
    world.advance(5.0)
    assert [world.job(n).state for n in "12"] == [JobState.PENDING] * 2
    world.solver = just
    world.tell(Solved(world.markets[-1].snapshot.version, just(world.markets[-1])))
    assert [world.job(n).state for n in "12"] == [JobState.RUNNING] * 2
    assert world.launched[TaskKey(JobId("1"), 0, 0)].incarnation == 1
