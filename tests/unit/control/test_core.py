"""The control core from submit to the row of the finished job, with the production policy and AppMasters."""

from __future__ import annotations

import msgspec
import pytest

from corral.control.inputs import Administer, Cancel, EndedJob, Fenced, Quiesce, Submit
from corral.model.ask import AfterAsk, JobAsk
from corral.model.errors import Refusal
from corral.model.events import GangPlaced, GangRequeued, JobEnded, NodeLost, TenantSet
from corral.model.ids import JobId, NodeId, TaskKey, TenantId
from corral.model.job import Cause, DependencyKind, JobState, StopReason, TaskState
from corral.model.messages import LaunchTask, TaskPhase, TaskReport
from corral.model.tenant import Quota, Tenant
from tests.unit.control.world import World, node_spec

ONE = JobAsk(name="one", argv=("true",), gpu_milli=1000)
GANG = JobAsk(name="gang", argv=("train",), gpu_milli=4000, num_nodes=2, max_restarts=1)


def test_a_job_goes_from_submit_to_a_finished_row() -> None:
    world = World(n1=4)
    (job,) = world.submit(ONE)
    assert job == "1"
    launch = world.launched[TaskKey(job, 0, 0)]
    assert (launch.node, launch.incarnation, launch.argv) == ("n1", 1, ("true",))
    assert launch.placement.gpu_milli == 1000
    assert 20_000 <= launch.master_port <= 29_999
    world.start("1")
    assert world.job("1").gangs[0].tasks[0].state is TaskState.RUNNING
    world.now += 7.0
    world.end("1")
    assert [row.state for row in world.finished] == ["succeeded"]
    assert world.finished[0].used_gpu_milli_s == pytest.approx(7000.0)
    assert world.finished[0].exit_code == 0
    assert world.core.book.state.jobs == {}
    assert world.acknowledged() == [TaskKey(job, 0, 0)]
    assert world.core.book.state.held[NodeId("n1")].devices == {}


def test_what_does_not_fit_waits_and_starts_when_something_ends() -> None:
    world = World(n1=4)
    world.submit(*[JobAsk(argv=("x",), gpu_milli=2000) for _ in range(3)])
    assert [world.job(n).state for n in "123"] == [JobState.RUNNING, JobState.RUNNING, JobState.PENDING]
    world.start("2")
    world.end("2")
    assert world.job("3").state is JobState.RUNNING


def test_a_gang_is_placed_on_both_nodes_or_not_at_all() -> None:
    world = World(n1=4, n2=4)
    world.submit(ONE)
    world.submit(GANG)
    assert world.job("2").state is JobState.PENDING
    world.end("1")
    assert sorted(world.placed_on("2")) == ["n1", "n2"]
    launches = [world.launched[TaskKey(JobId("2"), 0, rank)] for rank in (0, 1)]
    assert launches[0].peers == launches[1].peers
    assert launches[0].master_port == launches[1].master_port > 0


def test_a_failed_rank_stops_the_others_and_the_gang_is_tried_again_once() -> None:
    world = World(n1=4, n2=4)
    world.submit(GANG)
    for rank in (0, 1):
        world.start("1", rank=rank)
    world.end("1", rank=1, code=3)
    assert {(s.task.rank, s.reason) for s in world.stops()} == {(0, "gang-stopped")}
    world.end("1", rank=0, cause=Cause.GANG_STOPPED)
    gang = world.job("1").gangs[0]
    assert (gang.incarnation, gang.restarts, gang.moves, gang.state) == (2, 1, 0, JobState.RUNNING)
    for rank in (0, 1):
        world.start("1", rank=rank)
    world.end("1", rank=0, code=5)
    world.end("1", rank=1, cause=Cause.GANG_STOPPED)
    assert [(row.state, row.restarts, row.exit_code) for row in world.finished] == [("failed", 1, 5)]


@pytest.mark.parametrize("loss", [Cause.NODE_LOST, Cause.SHIM_LOST, Cause.DEVICE_FAILED])
def test_a_loss_moves_the_gang_without_charge_though_its_peer_failed_first(loss: Cause) -> None:
    world = World(n1=4, n2=4)
    world.submit(JobAsk(argv=("train",), gpu_milli=4000, num_nodes=2, max_restarts=0))
    for rank in (0, 1):
        world.start("1", rank=rank)
    world.end("1", rank=0, code=1)
    world.end("1", rank=1, cause=loss)
    world.heartbeat("n1")
    world.heartbeat("n2")
    gang = world.job("1").gangs[0]
    assert (gang.restarts, gang.moves, gang.incarnation) == (0, 1, 2)


