from __future__ import annotations

import pytest
from msgspec.structs import replace

from corral.agent.inputs import (
    Beat,
    Connected,
    DevicesSampled,
    Disconnected,
    KnownTask,
    LaunchFailed,
    ShardsListed,
    TaskBegan,
    TaskFinished,
    TaskRemoved,
)
from corral.agent.outputs import ExtendLease, Forget, Launch, Note, Record, SaveEpoch, Say, Stop
from corral.model.ids import DeviceId, NodeId
from corral.model.job import Cause, TaskExit
from corral.model.messages import (
    AcknowledgeHeartbeat,
    Heartbeat,
    Hello,
    TaskPhase,
    TaskReport,
)
from corral.model.resources import DeviceShare, DeviceState, Health
from tests.unit.agent.handled import Agent, connected, of_type, reports
from tests.unit.agent.words import GPU, NODE, OTHER_GPU, acknowledge, exited, key, launch, stop


def test_a_launch_is_done_once_and_then_answered_with_what_is_known() -> None:
    agent = connected()
    command = launch(key())
    assert of_type(agent.command(command), Launch) == [Launch(command)]
    again = agent.command(command)
    assert of_type(again, Launch) == []
    assert reports(again) == [TaskReport(key(), 1, TaskPhase.STARTING)]
    begun = agent.tell(TaskBegan(key(), 1, 77, 10.0))
    assert reports(begun) == [TaskReport(key(), 1, TaskPhase.RUNNING, 77, 10.0)]
    ended = agent.tell(TaskFinished(key(), 1, exited(3)))
    assert reports(ended) == [TaskReport(key(), 1, TaskPhase.ENDED, 77, 10.0, exited(3))]
    assert reports(agent.command(command)) == reports(ended)


def test_a_lower_incarnation_is_refused_for_ever() -> None:
    agent = connected()
    agent.command(launch(key(), 5))
    for incarnation in (4, 1):
        outputs = agent.command(launch(key(), incarnation))
        assert of_type(outputs, Launch) == []
        [report] = reports(outputs)
        assert report.exit is not None
        assert (report.incarnation, report.phase, report.exit.cause) == (
            incarnation,
            TaskPhase.ENDED,
            Cause.LAUNCH_FAILED,
        )


def test_an_acknowledged_incarnation_does_not_run_again() -> None:
    agent = connected()
    agent.command(launch(key()))
    agent.tell(TaskFinished(key(), 1, exited()))
    assert of_type(agent.command(acknowledge(key())), Forget) == [Forget(key(), 1)]
    assert agent.core.reports() == ()
    outputs = agent.command(launch(key()))
    assert of_type(outputs, Launch) == []
    assert [report.phase for report in reports(outputs)] == [TaskPhase.ENDED]


def test_commands_of_an_older_leader_are_refused() -> None:
    agent = connected(epoch=4)
    assert of_type(agent.command(launch(key(), epoch=3)), Launch) == []
    assert of_type(agent.command(launch(key(), epoch=4)), SaveEpoch) == []
    newer = agent.command(launch(key(2), epoch=6))
    assert newer[0] == SaveEpoch(6)
    assert len(of_type(newer, Launch)) == 1
    refused = agent.command(stop(key(), epoch=5))
    assert of_type(refused, Stop) == []
    assert len(of_type(refused, Note)) == 1
    assert agent.core.epoch == 6


def test_a_command_for_another_node_is_refused() -> None:
    agent = connected()
    command = launch(key(), node=NodeId("elsewhere"))
    assert [type(output) for output in agent.command(command)] == [Note]


def test_everything_unacknowledged_is_told_in_every_hello() -> None:
    agent = Agent()
    agent.tell(Connected())
    for job in (1, 2, 3):
        agent.command(launch(key(job)))
    agent.tell(TaskFinished(key(1), 1, exited(1)))
    agent.tell(TaskFinished(key(2), 1, exited(2)))
    agent.command(acknowledge(key(1)))
    agent.tell(Disconnected())
    # Nothing is said into the void.
    assert agent.tell(TaskBegan(key(3), 1, 5, 9.0)) == []
    [said] = of_type(agent.tell(Connected()), Say)
    hello = said.message
    assert isinstance(hello, Hello)
    assert hello.tasks == (
        TaskReport(key(2), 1, TaskPhase.ENDED, None, 10.0, exited(2)),
        TaskReport(key(3), 1, TaskPhase.RUNNING, 5, 9.0),
    )
    assert (hello.node, hello.agent_pid, hello.supervisor_start) == (NODE, 4711, "start-1")


