"""Contact, devices, reports and remote masters: what the controller makes of what agents say and do not say."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from corral.control.inputs import Administer, Cancel, Fenced, Submit
from corral.model.ask import JobAsk
from corral.model.events import DeviceFailed, DeviceRecovered, Fact, GangStopping, NodeLost, NodeRemoved
from corral.model.ids import JobId, NodeId, TaskKey
from corral.model.job import Cause, JobState, TaskExit, TaskState
from corral.model.messages import (
    Heartbeat,
    LaunchTask,
    MasterDecided,
    TaskPhase,
    TaskReport,
    TaskReported,
    Usage,
)
from corral.model.resources import DeviceState, ForeignProcess, Health
from tests.unit.control.world import World

HALVES = JobAsk(argv=("x",), gpu_milli=500, num_nodes=2, max_restarts=1)


def of_kind(world: World, kind: type[Fact]) -> int:
    return sum(isinstance(fact, kind) for fact in world.journal)


def key(job: str, gang: int = 0, rank: int = 0) -> TaskKey:
    return TaskKey(JobId(job), gang, rank)


# ---- devices -------------------------------------------------------------------------------------------------------


def test_a_device_that_two_ranks_of_a_gang_share_stops_the_gang_once_and_all_others_on_it() -> None:
    world = World(n1=1)
    world.submit(HALVES)
    world.tell(Cancel(JobId("1"), "me"))
    for rank in (0, 1):
        world.end("1", rank=rank, cause=Cause.CANCELLED)
    quarter = JobAsk(argv=("x",), gpu_milli=250, num_nodes=2)
    world.submit(quarter, replace(quarter, num_nodes=1), replace(quarter, num_nodes=1))
    assert world.placed_on("2") == ["n1", "n1"]
    world.heartbeat("n1", "n1-gpu0")
    stopped = [(stop.task.job, stop.task.rank) for stop in world.stops() if stop.reason == "device-failed"]
    assert stopped == [("2", 0), ("2", 1), ("3", 0), ("4", 0)]
    assert of_kind(world, GangStopping) == 4


def test_a_failed_device_comes_back_after_three_healthy_looks_in_a_row() -> None:
    world = World(n1=2)
    spec = world.specs["n1"]

    def look(*healths: Health) -> None:
        devices = tuple(DeviceState(d.uuid, h) for d, h in zip(spec.devices, healths, strict=False))
        world.tell(Heartbeat(node=spec.id, sent_boottime_s=1.0, wall_s=world.now, devices=devices))

    look(Health.FAILED, Health.HEALTHY)
    assert of_kind(world, DeviceFailed) == 1
    for health in (Health.HEALTHY, Health.HEALTHY, Health.SUSPECT, Health.HEALTHY, Health.HEALTHY, Health.UNKNOWN):
        look(health, Health.HEALTHY)
    look(Health.HEALTHY)
    look(Health.HEALTHY)
    # Nobody looked: old looks do not count again.
    look()
    look()
    assert of_kind(world, DeviceRecovered) == 0
    look(Health.HEALTHY)
    assert of_kind(world, DeviceRecovered) == 1
    assert world.core.book.state.nodes[spec.id].failed == {}


def test_devices_with_foreign_processes_are_scheduled_around() -> None:
    world = World(n1=1)
    spec = world.specs["n1"]
    taken = DeviceState(spec.devices[0].uuid, Health.HEALTHY, foreign=(ForeignProcess(77, 100),))
    beat = Heartbeat(node=spec.id, sent_boottime_s=1.0, wall_s=world.now, devices=(taken,))
    world.tell(beat)
    world.submit(JobAsk(argv=("x",), gpu_milli=1000))
    assert world.job("1").state is JobState.PENDING
    world.tell(replace(beat, devices=(replace(taken, foreign=()),)))
    assert world.job("1").state is JobState.RUNNING


# ---- reports -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", [key("1", 0, 7), key("1", 0, -1), key("1", 9, 0), key("9", 0, 0)])
def test_reports_of_tasks_that_do_not_exist_are_answered_and_change_nothing(task: TaskKey) -> None:
    world = World(n1=1)
    world.submit(JobAsk(argv=("x",), gpu_milli=1000))
    before = len(world.journal)
    world.tell(TaskReported(node=NodeId("n1"), report=TaskReport(task, 1, TaskPhase.RUNNING, 7)))
    assert [(stop.task, stop.node) for stop in world.stops()] == [(task, "n1")]
    ended = TaskReport(task, 1, TaskPhase.ENDED, 7, exit=TaskExit(Cause.EXITED, exit_code=0))
    world.tell(TaskReported(node=NodeId("n1"), report=ended))
    assert world.acknowledged() == [task]
    assert len(world.journal) == before


def test_a_report_from_another_node_than_the_placed_one_does_not_count() -> None:
    world = World(n1=1, n2=1)
    world.submit(JobAsk(argv=("x",), gpu_milli=1000))
    home = world.placed_on("1")[0]
    other = NodeId("n2" if home == "n1" else "n1")
    ended = TaskReport(key("1"), 1, TaskPhase.ENDED, 7, exit=TaskExit(Cause.EXITED, exit_code=0))
    world.tell(TaskReported(node=other, report=ended))
    assert world.job("1").gangs[0].tasks[0].state is TaskState.PLACED
    assert world.finished == []


def test_a_rank_of_a_gang_that_is_being_stopped_is_not_launched_again() -> None:
    world = World(n1=2)
    world.submit(JobAsk(argv=("x",), gpu_milli=1000, num_nodes=2, max_restarts=1))
    world.start("1", rank=0)
    world.gone("n1")
    before = len(world.commands)
    # The node has lost rank 0, and rank 1 never reached it.
    world.hello(world.specs["n1"])
    said = world.commands[before:]
    assert world.job("1").gangs[0].incarnation == 2
    assert {c.incarnation for c in said if isinstance(c, LaunchTask)} == {2}


# ---- contact -------------------------------------------------------------------------------------------------------


def test_a_node_that_returns_while_it_is_being_fenced_keeps_what_it_runs() -> None:
    world = World(n1=1, n2=1)
    world.submit(JobAsk(argv=("x",), gpu_milli=1000))
    home = world.placed_on("1")[0]
    world.start("1")
    world.gone(home)
    world.advance(11.0)
    assert world.fences == [home]
    world.hello(world.specs[home], (TaskReport(key("1"), 1, TaskPhase.RUNNING, 5),))
    world.tell(Fenced(NodeId(home), proven=True))
    assert of_kind(world, NodeLost) == 0
    assert world.job("1").gangs[0].incarnation == 1
    # It is gone again: everything begins anew, the fence included.
    world.gone(home)
    world.advance(11.0)
    assert [node for node in world.fences if node == home] == [home, home]
    world.heartbeat("n2" if home == "n1" else "n1")
    world.tell(Fenced(NodeId(home), proven=True))
    world.tell(Fenced(NodeId(home), proven=True))
    assert world.job("1").gangs[0].incarnation == 2


def test_a_silent_node_is_suspect_and_one_heartbeat_brings_it_back() -> None:
    world = World(n1=1)
    world.advance(6.0)
    world.submit(JobAsk(argv=("x",), gpu_milli=1000))
    assert world.job("1").state is JobState.PENDING
    world.heartbeat("n1")
    assert world.job("1").state is JobState.RUNNING
    assert world.fences == []


def test_a_lost_node_that_joins_again_is_offered_again() -> None:
    world = World(n1=1)
    world.gone("n1")
    world.advance(11.0)
    world.tell(Fenced(NodeId("n1"), proven=True))
    assert world.core.book.state.nodes[NodeId("n1")].lost
    world.submit(JobAsk(argv=("x",), gpu_milli=1000))
    assert world.job("1").state is JobState.PENDING
    world.hello(world.specs["n1"])
    assert world.job("1").state is JobState.RUNNING


def test_a_removed_node_leaves_nothing_behind() -> None:
    world = World(n1=1, n2=1)
    world.gone("n1")
    assert world.tell(Administer(NodeRemoved(at=0.0, node=NodeId("n1"), by="me"))) is None
    book = world.core.book
    assert set(book.state.nodes) == set(book.state.held) == set(book.observed.contacts) == {"n2"}
    assert not book.board.view(NodeId("n1")).answering
    assert book.board.capacity.gpu_milli == 1000
    world.advance(20.0)
    assert world.fences == ["n2"]


# ---- remote masters ------------------------------------------------------------------------------------------------


class Stuck:
    """A master that takes facts in and answers nothing, as one that raised and was dropped."""

    def __init__(self, job: object) -> None:
        self.job = job

    def handle(self, fact: object) -> tuple[()]:
        del fact
        return ()


def test_an_answer_to_something_earlier_does_not_hide_a_missing_decision() -> None:
    world = World(n1=2)
    world.submit(JobAsk(argv=("x",), gpu_milli=1000, indices=(0, 1)))
    node, generation, _ = world.masters[JobId("1")]
    world.masters[JobId("1")] = (node, generation, Stuck(world.job("1")))  # type: ignore[assignment]
    world.end("1", gang=0)
    world.end("1", gang=1)
    # The answer to the placement of the second element comes late, and is empty.
    world.tell(MasterDecided(node=node, job=JobId("1"), generation=generation, decisions=()))
    assert world.finished == []
    world.advance(3.0)
    assert [row.state for row in world.finished] == ["succeeded"]


def test_a_decision_of_an_older_generation_is_not_listened_to() -> None:
    world = World(n1=1)
    world.submit(JobAsk(argv=("x",), gpu_milli=1000))
    node, generation, master = world.masters[JobId("1")]
    world.start("1")
    world.tell(Cancel(JobId("1"), "me"))
    (stop,) = [f for f in world.journal if isinstance(f, GangStopping)]
    before = len(world.journal)
    for said in (
        MasterDecided(node=node, job=JobId("1"), generation=generation - 1, decisions=(stop,)),
        MasterDecided(node=NodeId("n9"), job=JobId("1"), generation=generation, decisions=(stop,)),
        MasterDecided(node=node, job=JobId("1"), generation=generation, decisions=(stop,)),
    ):
        world.tell(said)
    assert len(world.journal) == before
    assert master.job.gangs[0].stopping is not None


def test_cancelling_what_was_just_placed_stops_it() -> None:
    world = World(n1=1)
    world.core.handle(world.now, Submit((JobAsk(argv=("x",), gpu_milli=1000),)))
    world.core.settle(world.now)
    world.core.handle(world.now, Cancel(JobId("1"), "me"))
    world.settle()
    assert [(stop.task, stop.reason) for stop in world.stops()] == [(key("1"), "cancelled")]
    world.end("1", cause=Cause.CANCELLED)
    assert [row.state for row in world.finished] == ["cancelled"]


def test_progress_reaches_a_master_that_lives_here() -> None:
    world = World(n1=1)
    world.submit(JobAsk(argv=("x",), gpu_milli=1000))
    world.start("1")
    spec = world.specs["n1"]
    usage = (Usage(key("1"), 1, progress=12.0), Usage(key("7"), 1, progress=1.0))
    beat = Heartbeat(node=spec.id, sent_boottime_s=1.0, wall_s=world.now, usage=usage)
    world.tell(beat)
    world.gone("n1")
    host = world.core.book.masters.host(JobId("1"))
    assert host is not None
    assert host.master is not None
    world.tell(beat)
    assert host.master.progress(0, 0).value == 12.0  # type: ignore[attr-defined]
