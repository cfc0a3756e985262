"""Receipts, nodes, tenants and status, by values worked out by hand."""

from __future__ import annotations

import msgspec
import pytest

from corral.control import reports
from corral.control.inputs import Administer, Cancel
from corral.model.ask import AfterAsk, JobAsk
from corral.model.events import GangStopping, TenantRemoved, TenantSet
from corral.model.ids import JobId, TenantId
from corral.model.job import Cause, JobState, StopReason, TaskExit
from corral.model.market import Preemption, PreemptionKind
from corral.model.messages import TaskPhase, TaskReport, TaskReported
from corral.model.resources import Amount
from corral.model.tenant import Tenant
from tests.unit.control.world import World

A = TenantId("a")


def tenants(world: World, *names: str) -> None:
    for name in names:
        world.tell(Administer(TenantSet(at=0.0, tenant=Tenant(TenantId(name)), by="t"), create=True))


def test_a_receipt_of_a_job_that_waited_restarted_and_runs() -> None:
    world = World(n1=4, n2=4)
    world.submit(JobAsk(name="first", argv=("x",), gpu_milli=4000, num_nodes=2, cpus_milli=1000))
    world.now += 100.0
    world.submit(JobAsk(name="gang", argv=("x",), gpu_milli=4000, num_nodes=2, max_restarts=2, cpus_milli=1000))
    world.now += 50.0
    world.end("1", rank=0)
    world.end("1", rank=1)
    for rank in (0, 1):
        world.start("2", rank=rank)
    world.now += 360.0
    world.end("2", rank=1, code=3)
    world.now += 90.0
    world.end("2", rank=0, cause=Cause.GANG_STOPPED)
    world.now += 900.0
    job = world.job("2")
    found = reports.receipt(world.core, job, world.now, 0.5)
    # Held for 360 s and 450 s by four devices each, then eight devices for 900 s.
    lost = 4 * (360.0 + 450.0) / 3600.0
    assert found.lost_gpu_hours == pytest.approx(lost)
    assert found.gpu_hours == pytest.approx(lost + 8 * 900.0 / 3600.0)
    assert (found.waited_s, found.ran_s) == (50.0, 1_350.0)
    assert (found.restarts, found.moves, found.gangs, found.idle_share) == (1, 0, 1, 0.5)
    assert (found.state, found.ended_at, found.exit_code) == (JobState.RUNNING, None, None)
    assert sorted(found.nodes) == ["n1", "n2"]
    assert not found.simulated


def test_a_receipt_of_an_ended_job_names_the_exit_that_decided() -> None:
    world = World(n1=4)
    world.submit(JobAsk(argv=("x",), gpu_milli=1000, indices=(0, 1, 2, 3, 4)))
    for gang in range(3):
        world.start("1", gang)
    world.now += 10.0
    world.end("1", 0)
    launch = world.launched[world.job("1").task_key(1, 0)]
    exit_ = TaskExit(Cause.SIGNAL, signal=9, started_at=world.now, ended_at=world.now, cpu_s=2.5, rss_max_mib=300)
    report = TaskReport(launch.task, 1, TaskPhase.ENDED, 4, exit=exit_)
    world.tell(TaskReported(node=launch.node, report=report))
    world.now += 5.0
    world.end("1", 2)
    world.end("1", 3)
    job = world.job("1")
    world.tell(Cancel(JobId("1"), "me"))
    world.end("1", 4, cause=Cause.CANCELLED)
    found = reports.receipt(world.core, job, world.now + 1_000.0, None)
    # The fifth waited 10 s for the first to end and held its device for 5 s.
    assert (found.waited_s, found.ran_s, found.ended_at) == (10.0, 15.0, world.now)
    assert found.gpu_hours == pytest.approx((10.0 + 10.0 + 15.0 + 15.0 + 5.0) / 3600.0)
    assert (found.exit_cause, found.exit_code) == ("signal", 137)
    assert (found.cpu_s, found.rss_max_mib, found.idle_share) == (2.5, 300, None)


def test_a_receipt_of_what_never_ran() -> None:
    world = World(n1=1)
    world.submit(JobAsk(argv=("x",), gpu_milli=1000), JobAsk(argv=("x",), gpu_milli=1000))
    world.now += 30.0
    waiting = reports.receipt(world.core, world.job("2"), world.now, None)
    assert (waiting.waited_s, waiting.ran_s, waiting.gpu_hours, waiting.nodes) == (30.0, 0.0, 0.0, ())
    assert waiting.exit_cause == "pending"
    job = world.job("2")
    world.tell(Cancel(JobId("2"), "me"))
    gone = reports.receipt(world.core, job, world.now + 99.0, None)
    assert (gone.waited_s, gone.exit_cause, gone.exit_code) == (30.0, "cancelled by me", None)


