"""What `nodes` and `why` say of silence, leases, clocks and processes that do not run."""

from __future__ import annotations

from msgspec.structs import replace

from corral.appmaster.core import AppMasterCore
from corral.control import explaining, reports
from corral.control.core import ControlCore
from corral.model.ids import JobId, NodeId, TaskKey
from corral.model.job import Cause, JobState, TaskExit
from corral.model.messages import Heartbeat, TaskPhase, TaskReport, TaskReported, Usage
from corral.ports.store import JournalEntry, Recovered
from tests.unit.control.silent import EXCLUSIVE, KEY, UNFENCED, pass_time, place, pool
from tests.unit.control.test_return import beat
from tests.unit.control.world import World


def notes(world: World, name: str) -> tuple[str, tuple[str, ...]]:
    [report] = [report for report in reports.nodes(world.core, world.now, None) if report.spec.id == name]
    return report.state, report.notes


def verdict(world: World, job: str = "1") -> str:
    return explaining.why(world.core, world.job(job), 0, world.now, None).verdict


def test_a_silent_node_says_what_is_waited_for() -> None:
    world = pool()
    home, others = place(world, EXCLUSIVE)
    assert notes(world, home) == ("up", ())
    assert verdict(world) == f"runs on {home}"
    pass_time(world, 10.0, *others)
    # Heard for the last time half a second before: 95.18 s from then.
    assert notes(world, home) == ("suspect", ("1 exclusive task there: moved in 85 s, or on proof",))
    assert verdict(world) == (
        f"runs on {home}; {home} does not answer, silent for 10 s: moved when its lease is surely over, in 85 s, "
        "or on proof"
    )
    pass_time(world, 10.0, *others)
    assert notes(world, home) == ("lost", ("1 exclusive task there: moved in 75 s, or on proof",))
    pass_time(world, 80.0, *others)
    assert notes(world, home) == ("lost", ())


def test_a_controller_that_has_just_taken_over_counts_leases_from_its_first_look_on() -> None:
    world = pool()
    home, _ = place(world, EXCLUSIVE)
    entries = [JournalEntry(seq, 1, fact) for seq, fact in enumerate(world.journal, 1)]
    world.core = ControlCore(Recovered(0, None, tuple(entries)), world.config, AppMasterCore, 2)
    assert notes(world, home) == ("suspect", ("1 exclusive task there: moved one lease from now, or on proof",))
    assert verdict(world) == (
        f"runs on {home}; {home} does not answer: moved when its lease is surely over, one lease from now, or on proof"
    )
    world.core.tick(world.now)
    assert notes(world, home) == ("suspect", ("1 exclusive task there: moved in 95 s, or on proof",))


def test_a_task_without_fencing_waits_for_nothing_but_its_node() -> None:
    world = pool()
    home, others = place(world, UNFENCED)
    pass_time(world, 10.0, *others)
    assert notes(world, home) == ("suspect", ())
    assert verdict(world) == f"runs on {home}; {home} does not answer, silent for 10 s: moved when it is given up"


def test_a_wrong_clock_is_told_with_its_consequence() -> None:
    world = pool("n1", "n2")
    for _ in range(6):
        beat(world, "n1", -7.25)
        beat(world, "n2", 0.0)
        world.advance(1.0)
    assert notes(world, "n1") == ("up", ("its clock is 7.2 s behind: no new tasks",))
    assert notes(world, "n2") == ("up", ())
    world.submit(replace(EXCLUSIVE, num_nodes=2))
    constraints = explaining.why(world.core, world.job("1"), 0, world.now, None).constraints
    assert {c.node: c.blocks for c in constraints}[NodeId("n1")] == ("its clock is 7.2 s behind",)


def test_a_main_process_that_does_not_run_is_told_until_it_does() -> None:
    world = pool()
    home, _ = place(world, EXCLUSIVE)

    def say(halted: str | None, task: TaskKey = KEY) -> None:
        usage = (Usage(task, 1, halted=halted),)
        world.tell(Heartbeat(node=NodeId(home), sent_boottime_s=1.0, wall_s=world.now, usage=usage))

    say("its main process is stopped by a signal")
    assert verdict(world) == f"runs on {home}; its main process is stopped by a signal"
    say(None)
    assert verdict(world) == f"runs on {home}"
    say("its main process is stopped by a signal")
    world.end("1")
    assert world.core.book.observed.halted == {}
    say("its main process is stopped by a signal", TaskKey(JobId("7"), 0, 0))
    assert world.core.book.observed.halted == {}


FULL = "its disk is full: 3 MiB are free for /pool"


def test_a_node_that_can_start_nothing_gets_no_tasks_and_says_why() -> None:
    world = pool("n1", "n2")
    home, _ = place(world, replace(EXCLUSIVE, gpu_milli=1000))
    unfit = Heartbeat(node=NodeId(home), sent_boottime_s=1.0, wall_s=world.now, unfit=FULL)
    world.tell(unfit)
    assert notes(world, home) == ("up", (f"{FULL}: no new tasks",))
    world.submit(replace(EXCLUSIVE, num_nodes=2, gpu_milli=3000))
    assert world.job("2").state is JobState.PENDING
    assert FULL in str(explaining.why(world.core, world.job("2"), 0, world.now, None))
    # What runs there runs on.
    assert verdict(world) == f"runs on {home}"
    world.tell(replace(unfit, unfit=""))
    assert notes(world, home) == ("up", ())
    assert world.job("2").state is JobState.RUNNING


def test_a_launch_that_found_no_room_is_not_the_jobs_and_is_not_tried_there_again() -> None:
    world = pool("n1")
    world.submit(EXCLUSIVE)
    launch = world.launched[KEY]
    failed = TaskReport(
        KEY, launch.incarnation, TaskPhase.ENDED, exit=TaskExit(Cause.NODE_UNFIT, message=FULL, ended_at=world.now)
    )
    world.tell(TaskReported(node=launch.node, report=failed))
    assert (world.job("1").state, world.job("1").gangs[0].restarts) == (JobState.PENDING, 0)
    assert notes(world, "n1") == ("up", (f"{FULL}: no new tasks",))
    world.advance(60.0)
    assert world.launched[KEY] == launch
    world.tell(Heartbeat(node=launch.node, sent_boottime_s=1.0, wall_s=world.now))
    world.advance(60.0)
    assert world.launched[KEY].incarnation == launch.incarnation + 1
