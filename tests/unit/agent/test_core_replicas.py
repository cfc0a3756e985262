"""What an agent's core does about the answers of replicas."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from corral.agent.inputs import (
    Beat,
    Connected,
    DevicesSampled,
    Disconnected,
    KnownTask,
    Probed,
    Question,
    TaskBegan,
    TaskFinished,
)
from corral.agent.outputs import Ask, Hush, Output, Say, Stop
from corral.model.ids import ServiceName
from corral.model.job import Cause, TaskExit
from corral.model.messages import AcknowledgeHeartbeat, Heartbeat, LaunchTask, Readiness, TaskPhase
from corral.model.resources import DeviceState, Health
from corral.model.service import Guard, Probe, ProbeKind, Probes, ServingTask
from tests.unit.agent.handled import Agent, connected, of_type, reports
from tests.unit.agent.words import GPU, NODE, key, launch, stop

READY = Probe(ProbeKind.HTTP, "/ready")
ALIVE = Probe(ProbeKind.HTTP, "/alive", failures=1)


def replica(**changes: Any) -> LaunchTask:
    probes = Probes(readiness=READY, liveness=ALIVE)
    serving = ServingTask(ServiceName("chat"), 1, 1, None, probes, Guard.TOKEN, 30.0)
    return launch(key(), **{"serving": serving, **changes})


def serving(**changes: Any) -> Agent:
    """Return an agent with a replica whose program runs."""
    agent = connected()
    agent.command(replica(**changes))
    assert of_type(agent.tell(TaskBegan(key(), 1, 77, 10.0)), Ask) == [
        Ask(key(), 1, Question.STARTUP, READY, hasty=True)
    ]
    return agent


def answer(agent: Agent, question: Question, fault: str | None = None) -> list[Output]:
    return agent.tell(Probed(key(), 1, question, fault))


def beats(outputs: list[Output]) -> list[Heartbeat]:
    return [said.message for said in of_type(outputs, Say) if isinstance(said.message, Heartbeat)]


def test_readiness_is_told_with_every_heartbeat_and_at_once_when_it_turns() -> None:
    agent = serving()
    agent.tell(Beat(wall_s=100.0, load_1m=0.5, memory_free_mib=7))
    assert beats(answer(agent, Question.STARTUP, "refused")) == []
    agent.now, agent.boottime_s = 107.0, 57.0
    at_once = beats(answer(agent, Question.STARTUP))
    assert [beat.readiness for beat in at_once] == [(Readiness(key(), 1, ready=True, since=107.0),)]
    # What only a second's look tells is as it was.
    assert (at_once[0].sent_boottime_s, at_once[0].wall_s, at_once[0].load_1m) == (57.0, 107.0, 0.5)
    assert beats(answer(agent, Question.READINESS)) == []
    assert beats(agent.tell(Beat(wall_s=108.0)))[0].readiness == at_once[0].readiness


def test_nothing_is_told_of_readiness_without_a_connection() -> None:
    agent = serving()
    agent.tell(Disconnected())
    assert beats(answer(agent, Question.STARTUP)) == []
    agent.tell(Connected())
    assert beats(agent.tell(Beat(wall_s=100.0)))[0].readiness[0].ready


def test_a_replica_that_is_not_alive_is_stopped_once() -> None:
    agent = serving(grace_s=7.0)
    answer(agent, Question.STARTUP)
    outputs = answer(agent, Question.LIVENESS, "HTTP 500")
    assert of_type(outputs, Stop) == [Stop(key(), 1, Cause.UNHEALTHY, 7.0, message="not alive: HTTP 500")]
    assert [beat.readiness[0].ready for beat in beats(outputs)] == [False]
    assert of_type(outputs, Hush) == [Hush(key(), 1)]
    assert answer(agent, Question.LIVENESS, "HTTP 500") == []
    ended = agent.tell(TaskFinished(key(), 1, TaskExit(Cause.UNHEALTHY, signal=15, started_at=10.0, ended_at=20.0)))
    assert reports(ended)[0].phase is TaskPhase.ENDED
    assert beats(agent.tell(Beat(wall_s=100.0)))[0].readiness == ()


def test_a_replica_that_is_told_to_stop_is_asked_no_more() -> None:
    agent = serving()
    answer(agent, Question.STARTUP)
    assert of_type(agent.command(replace(stop(key()), saving_s=300.0)), Hush) == [Hush(key(), 1)]
    assert answer(agent, Question.LIVENESS, "HTTP 500") == []


def test_a_replica_that_was_told_to_stop_before_it_began_is_asked_nothing() -> None:
    agent = connected()
    agent.command(replica())
    agent.command(stop(key()))
    assert of_type(agent.tell(TaskBegan(key(), 1, 77, 10.0)), Ask) == []


def test_a_replica_whose_device_failed_is_asked_no_more() -> None:
    agent = serving()
    outputs = agent.tell(DevicesSampled((DeviceState(GPU, Health.FAILED),)))
    assert of_type(outputs, Hush) == [Hush(key(), 1)]
    assert [order.reason for order in of_type(outputs, Stop)] == [Cause.DEVICE_FAILED]


def test_a_replica_that_is_frozen_for_its_lease_is_not_blamed() -> None:
    agent = connected()
    agent.command(AcknowledgeHeartbeat(node=NODE, epoch=1, sent_boottime_s=50.0))
    agent.command(replica(lease_s=90.0))
    agent.tell(TaskBegan(key(), 1, 77, 10.0))
    answer(agent, Question.STARTUP)
    agent.boottime_s = 140.0
    assert of_type(answer(agent, Question.LIVENESS, "no answer"), Stop) == []
    agent.command(AcknowledgeHeartbeat(node=NODE, epoch=1, sent_boottime_s=139.0))
    assert len(of_type(answer(agent, Question.LIVENESS, "no answer"), Stop)) == 1


def test_only_the_first_rank_of_a_replica_is_asked() -> None:
    agent = connected()
    agent.command(replace(replica(), task=key(rank=1)))
    assert of_type(agent.tell(TaskBegan(key(rank=1), 1, 77, 10.0)), Ask) == []


def test_a_replica_of_an_earlier_agent_is_asked_on() -> None:
    serves = replica().serving
    known = KnownTask(
        key(), 1, TaskPhase.RUNNING, pid=77, started_at=10.0, serving=serves, began_boottime_s=3.0, started_up=True
    )
    agent = Agent(known=[known])
    assert of_type(agent.tell(DevicesSampled(())), Ask) == [
        Ask(key(), 1, Question.READINESS, READY),
        Ask(key(), 1, Question.LIVENESS, ALIVE),
    ]