def test_a_stop_of_what_is_unknown_ends_it_and_keeps_it_from_starting() -> None:
    agent = connected()
    outputs = agent.command(stop(key(), 2))
    [report] = reports(outputs)
    assert report.exit is not None
    assert report.exit.cause is Cause.SHIM_LOST
    assert of_type(outputs, Record) == [Record(key(), 2, report.exit)]
    assert of_type(agent.command(launch(key(), 2)), Launch) == []
    assert len(of_type(agent.command(launch(key(), 3)), Launch)) == 1


def test_a_stop_is_passed_on_with_its_cause() -> None:
    agent = connected()
    agent.command(launch(key()))
    assert agent.command(stop(key(), reason="preempted")) == [Stop(key(), 1, "preempted", 3.0)]
    assert agent.command(stop(key(), reason="because")) == [Stop(key(), 1, "cancelled", 3.0)]
    saving = replace(stop(key(), reason="preempted"), saving_s=600.0)
    assert agent.command(saving) == [Stop(key(), 1, "preempted", 3.0, 600.0)]


def test_an_acknowledgement_of_a_running_task_changes_nothing() -> None:
    agent = connected()
    agent.command(launch(key()))
    assert [type(output) for output in agent.command(acknowledge(key()))] == [Note]
    assert len(agent.core.reports()) == 1
    assert agent.command(acknowledge(key(9))) == []


def test_a_newer_incarnation_waits_until_the_older_one_is_gone() -> None:
    agent = connected()
    agent.command(launch(key(), 1))
    newer = launch(key(), 2)
    outputs = agent.command(newer)
    assert of_type(outputs, Launch) == []
    assert of_type(outputs, Stop) == [Stop(key(), 1, Cause.GANG_STOPPED, 0.0)]
    ended = agent.tell(TaskFinished(key(), 1, TaskExit(Cause.GANG_STOPPED, signal=9)))
    assert of_type(ended, Launch) == [Launch(newer)]


def test_a_waiting_incarnation_is_stopped_before_it_starts() -> None:
    agent = connected()
    agent.command(launch(key(), 1))
    agent.command(launch(key(), 2))
    [report] = reports(agent.command(stop(key(), 2)))
    assert report.exit is not None
    assert report.exit.cause is Cause.CANCELLED
    assert of_type(agent.tell(TaskFinished(key(), 1, exited())), Launch) == []


def test_a_task_waits_for_one_that_was_given_up_on_its_device_and_not_for_those_that_share_it() -> None:
    agent = connected()
    agent.command(launch(key(rank=0)))
    agent.command(launch(key(rank=1)))
    agent.command(replace(stop(key(rank=0)), grace_s=0.0))
    waits, elsewhere = launch(key(rank=2)), launch(key(rank=3))
    elsewhere = replace(elsewhere, placement=replace(elsewhere.placement, devices=(DeviceShare(OTHER_GPU, 1000),)))
    assert of_type(agent.command(waits), Launch) == []
    assert of_type(agent.command(elsewhere), Launch) == [Launch(elsewhere)]
    ended = agent.tell(TaskFinished(key(rank=0), 1, TaskExit(Cause.CANCELLED, signal=9)))
    assert of_type(ended, Launch) == [Launch(waits)]


def test_of_three_incarnations_only_the_newest_starts() -> None:
    agent = connected()
    agent.command(launch(key(), 1))
    agent.command(launch(key(), 2))
    third = launch(key(), 3)
    outputs = agent.command(third)
    assert [report.incarnation for report in reports(outputs)] == [2]
    assert of_type(agent.tell(TaskFinished(key(), 1, exited())), Launch) == [Launch(third)]


def test_a_failed_launch_is_recorded_and_reported() -> None:
    agent = connected()
    agent.command(launch(key()))
    outputs = agent.tell(LaunchFailed(key(), 1, "no room"))
    expected = TaskExit(Cause.LAUNCH_FAILED, message="no room", ended_at=100.0)
    assert of_type(outputs, Record) == [Record(key(), 1, expected)]
    assert [report.exit for report in reports(outputs)] == [expected]


def failed(uuid: DeviceId = GPU) -> DevicesSampled:
    return DevicesSampled(
        tuple(
            DeviceState(device, Health.FAILED, detail="XID 79")
            if device == uuid
            else DeviceState(device, Health.HEALTHY)
            for device in (GPU, OTHER_GPU)
        )
    )


