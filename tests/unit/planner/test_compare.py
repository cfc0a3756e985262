"""What-if answers, compared with courses that are worked out by hand. All jobs declare how long they run."""

from __future__ import annotations

import pytest

from corral.control.inputs import Administer
from corral.model.ask import JobAsk
from corral.model.errors import NotFound, PlanTooLarge, Unschedulable, UsageError
from corral.model.events import TenantSet
from corral.model.ids import GangKey, JobId, NodeId, TenantId
from corral.model.market import Market, RoundPlan
from corral.model.plan import Course, NewNodes, PlanAsk, PlanReport
from corral.model.tenant import Tenant
from corral.planner import projection
from corral.planner.compare import compare
from corral.planner.projection import Seen
from tests.unit.control.serving import Serving, spec
from tests.unit.control.world import World


def nobody_moves(market: Market) -> RoundPlan:
    """Only the production fill decides."""
    return RoundPlan(market.snapshot.version)


def ask(name: str, gpus: int, lasts: float, tenant: str | None = None, nodes: int = 1) -> JobAsk:
    """A job whose measured rest is its declared duration: the median of an age would be shorter."""
    return JobAsk(
        name=name, argv=("true",), tenant=tenant, gpu_milli=gpus * 1_000, num_nodes=nodes, cpus_milli=1_000,
        memory_mib=10, max_duration_s=lasts, grace_s=0.0, restart_cost_s=0.0,
    )  # fmt: skip


def seen(world: World) -> Seen:
    """Everything that ran so far has run for an hour: half of such gangs go on for an hour more."""
    return Seen(world.core.image(), world.now, tuple(NodeId(n) for n in world.core.book.state.nodes), world.config)


def running(world: World, *asks: JobAsk) -> list[JobId]:
    names = world.submit(*asks)
    for name in names:
        job = world.job(name)
        for rank in range(len(job.gangs[0].placements)):
            world.start(name, rank=rank)
    return names


def plan(world: World, ask_: PlanAsk) -> PlanReport:
    return compare(seen(world), ask_, nobody_moves)


def after(report: PlanReport, job: JobId) -> Course:
    return next(shift.after for shift in report.shifts if shift.before.key.job == job)


def test_a_new_job_is_told_when_it_would_start_and_whom_it_holds_up() -> None:
    world = World(n0=4)
    running(world, ask("holds", 4, 600.0))
    world.now += 60.0
    (waits,) = world.submit(ask("waits", 2, 60.0))
    report = plan(world, PlanAsk(submit=(ask("small", 2, 60.0), ask("large", 4, 60.0))))
    # An age of 60 s: half go on for 60 s more. A fresh job counts as one of 60 s.
    small, large = report.submitted
    assert small.start == pytest.approx(world.now + 60.0)
    assert large.start == pytest.approx(world.now + 120.0)
    assert large.end == pytest.approx(world.now + 180.0)
    assert report.shifts == ()
    assert report.gangs == 2
    assert report.ends_before == report.ends_after == pytest.approx(world.now + 120.0)
    assert GangKey(waits, 0) not in report.hurt


def test_the_pool_that_is_asked_stays_as_it_is() -> None:
    world = World(n0=4)
    running(world, ask("holds", 4, 600.0))
    before = world.core.image()
    plan(world, PlanAsk(submit=(ask("new", 1, 60.0),), drain=(NodeId("n0"),), add=(NewNodes(1),)))
    assert world.core.image() == before


def test_new_nodes_let_what_waits_start_at_once() -> None:
    world = World(n0=4, n1=4)
    running(world, ask("holds", 4, 600.0, nodes=2))
    world.now += 100.0
    (waits,) = world.submit(ask("waits", 4, 50.0, nodes=2))
    report = plan(world, PlanAsk(add=(NewNodes(2, NodeId("n0")),)))
    (shift,) = report.shifts
    assert shift.before.start == pytest.approx(world.now + 100.0)
    assert shift.after.start == pytest.approx(world.now)
    assert after(report, waits).end == pytest.approx(world.now + 50.0)
    assert report.hurt == ()


