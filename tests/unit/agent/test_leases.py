"""From when leases run, what extends them and what does not, as the agent's core sees it."""

from __future__ import annotations

import math

import pytest

from corral.agent.inputs import Beat, Connected, Disconnected, KnownTask, TaskFinished
from corral.agent.leases import Leases
from corral.agent.outputs import ExtendLease, Launch, Say, Stop
from corral.model.messages import AcknowledgeHeartbeat, Heartbeat, Hello, SayHello, StopTask, TaskPhase
from tests.unit.agent.handled import Agent, of_type
from tests.unit.agent.words import NODE, exited, key, launch, stop


def ack(sent_s: float, lease_s: float = 0.0, epoch: int = 1) -> AcknowledgeHeartbeat:
    return AcknowledgeHeartbeat(node=NODE, epoch=epoch, sent_boottime_s=sent_s, lease_s=lease_s)


def agent_at(boottime_s: float, **changes: object) -> Agent:
    agent = Agent(**{"epoch": 1, **changes})  # type: ignore[arg-type]
    agent.boottime_s = boottime_s
    agent.tell(Connected())
    return agent


def first_deadline(agent: Agent, job: int, lease_s: float | None) -> float | None:
    [begun] = of_type(agent.command(launch(key(job), lease_s=lease_s)), Launch)
    return begun.deadline_boottime_s


# ---- the pure part -------------------------------------------------------------------------------------------------


def test_a_lease_without_a_confirmed_contact_is_over() -> None:
    leases = Leases()
    assert leases.contact_s is None
    assert leases.deadline_s(90.0) == -math.inf
    assert leases.deadline_s(None) is None


@pytest.mark.parametrize(
    "granted_s, deadline",
    # A grant lengthens leases that are shorter, and shortens none.
    [(0.0, 190.0), (30.0, 190.0), (1800.0, 1900.0)],
)
def test_a_lease_lasts_at_least_as_long_as_was_granted(granted_s: float, deadline: float) -> None:
    leases = Leases()
    assert leases.confirm(100.0, granted_s)
    assert leases.deadline_s(90.0) == deadline


def test_an_older_confirmation_changes_nothing_and_a_newer_one_takes_a_grant_back() -> None:
    leases = Leases()
    leases.confirm(100.0, 1800.0)
    assert not leases.confirm(99.0, 0.0)
    assert not leases.confirm(100.0, 0.0)
    assert leases.deadline_s(90.0) == 1900.0
    assert leases.confirm(101.0, 0.0)
    assert leases.deadline_s(90.0) == 191.0


# ---- the agent -----------------------------------------------------------------------------------------------------


def test_leases_run_from_the_last_acknowledged_message() -> None:
    agent = agent_at(1000.0)
    assert agent.command(ack(1000.0)) == []
    agent.boottime_s = 1003.0
    assert first_deadline(agent, 1, 90.0) == 1090.0
    assert first_deadline(agent, 2, None) is None
    assert agent.command(ack(1002.0)) == [ExtendLease(key(1), 1, 1092.0)]
    # An older echo shortens nothing.
    assert agent.command(ack(1001.0)) == []
    agent.tell(TaskFinished(key(1), 1, exited()))
    assert agent.command(ack(1004.0)) == []


def test_a_connection_alone_is_no_contact() -> None:
    # What takes connections may itself be cut off, and a launch may have waited there for long.
    agent = agent_at(1000.0)
    assert first_deadline(agent, 1, 90.0) == -math.inf
    agent.command(ack(1000.0))
    agent.tell(Disconnected())
    agent.boottime_s = 2000.0
    agent.tell(Connected())
    assert first_deadline(agent, 2, 90.0) == 1090.0


def test_the_hello_can_be_acknowledged_and_the_heartbeat_says_from_where_leases_run() -> None:
    agent = Agent()
    agent.boottime_s = 1000.0
    [hello] = [said.message for said in of_type(agent.tell(Connected()), Say)]
    assert isinstance(hello, Hello)
    assert hello.sent_boottime_s == 1000.0

    def beaten() -> Heartbeat:
        [beat] = [s.message for s in of_type(agent.tell(Beat(0.0)), Say) if isinstance(s.message, Heartbeat)]
        return beat

    assert beaten().contact_boottime_s is None
    agent.command(ack(1000.0))
    assert beaten().contact_boottime_s == 1000.0


def test_a_leader_that_was_deposed_extends_no_lease() -> None:
    agent = agent_at(50.0, epoch=5)
    agent.command(launch(key(), epoch=5, lease_s=90.0))
    assert of_type(agent.command(ack(60.0, epoch=4)), ExtendLease) == []
    assert of_type(agent.command(ack(60.0, epoch=5)), ExtendLease) == [ExtendLease(key(), 1, 150.0)]


def test_what_has_to_end_at_once_gets_no_more_time_and_what_may_save_itself_does() -> None:
    agent = agent_at(1000.0)
    for job in (1, 2):
        agent.command(launch(key(job), lease_s=90.0))
    ghost = StopTask(node=NODE, epoch=1, task=key(1), incarnation=1, reason="cancelled", grace_s=0.0)
    assert agent.command(ghost) == [Stop(key(1), 1, "cancelled", 0.0)]
    agent.command(stop(key(2)))
    assert agent.command(ack(1001.0)) == [ExtendLease(key(2), 1, 1091.0)]


def test_an_older_incarnation_is_not_thawed_by_the_contact_that_brings_the_newer() -> None:
    agent = agent_at(1000.0)
    agent.command(launch(key(1), 1, lease_s=90.0))
    agent.boottime_s = 1200.0
    assert of_type(agent.command(launch(key(1), 2, lease_s=90.0)), Launch) == []
    assert agent.command(ack(1199.0)) == []
    [begun] = of_type(agent.tell(TaskFinished(key(1), 1, exited())), Launch)
    assert begun.deadline_boottime_s == 1289.0


def test_asked_for_it_the_agent_says_hello_again_with_all_its_tasks() -> None:
    agent = agent_at(1000.0)
    agent.command(launch(key(1), lease_s=90.0))
    agent.boottime_s = 1100.0
    [hello] = [said.message for said in of_type(agent.command(SayHello(node=NODE, epoch=1, asked=7)), Say)]
    assert isinstance(hello, Hello)
    assert (hello.sent_boottime_s, hello.asked) == (1100.0, 7)
    assert [report.task for report in hello.tasks] == [key(1)]


def test_a_task_that_an_earlier_run_of_the_agent_left_keeps_its_deadline_until_there_is_contact() -> None:
    left = KnownTask(key(1), 1, TaskPhase.RUNNING, lease_s=90.0)
    agent = agent_at(1000.0, known=[left])
    assert of_type(agent.command(ack(1000.0)), ExtendLease) == [ExtendLease(key(1), 1, 1090.0)]