def test_an_old_incarnation_is_refused() -> None:
    world = World(n1=4, n2=4)
    world.submit(JobAsk(argv=("x",), gpu_milli=1000, max_restarts=2))
    old = world.launched[TaskKey(JobId("1"), 0, 0)]
    world.start("1")
    world.end("1", code=9)
    assert world.job("1").gangs[0].incarnation == 2
    before = list(world.journal)
    world.hello(
        world.specs[old.node],
        (TaskReport(old.task, 1, TaskPhase.RUNNING, 7),),
    )
    assert [f for f in world.journal[len(before) :] if isinstance(f, GangPlaced | GangRequeued | JobEnded)] == []
    assert (old.task, 1) in {(s.task, s.incarnation) for s in world.stops()}


def test_cancelling_a_waiting_job_ends_it_at_once_and_a_running_one_after_its_tasks() -> None:
    world = World(n1=1)
    world.submit(ONE, JobAsk(name="two", argv=("x",), gpu_milli=1000))
    world.tell(Cancel(JobId("2"), "me"))
    assert [row.id for row in world.finished] == ["2"]
    world.start("1")
    world.tell(Cancel(JobId("1"), "me"))
    assert [s.reason for s in world.stops()] == ["cancelled"]
    assert world.job("1").gangs[0].stopping is StopReason.CANCELLED
    world.end("1", cause=Cause.CANCELLED)
    assert [(row.id, row.state) for row in world.finished] == [("2", "cancelled"), ("1", "cancelled")]


def test_dependencies_start_after_success_and_end_what_can_never_start() -> None:
    world = World(n1=4)
    first = JobAsk(name="first", argv=("x",), gpu_milli=1000)
    good = JobAsk(name="good", argv=("x",), gpu_milli=1000, after=(AfterAsk("first"),))
    bad = JobAsk(name="bad", argv=("x",), after=(AfterAsk("first", DependencyKind.FAILED),))
    last = JobAsk(name="last", argv=("x",), after=(AfterAsk("bad"),))
    world.submit(first, good, bad, last)
    assert [world.job(n).state for n in "1234"] == ["running", "pending", "pending", "pending"]
    world.end("1")
    assert world.job("2").state is JobState.RUNNING
    ends = [(row.id, row.state) for row in world.finished]
    assert ends == [("1", "succeeded"), ("3", "cancelled"), ("4", "cancelled")]
    assert "ended as succeeded" in world.finished[1].message


def test_dependencies_on_finished_jobs_and_on_unknown_ones() -> None:
    world = World(n1=4)
    done = {"7": EndedJob(JobId("7"), JobState.SUCCEEDED), "8": EndedJob(JobId("8"), JobState.FAILED)}
    ask = JobAsk(argv=("x",), after=(AfterAsk("7"),))
    assert world.tell(Submit((ask,), ended=done)) == ("1",)
    refused = world.tell(Submit((JobAsk(argv=("x",), after=(AfterAsk("8"),)),), ended=done))
    assert isinstance(refused, Refusal)
    assert refused.code == "UNKNOWN_DEPENDENCY"
    unknown = world.refused(JobAsk(argv=("x",), after=(AfterAsk("nobody"),)))
    assert (unknown.code, unknown.message) == ("UNKNOWN_DEPENDENCY", "there is no job 'nobody' of tenant default")


def test_a_submission_is_all_or_nothing_and_knows_circles_and_twins() -> None:
    world = World(n1=4)
    too_big = JobAsk(name="big", argv=("x",), gpu_milli=64_000)
    assert world.refused(ONE, too_big).code == "UNSCHEDULABLE"
    assert world.core.book.state.jobs == {}
    a = JobAsk(name="a", argv=("x",), after=(AfterAsk("b"),))
    b = JobAsk(name="b", argv=("x",), after=(AfterAsk("a"),))
    assert world.refused(a, b).code == "DEPENDENCY_CYCLE"
    assert world.refused(ONE, ONE).code == "DUPLICATE_NAME"
    itself = JobAsk(name="a", argv=("x",), after=(AfterAsk("a"),))
    assert world.refused(itself, b).code == "DEPENDENCY_CYCLE"