def test_a_failed_device_stops_the_tasks_that_hold_it_once() -> None:
    agent = connected()
    agent.command(launch(key(1)))
    assert agent.tell(failed(OTHER_GPU)) == []
    assert agent.tell(failed()) == [Stop(key(1), 1, Cause.DEVICE_FAILED, 2.0)]
    assert agent.tell(failed()) == []
    [report] = reports(agent.tell(TaskFinished(key(1), 1, TaskExit(Cause.DEVICE_FAILED, signal=15, message="stopped"))))
    assert report.exit is not None
    assert report.exit.message == "device GPU-0 failed: XID 79"


@pytest.mark.parametrize(
    "exit_, cause",
    [
        (exited(1), Cause.DEVICE_FAILED),
        (TaskExit(Cause.SIGNAL, signal=6), Cause.DEVICE_FAILED),
        (exited(0), Cause.EXITED),
        (TaskExit(Cause.CANCELLED, signal=15), Cause.CANCELLED),
    ],
)
def test_a_task_that_breaks_on_a_failed_device_is_not_to_blame(exit_: TaskExit, cause: Cause) -> None:
    agent = connected()
    agent.command(launch(key()))
    agent.tell(failed())
    [report] = reports(agent.tell(TaskFinished(key(), 1, exit_)))
    assert report.exit is not None
    assert report.exit.cause is cause


def test_nothing_is_launched_on_a_failed_device() -> None:
    agent = connected()
    agent.tell(failed())
    outputs = agent.command(launch(key()))
    assert of_type(outputs, Launch) == []
    [report] = reports(outputs)
    assert report.exit is not None
    assert report.exit.cause is Cause.DEVICE_FAILED
    assert len(of_type(outputs, Record)) == 1


def test_a_heartbeat_carries_what_was_seen() -> None:
    agent = connected()
    agent.tell(ShardsListed(("a", "b")))
    agent.tell(failed(OTHER_GPU))
    agent.boottime_s = 60.5
    [said] = of_type(agent.tell(Beat(wall_s=7.0, load_1m=0.5, memory_free_mib=100)), Say)
    beat = said.message
    assert isinstance(beat, Heartbeat)
    assert (beat.sent_boottime_s, beat.wall_s, beat.shards) == (60.5, 7.0, ("a", "b"))
    assert (beat.load_1m, beat.memory_free_mib) == (0.5, 100)
    assert [state.health for state in beat.devices] == [Health.HEALTHY, Health.FAILED]
    agent.tell(Disconnected())
    assert agent.tell(Beat(wall_s=8.0)) == []


def test_what_an_earlier_run_left_is_known() -> None:
    agent = connected(
        known=[
            KnownTask(key(1), 2, TaskPhase.ENDED, acknowledged=True),
            KnownTask(key(2), 4, TaskPhase.RUNNING, pid=9, started_at=3.0, devices=(GPU,), lease_s=90.0),
        ]
    )
    assert agent.core.reports() == (TaskReport(key(2), 4, TaskPhase.RUNNING, 9, 3.0),)
    for task, incarnation in ((key(1), 1), (key(1), 2), (key(2), 3), (key(2), 4)):
        assert of_type(agent.command(launch(task, incarnation)), Launch) == []
    assert of_type(agent.tell(failed()), Stop) == [Stop(key(2), 4, Cause.DEVICE_FAILED, 2.0)]
    extended = agent.command(AcknowledgeHeartbeat(node=NODE, epoch=1, sent_boottime_s=60.0))
    assert extended == [ExtendLease(key(2), 4, 150.0)]


def test_a_task_is_forgotten_with_its_directory_but_not_before() -> None:
    agent = connected(known=[KnownTask(key(1), 2, TaskPhase.ENDED, acknowledged=True)])
    agent.tell(TaskRemoved(key(1), 1))
    assert of_type(agent.command(launch(key(1), 2)), Launch) == []
    agent.tell(TaskRemoved(key(1), 2))
    assert len(of_type(agent.command(launch(key(1), 2)), Launch)) == 1


def test_news_of_unknown_tasks_are_dropped() -> None:
    agent = connected()
    assert agent.tell(TaskBegan(key(), 1, 5, 1.0)) == []
    assert agent.tell(TaskFinished(key(), 1, exited())) == []
