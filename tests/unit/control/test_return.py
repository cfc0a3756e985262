"""Nodes that come back after silence, and clocks that are wrong."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from corral.control.inputs import Cancel
from corral.model.events import GangPlaced, TaskEnded
from corral.model.ids import JobId, NodeId
from corral.model.job import Cause, JobState, TaskExit, TaskState
from corral.model.messages import (
    AcknowledgeHeartbeat,
    Heartbeat,
    SayHello,
    StopTask,
    TaskPhase,
    TaskReport,
    TaskReported,
)
from tests.unit.control.silent import EXCLUSIVE, KEY, UNFENCED, again, hello_of, pass_time, place, pool, running
from tests.unit.control.world import World

# ---- a node that returns -------------------------------------------------------------------------------------------


def test_a_node_that_returns_in_time_keeps_what_it_runs() -> None:
    world = pool()
    home, others = place(world, EXCLUSIVE)
    pass_time(world, 80.0, *others)
    assert world.core.book.state.nodes[NodeId(home)].lost
    hello_of(world, home, running(), sent_s=77.0)
    assert [c.sent_boottime_s for c in world.commands if isinstance(c, AcknowledgeHeartbeat)][-1] == 77.0
    pass_time(world, 120.0, *world.specs)
    assert world.job("1").gangs[0].incarnation == 1
    assert not world.core.book.state.nodes[NodeId(home)].lost
    assert world.stops() == []


def test_what_was_replaced_is_stopped_before_its_node_is_acknowledged() -> None:
    world = pool()
    home, others = place(world, EXCLUSIVE)
    pass_time(world, 100.0, *others)
    assert again(world)
    before = len(world.commands)
    # Its connection was there all the time; the agent had been stopped.
    world.heartbeat(home)
    assert world.commands[before:] == [SayHello(node=NodeId(home), epoch=1, asked=1)]
    hello_of(world, home, running())
    said = [c for c in world.commands[before:] if c.node == home and not isinstance(c, SayHello)]
    assert [type(command) for command in said[:2]] == [StopTask, AcknowledgeHeartbeat]
    stop = said[0]
    assert isinstance(stop, StopTask)
    assert (stop.task, stop.incarnation, stop.grace_s, stop.saving_s) == (KEY, 1, 0.0, 0.0)
    assert again(world)


def test_a_hello_from_before_launches_that_were_on_their_way_does_not_bring_a_node_back() -> None:
    world = pool()
    home, others = place(world, EXCLUSIVE)
    pass_time(world, 100.0, *others)
    assert again(world)
    world.heartbeat(home)
    before = len(world.commands)
    # The agent was stopped: it answers a wish of long ago first, then it launches what it was sent after that.
    hello_of(world, home, asked=0)
    assert world.commands[before:] == []
    assert world.core.book.state.nodes[NodeId(home)].lost
    hello_of(world, home, running(), asked=1)
    assert [type(c) for c in world.commands[before:] if c.node == home][:2] == [StopTask, AcknowledgeHeartbeat]
    assert not world.core.book.state.nodes[NodeId(home)].lost


def test_a_second_answer_to_one_wish_ends_nothing_that_was_launched_since_the_first() -> None:
    world = pool()
    home, others = place(world, EXCLUSIVE)
    pass_time(world, 100.0, *others)
    # The agent was stopped: what it had said waits to be read, two heartbeats and then the answer to each.
    world.heartbeat(home)
    world.heartbeat(home)
    hello_of(world, home, running(), asked=1)
    for _ in range(3):
        world.submit(EXCLUSIVE)
    [there] = [job for job in ("2", "3", "4") if world.placed_on(job) == [home]]
    world.tell(Cancel(JobId(there), "me"))
    before = len(world.journal)
    # It does not know yet of the launch and the stop that are on their way to it.
    hello_of(world, home, running(), asked=1)
    assert [fact for fact in world.journal[before:] if isinstance(fact, TaskEnded)] == []
    assert world.job(there).gangs[0].live


def test_an_answer_from_before_the_connection_broke_is_none_to_the_wish_of_after() -> None:
    world = pool()
    home, _ = place(world, EXCLUSIVE)
    world.gone(home)
    world.heartbeat(home)
    world.heartbeat(home)
    hello_of(world, home, running(), asked=1)
    world.submit(replace(EXCLUSIVE, num_nodes=3))
    assert home not in world.placed_on("2")
    world.gone(home)
    before = len(world.commands)
    hello_of(world, home, running(), asked=1)
    assert world.commands[before:] == []
    hello_of(world, home, running(), asked=2)
    assert [type(c) for c in world.commands[before:] if c.node == home][:1] == [AcknowledgeHeartbeat]


def test_a_ghost_that_reports_itself_is_stopped_also_before_it_was_placed_anew() -> None:
    world = pool("n1", "n2", "n3")
    home, others = place(world, EXCLUSIVE)
    for name in others:
        world.submit(replace(EXCLUSIVE, gpu_milli=4000, max_duration_s=10_000.0))
        assert name
    pass_time(world, 100.0, *others)
    # Its place is taken: it waits, as incarnation 1 still.
    assert world.job("1").gangs[0].tasks[0].state in (TaskState.PENDING, TaskState.LOST)
    world.tell(TaskReported(node=NodeId(home), report=running()))
    assert (KEY, 1) in [(stop.task, stop.incarnation) for stop in world.stops()]


def test_the_end_of_an_old_incarnation_is_acknowledged_and_changes_nothing() -> None:
    world = pool()
    home, others = place(world, EXCLUSIVE)
    pass_time(world, 100.0, *others)
    facts = len(world.journal)
    ended = TaskReport(KEY, 1, TaskPhase.ENDED, 5, exit=TaskExit(Cause.EXITED, exit_code=0, started_at=1.0))
    hello_of(world, home, ended)
    assert world.acknowledged()[-1] == KEY
    assert again(world)
    assert not [fact for fact in world.journal[facts:] if isinstance(fact, TaskEnded | GangPlaced)]


def test_heartbeats_of_a_node_that_was_given_up_are_not_acknowledged() -> None:
    world = pool()
    home, others = place(world, UNFENCED)
    pass_time(world, 20.0, *others)
    before = len(world.commands)
    world.tell(Heartbeat(node=NodeId(home), sent_boottime_s=500.0, wall_s=world.now))
    assert not [c for c in world.commands[before:] if isinstance(c, AcknowledgeHeartbeat)]
    assert not world.core.book.board.view(NodeId(home)).answering


# ---- clocks --------------------------------------------------------------------------------------------------------


def beat(world: World, name: str, skew_s: float) -> None:
    world.tell(Heartbeat(node=NodeId(name), sent_boottime_s=1.0, wall_s=world.now + skew_s))


@pytest.mark.parametrize("skew_s, out", [(1.9, False), (-1.9, False), (2.1, True), (-2.1, True)])
def test_a_node_with_a_wrong_clock_gets_no_new_tasks_and_keeps_its_own(skew_s: float, out: bool) -> None:
    world = pool("n1", "n2")
    home, others = place(world, replace(EXCLUSIVE, gpu_milli=1000))
    for _ in range(6):
        beat(world, home, skew_s)
        beat(world, others[0], 0.0)
        world.advance(1.0)
    world.submit(replace(EXCLUSIVE, num_nodes=2, gpu_milli=3000))
    assert (world.job("2").state is JobState.PENDING) is out
    assert world.job("1").gangs[0].tasks[0].state is TaskState.RUNNING
    for _ in range(6):
        beat(world, home, 0.0)
        beat(world, others[0], 0.0)
        world.advance(1.0)
    assert world.job("2").state is JobState.RUNNING


def test_a_clock_that_is_seen_to_be_wrong_counts_at_once() -> None:
    world = pool("n1", "n2")
    beat(world, "n1", 10.0)
    world.submit(replace(EXCLUSIVE, num_nodes=2))
    assert world.job("1").state is JobState.PENDING


def test_a_message_that_was_delayed_makes_no_clock_wrong() -> None:
    world = pool("n1", "n2")
    for late_s in (0.1, 7.0, 5.0, 0.2, 9.0):
        beat(world, "n1", -late_s)
        beat(world, "n2", 0.0)
        world.advance(1.0)
    world.submit(replace(EXCLUSIVE, num_nodes=2))
    assert world.job("1").state is JobState.RUNNING


def test_a_controller_whose_own_clock_is_wrong_keeps_nobody_out_and_says_so() -> None:
    world = pool("n1", "n2", "n3")
    for _ in range(6):
        for name, skew_s in (("n1", 30.0), ("n2", 30.4), ("n3", 29.8)):
            beat(world, name, skew_s)
        world.advance(1.0)
    world.submit(replace(EXCLUSIVE, num_nodes=3))
    assert world.job("1").state is JobState.RUNNING
    assert world.notices == ["the clock of this machine is 30.0 s behind most nodes"]


def test_a_step_of_the_controllers_wall_clock_is_no_skew_of_the_nodes() -> None:
    world = pool("n1", "n2")
    for _ in range(6):
        # The controller's own time goes on from where it was; the wall clock of its machine was set right.
        world.core.tick(world.now, 50.0)
        for name in world.specs:
            beat(world, name, 50.0)
        world.now += 1.0
    world.submit(replace(EXCLUSIVE, num_nodes=2))
    assert world.job("1").state is JobState.RUNNING