def test_an_idempotency_key_makes_a_job_once() -> None:
    world = World(n1=4)
    assert world.submit(ONE, key="k", digest="d") == ["1"]
    assert world.submit(ONE, key="k", digest="d") == ["1"]
    assert world.refused(ONE, key="k", digest="other").code == "IDEMPOTENCY_MISMATCH"
    world.end("1")
    assert world.submit(ONE, key="k", digest="d") == ["1"]


def test_a_failed_device_moves_its_gang_and_is_not_given_out_again() -> None:
    world = World(n1=1, n2=1)
    world.submit(ONE)
    home = world.placed_on("1")[0]
    world.start("1")
    world.heartbeat(home, f"{home}-gpu0")
    assert [s.reason for s in world.stops()] == ["device-failed"]
    world.end("1", cause=Cause.DEVICE_FAILED)
    assert world.placed_on("1") != [home]
    gang = world.job("1").gangs[0]
    assert (gang.restarts, gang.moves) == (0, 1)
    world.submit(ONE)
    assert world.job("2").state is JobState.PENDING
    for _ in range(3):
        world.heartbeat(home)
    assert world.placed_on("2") == [home]


def test_a_node_that_vanishes_is_fenced_before_its_tasks_move() -> None:
    world = World(n1=1, n2=1)
    world.submit(ONE)
    home = world.placed_on("1")[0]
    world.start("1")
    world.gone(home)
    world.advance(9.0)
    assert world.fences == []
    world.advance(2.0)
    assert world.fences == [home]
    assert world.placed_on("1") == [home]
    world.tell(Fenced(NodeId(home), proven=False))
    assert world.placed_on("1") == [home]
    world.advance(11.0)
    world.tell(Fenced(NodeId(home), proven=True))
    assert any(isinstance(f, NodeLost) for f in world.journal)
    assert world.placed_on("1") != [home]


def test_a_node_that_returns_settles_what_it_should_run() -> None:
    world = World(n1=3)
    world.submit(*[JobAsk(argv=("x",), gpu_milli=1000) for _ in range(3)])
    spec = world.specs["n1"]
    world.start("1")
    world.start("3")
    world.gone("n1")
    relaunches = [c for c in world.commands if isinstance(c, LaunchTask)]
    keys = [TaskKey(JobId(n), 0, 0) for n in "123"]
    world.hello(spec, (TaskReport(keys[0], 1, TaskPhase.RUNNING, 5),))
    again = [c for c in world.commands if isinstance(c, LaunchTask)][len(relaunches) :]
    assert [(c.task, c.incarnation) for c in again][:1] == [(keys[1], 1)]
    assert world.job("1").gangs[0].incarnation == 1
    assert world.job("3").gangs[0].incarnation == 2
    assert world.job("3").gangs[0].moves == 1


def test_a_rebooted_node_has_lost_its_tasks() -> None:
    world = World(n1=1)
    world.submit(ONE)
    world.start("1")
    world.hello(msgspec.structs.replace(world.specs["n1"], incarnation="boot-2"))
    gang = world.job("1").gangs[0]
    assert (gang.incarnation, gang.moves) == (2, 1)


def test_weights_share_the_pool() -> None:
    world = World(n1=6)
    for name, weight in (("a", 1.0), ("b", 2.0)):
        world.tell(Administer(TenantSet(at=world.now, tenant=Tenant(TenantId(name), weight), by="t"), create=True))
    for name in ("a", "b"):
        world.submit(JobAsk(argv=("x",), tenant=name, gpu_milli=1000, indices=tuple(range(12))))
    for _ in range(60):
        world.now += 10.0
        jobs = list(world.core.book.state.jobs.values())
        running = [(j.id, g.index) for j in jobs for g in j.gangs.values() if g.live]
        if len({j for j, _ in running}) < 2:
            break
        job, gang = min(running, key=lambda r: world.job(r[0]).gangs[r[1]].placed_at or 0.0)
        world.end(job, gang)
        held = world.core.book.state.tenant_held
        if len(running) == 6 and world.now > 1_000_200.0 and len(world.core.book.state.jobs) == 2:
            assert held[TenantId("b")].gpu_milli in (3000, 4000)