def test_a_drained_node_hurts_what_runs_there() -> None:
    world = World(n0=4, n1=4)
    (one, two) = running(world, ask("one", 4, 600.0), ask("two", 4, 600.0))
    world.now += 120.0
    node = world.placed_on(two)[0]
    report = plan(world, PlanAsk(drain=(NodeId(node),)))
    moved = after(report, two)
    # It goes on when the other has ended, half way to what both were expected to take: 120 s and 120 s more.
    assert moved.preemptions == 1
    assert moved.end == pytest.approx(world.now + 240.0)
    assert report.hurt == (GangKey(two, 0),)
    assert GangKey(one, 0) not in {shift.before.key for shift in report.shifts}
    # The same work in the same time, one after the other: 2 x 120 of 2 x 240 s.
    assert [report.busy_before, report.busy_after] == pytest.approx([0.5, 0.5])


def test_busy_shares_are_of_the_whole_time_that_was_looked_ahead() -> None:
    world = World(n0=4, n1=4)
    running(world, ask("long", 4, 90_000.0))
    world.now += 1_000.0
    (short,) = running(world, ask("short", 4, 600.0))
    world.now += 80.0
    node = world.placed_on(short)[0]
    report = plan(world, PlanAsk(drain=(NodeId(node),), horizon_s=100.0))
    # All devices for 80 s and half of them for 20 s; else half of them all the time: nobody can take the other node.
    assert [report.busy_before, report.busy_after] == pytest.approx([0.9, 0.5])


def test_a_weight_changes_whose_turn_it_is() -> None:
    world = World(n0=4)
    for name in ("a", "b"):
        world.tell(Administer(TenantSet(at=world.now, tenant=Tenant(TenantId(name)), by="t"), create=True))
    running(world, ask("holds", 4, 600.0))
    world.now += 60.0
    first, second = world.submit(ask("a1", 3, 60.0, "a"))[0], world.submit(ask("b1", 3, 60.0, "b"))[0]
    report = plan(world, PlanAsk(weights={TenantId("b"): 10.0}))
    assert after(report, second).start == pytest.approx(world.now + 60.0)
    assert after(report, first).start == pytest.approx(world.now + 120.0)
    assert report.hurt == ()


@pytest.mark.parametrize(
    "what,error",
    [
        (PlanAsk(), UsageError),
        (PlanAsk(drain=(NodeId("nowhere"),)), NotFound),
        (PlanAsk(weights={TenantId("nobody"): 1.0}), NotFound),
        (PlanAsk(add=(NewNodes(0),)), UsageError),
        (PlanAsk(add=(NewNodes(1, NodeId("nowhere")),)), NotFound),
        (PlanAsk(add=(NewNodes(6_000), NewNodes(6_000))), UsageError),
        (PlanAsk(submit=(ask("huge", 64, 60.0),)), Unschedulable),
    ],
)
def test_a_question_that_cannot_be_asked_is_refused(what: PlanAsk, error: type[Exception]) -> None:
    with pytest.raises(error):
        plan(World(n0=4), what)


def test_a_pool_that_is_too_busy_is_not_followed_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projection, "INSTANTS_MAX", 3)
    world = World(n0=1)
    world.submit(*(ask(f"job{i}", 1, 10.0) for i in range(20)))
    with pytest.raises(PlanTooLarge):
        plan(world, PlanAsk(add=(NewNodes(1),)))


def test_what_lies_beyond_the_horizon_has_no_time() -> None:
    world = World(n0=1)
    running(world, ask("holds", 1, 10_000.0))
    world.now += 5_000.0
    report = plan(world, PlanAsk(submit=(ask("new", 1, 60.0),), horizon_s=1_000.0))
    assert (report.submitted[0].start, report.submitted[0].end) == (None, None)
    assert report.ends_before is None


def test_replicas_go_on_and_services_start_nothing_in_a_copy() -> None:
    world = Serving(n0=4)
    world.serve(spec(replicas=(2, 2)))
    world.up()
    world.end("1", code=1)
    assert len(world.replicas) == 2
    world.begin()
    report = plan(world, PlanAsk(submit=(ask("fits", 2, 60.0), ask("never", 4, 60.0))))
    fits, never = report.submitted
    assert fits.start == pytest.approx(world.now)
    assert fits.end == pytest.approx(world.now + 60.0)
    assert never.start is None
    assert report.shifts == ()