def test_nodes_show_foreign_holders_to_admins_only() -> None:
    world = World(n1=2)
    tenants(world, "a", "b")
    world.submit(JobAsk(argv=("x",), tenant="a", gpu_milli=500, cpus_milli=1000, memory_mib=10))
    world.submit(JobAsk(argv=("x",), tenant="b", gpu_milli=1000, cpus_milli=2000, memory_mib=20))
    world.now += 2.0
    (all_of_it,) = reports.nodes(world.core, world.now, None)
    assert (all_of_it.state, all_of_it.age_s, all_of_it.held) == ("up", 2.0, Amount(1500, 3000, 30))
    assert [(d.held_milli, [str(k) for k in d.holders]) for d in all_of_it.devices] == [(500, ["1.0"]), (1000, ["2.0"])]
    (mine,) = reports.nodes(world.core, world.now, A)
    assert [(d.held_milli, [str(k) for k in d.holders]) for d in mine.devices] == [(500, ["1.0"]), (1000, [])]
    assert [str(key) for key in mine.gangs] == ["1.0"]
    world.gone("n1")
    assert reports.nodes(world.core, world.now, None)[0].state == "suspect"


def test_tenants_with_their_standing() -> None:
    world = World(n1=4)
    world.tell(Administer(TenantSet(at=0.0, tenant=Tenant(A, 3.0), by="t"), create=True))
    tenants(world, "b", "idle")
    small = {"gpu_milli": 1000, "cpus_milli": 1000, "memory_mib": 1}
    world.submit(JobAsk(argv=("x",), tenant="a", indices=(0, 1, 2), **small))  # type: ignore[arg-type]
    world.submit(JobAsk(argv=("x",), tenant="b", indices=(0, 1), **small))  # type: ignore[arg-type]
    # One half-life: of three quarters held since, half is remembered.
    world.now += world.config.scheduling.usage_half_life_s
    found = {report.tenant.id: report for report in reports.tenants(world.core, world.now)}
    a, b, idle = found[A], found[TenantId("b")], found[TenantId("idle")]
    assert (a.due_share, b.due_share, idle.due_share) == pytest.approx((0.75, 0.25, 0.0))
    assert (a.held_share, b.held_share) == pytest.approx((0.75, 0.25))
    assert (a.decayed_share, b.decayed_share) == pytest.approx((0.375, 0.125))
    assert [(r.running, r.pending) for r in (a, b, idle)] == [(3, 0), (1, 1), (0, 0)]


def test_a_tenant_that_comes_again_has_no_history() -> None:
    world = World(n1=1)
    tenants(world, "a")
    world.submit(JobAsk(argv=("x",), tenant="a", gpu_milli=1000))
    world.now += 3_600.0
    world.end("1")
    assert world.core.book.standings.averages[A].share == pytest.approx(0.5)
    world.tell(Administer(TenantRemoved(at=0.0, tenant=A, by="t")))
    assert A not in world.core.book.standings.averages
    assert A not in {report.tenant.id for report in reports.tenants(world.core, world.now)}
    rebuilt = world.replayed().book.image()
    assert msgspec.to_builtins(rebuilt) == msgspec.to_builtins(world.core.book.image())


def test_the_pool_at_a_glance() -> None:
    world = World(n1=2, n2=2)
    world.heartbeat("n2", "n2-gpu1")
    one = JobAsk(argv=("x",), gpu_milli=1000, cpus_milli=1000, memory_mib=5)
    (first,) = world.submit(one)
    world.submit(msgspec.structs.replace(one, indices=(0, 1, 2)))
    world.submit(msgspec.structs.replace(one, after=(AfterAsk(first),)))
    world.end("1")
    world.gone("n2")
    status = reports.status(world.core, world.now, 42)
    assert (status.seq, status.epoch, status.nodes, status.nodes_up) == (42, 1, 2, 1)
    assert (status.devices, status.devices_failed, status.models) == (4, 1, {"H100": 4})
    assert (status.capacity.gpu_milli, status.held.gpu_milli) == (3000, 3000)
    assert (status.running_gangs, status.pending_gangs, status.waiting_jobs, status.finished_jobs) == (3, 1, 0, 1)
    assert not status.cpu_pool


def test_the_ledger_shows_a_tenant_its_own_account_and_no_foreign_jobs() -> None:
    world = World(n1=4)
    tenants(world, "a", "b", "c")
    world.submit(JobAsk(argv=("x",), tenant="a", gpu_milli=4_000))
    world.submit(JobAsk(argv=("x",), tenant="b", gpu_milli=4_000))
    begun = world.now
    for _ in range(60):
        world.advance(1.0)
        world.heartbeat("n1")
    stop = Preemption(PreemptionKind.RECLAIM, JobId("2"), TenantId("b"), 30.0)
    world.core.book.record(
        GangStopping(at=world.now, job=JobId("1"), gang=0, incarnation=1, reason=StopReason.PREEMPTED, preemption=stop)
    )
    everything = reports.ledger(world.core, begun, None)
    assert everything.since == begun // 3_600 * 3_600
    received = {line.tenant: line.received_gpu_hours for line in everything.lines}
    assert received[A] == pytest.approx(4 * 60 / 3_600, rel=0.05)
    assert received[TenantId("b")] == 0.0
    assert [(str(entry.key), entry.preemption) for entry in everything.preemptions] == [("1.0", stop)]
    mine = reports.ledger(world.core, begun, A)
    assert [line.tenant for line in mine.lines] == [A]
    assert [(str(e.key), e.preemption.beneficiary, e.preemption.tenant) for e in mine.preemptions] == [
        ("1.0", "-", "b")
    ]
    theirs = reports.ledger(world.core, begun, TenantId("b"))
    assert [(str(entry.key), entry.preemption.beneficiary) for entry in theirs.preemptions] == [("-.0", "2")]
    assert reports.ledger(world.core, begun, TenantId("c")).preemptions == ()