def test_limits_hold_and_admin_acts_are_checked() -> None:
    world = World(n1=4)
    tenant = Tenant(TenantId("a"), limit=Quota(gpu_milli=2000))
    add = Administer(TenantSet(at=world.now, tenant=tenant, by="t"), create=True)
    assert world.tell(add) is None
    again = world.tell(add)
    assert isinstance(again, Refusal)
    assert again.code == "DUPLICATE_NAME"
    assert world.refused(JobAsk(argv=("x",), tenant="a", gpu_milli=3000)).code == "QUOTA_EXCEEDED"
    more = Tenant(TenantId("a"), guaranteed=Quota(gpu_milli=2500), limit=Quota(gpu_milli=2000))
    refused = world.tell(Administer(TenantSet(at=world.now, tenant=more, by="t")))
    assert isinstance(refused, Refusal)
    assert (refused.code, refused.field) == ("INVALID_FIELD", "guaranteed")
    assert refused.message == "2.5 guaranteed GPUs are more than the limit of 2"
    cpus = Tenant(TenantId("a"), guaranteed=Quota(cpus_milli=1), limit=Quota(cpus_milli=0))
    refused = world.tell(Administer(TenantSet(at=world.now, tenant=cpus, by="t")))
    assert isinstance(refused, Refusal)
    assert refused.code == "INVALID_FIELD"
    equal = Tenant(TenantId("a"), guaranteed=Quota(2000, 1), limit=Quota(gpu_milli=2000))
    assert world.tell(Administer(TenantSet(at=world.now, tenant=equal, by="t"))) is None
    assert world.refused(JobAsk(argv=("x",), tenant="nobody")).code == "NOT_FOUND"
    world.submit(*[JobAsk(argv=("x",), tenant="a", gpu_milli=1000) for _ in range(3)])
    assert [world.job(n).state for n in "123"] == ["running", "running", "pending"]


def test_quiescing_requeues_what_runs_and_places_nothing_more() -> None:
    world = World(n1=1)
    world.submit(ONE)
    world.start("1")
    world.tell(Quiesce(stop_tasks=True))
    world.end("1", cause=Cause.PREEMPTED)
    world.submit(ONE)
    assert [world.job(n).state for n in "12"] == [JobState.PENDING, JobState.PENDING]
    assert world.job("1").gangs[0].restarts == 0


def test_a_silent_remote_master_is_hosted_here_again() -> None:
    world = World(n1=1, n2=1)
    world.submit(JobAsk(argv=("x",), gpu_milli=1000, indices=(0, 1)))
    node, _, _ = world.masters[JobId("1")]
    world.masters[JobId("1")] = (node, world.masters[JobId("1")][1], _Mute(world.job("1")))  # type: ignore[assignment]
    world.end("1", gang=0)
    world.end("1", gang=1)
    assert world.finished == []
    world.advance(3.0)
    assert [row.state for row in world.finished] == ["succeeded"]


class _Mute:
    """A master that takes everything in and never decides: its host hangs."""

    def __init__(self, job: object) -> None:
        self.job = job

    def handle(self, fact: object) -> tuple[()]:
        del fact
        return ()


def test_the_journal_alone_rebuilds_the_state_and_so_does_a_snapshot() -> None:
    world = World(n1=4, n2=4)
    world.submit(GANG, ONE)
    world.submit(JobAsk(argv=("x",), gpu_milli=500, indices=tuple(range(5)), max_restarts=1), key="k", digest="d")
    world.start("1", rank=0)
    world.start("1", rank=1)
    world.now += 30.0
    world.end("1", rank=0, code=1)
    world.end("1", rank=1, cause=Cause.GANG_STOPPED)
    world.tell(Cancel(JobId("2"), "me"))
    live = world.core.book.image()
    rebuilt = world.replayed().book.image()
    assert msgspec.to_builtins(rebuilt) == msgspec.to_builtins(live)
    decoded = msgspec.msgpack.decode(world.core.image(), type=type(live))
    assert msgspec.to_builtins(decoded) == msgspec.to_builtins(live)


def test_nodes_without_contact_are_not_offered() -> None:
    world = World(n1=1)
    world.gone("n1")
    world.submit(ONE)
    assert world.job("1").state is JobState.PENDING
    world.hello(node_spec("n1", 1))
    assert world.job("1").state is JobState.RUNNING


def test_a_device_that_failed_under_a_task_is_given_to_nobody_before_its_node_looked_again() -> None:
    world = World(n1=1)
    world.submit(ONE, JobAsk(name="two", argv=("x",), gpu_milli=1000))
    world.start("1")
    world.end("1", cause=Cause.DEVICE_FAILED)
    assert [world.job(n).state for n in "12"] == [JobState.PENDING, JobState.PENDING]
    world.heartbeat("n1")
    assert sorted(world.job(n).state.value for n in "12") == ["pending", "running"]
