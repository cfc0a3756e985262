from __future__ import annotations

from collections.abc import Sequence

from corral.agent.core import AgentCore
from corral.agent.inputs import Beat, Commanded, Connected, Disconnected, Input, TaskBegan, TaskFinished
from corral.agent.outputs import Note, Output, Say
from corral.appmaster.core import AppMasterCore
from corral.appmaster.progress import Progress
from corral.model.events import (
    Decision,
    Fact,
    GangEnded,
    GangPlaced,
    GangRequeued,
    GangStopping,
    JobCancelRequested,
    JobEnded,
    JobSubmitted,
    TaskEnded,
)
from corral.model.ids import JobId, NodeId, TenantId
from corral.model.job import Cause, Job, JobSpec, JobState, StopReason, TaskExit, TaskState
from corral.model.messages import (
    DismissMaster,
    HostMaster,
    MasterDecided,
    MasterProposed,
    TaskReported,
    TellMaster,
    Usage,
)
from corral.model.offer import Offer, Proposal
from corral.model.resources import Demand, GangShape, Placement
from corral.model.transitions import apply_to_job, copy_job, new_job
from corral.ports.master import AppMasterFactory
from tests.unit.agent.words import NODE, exited, identity, key, launch

ELSEWHERE = NodeId("node-2")


def placed_job(nodes: Sequence[NodeId] = (NODE,), restarts: int = 1) -> Job:
    spec = JobSpec("work", TenantId("default"), GangShape(len(nodes), Demand()), argv=("true",), max_restarts=restarts)
    job = new_job(JobSubmitted(at=1.0, job=JobId("1"), spec=spec))
    placements = tuple(Placement(rank, node, (), 1000, 0) for rank, node in enumerate(nodes))
    apply_to_job(job, GangPlaced(at=2.0, job=job.id, gang=0, incarnation=1, placements=placements))
    return job


class Agent:
    def __init__(self, factory: AppMasterFactory = AppMasterCore) -> None:
        self.core = AgentCore(identity(), factory, (), 0)
        self.tell(Connected())

    def tell(self, given: Input) -> list[Output]:
        return self.core.handle(100.0, 50.0, given)

    def host(self, job: Job, generation: int = 7, epoch: int = 1) -> list[Output]:
        command = HostMaster(node=NODE, epoch=epoch, job=copy_job(job), generation=generation)
        return self.tell(Commanded(command))

    def fact(self, fact: Fact, generation: int = 7) -> list[Output]:
        told = TellMaster(node=NODE, epoch=1, job=JobId("1"), generation=generation, fact=fact)
        return self.tell(Commanded(told))

    def run(self, rank: int = 0) -> None:
        self.tell(Commanded(launch(key(rank=rank))))
        self.tell(TaskBegan(key(rank=rank), 1, 77, 10.0))


def said(outputs: list[Output]) -> list[object]:
    return [output.message for output in outputs if isinstance(output, Say)]


def reported(outputs: list[Output]) -> TaskReported:
    [found] = [message for message in said(outputs) if isinstance(message, TaskReported)]
    return found


def test_decisions_travel_with_the_report_of_the_change() -> None:
    agent = Agent()
    assert said(agent.host(placed_job())) == []
    agent.tell(Commanded(launch(key())))
    begun = reported(agent.tell(TaskBegan(key(), 1, 77, 10.0)))
    assert (begun.generation, begun.decisions) == (7, ())
    ended = reported(agent.tell(TaskFinished(key(), 1, exited(0))))
    assert ended.generation == 7
    assert ended.decisions == (
        GangEnded(at=20.0, job=JobId("1"), gang=0, incarnation=1, state=JobState.SUCCEEDED),
        JobEnded(at=20.0, job=JobId("1"), state=JobState.SUCCEEDED),
    )


def test_a_failure_is_decided_by_the_job_s_own_rules() -> None:
    agent = Agent()
    agent.host(placed_job(restarts=1))
    agent.run()
    ended = reported(agent.tell(TaskFinished(key(), 1, exited(3))))
    [decision] = ended.decisions
    assert isinstance(decision, GangRequeued)
    assert decision.counted
    assert decision.avoid == (NODE,)


def test_a_task_that_ended_before_anybody_heard_that_it_began_is_one_report() -> None:
    agent = Agent()
    agent.host(placed_job())
    agent.tell(Commanded(launch(key())))
    ended = reported(agent.tell(TaskFinished(key(), 1, exited(0, started_at=10.0))))
    assert ended.report.started_at == 10.0
    assert len(ended.decisions) == 2


def test_without_a_master_here_a_report_says_that_none_has_heard() -> None:
    agent = Agent()
    agent.run()
    ended = reported(agent.tell(TaskFinished(key(), 1, exited(0))))
    assert (ended.generation, ended.decisions) == (None, ())


def test_facts_of_elsewhere_are_answered_even_when_nothing_follows() -> None:
    agent = Agent()
    agent.host(placed_job([NODE, ELSEWHERE]))
    agent.run()
    lost = TaskEnded(
        at=30.0,
        job=JobId("1"),
        gang=0,
        incarnation=1,
        rank=1,
        state=TaskState.LOST,
        exit=TaskExit(Cause.NODE_LOST, ended_at=30.0),
    )
    [answer] = said(agent.fact(lost))
    assert isinstance(answer, MasterDecided)
    assert answer.generation == 7
    [decision] = answer.decisions
    assert isinstance(decision, GangStopping)
    assert decision.reason is StopReason.RANK_ENDED
    # The same fact again changes nothing, but the controller hears that somebody is there.
    assert said(agent.fact(lost)) == [MasterDecided(node=NODE, job=JobId("1"), generation=7, decisions=())]
    # The decision itself, come back from the journal, needs no answer.
    assert said(agent.fact(decision)) == []
    ended = reported(agent.tell(TaskFinished(key(), 1, TaskExit(Cause.GANG_STOPPED, signal=15, ended_at=31.0))))
    [requeued] = ended.decisions
    assert isinstance(requeued, GangRequeued)
    assert not requeued.counted


def test_what_is_due_on_the_state_alone_is_said_when_hosted() -> None:
    job = placed_job()
    apply_to_job(
        job,
        TaskEnded(at=5.0, job=job.id, gang=0, incarnation=1, rank=0, state=TaskState.SUCCEEDED, exit=exited(0)),
    )
    [answer] = said(Agent().host(job))
    assert isinstance(answer, MasterDecided)
    assert [type(decision) for decision in answer.decisions] == [GangEnded, JobEnded]


def test_only_a_newer_generation_replaces_a_master() -> None:
    agent = Agent()
    agent.host(placed_job(), generation=7)
    agent.host(placed_job(), generation=6)
    assert agent.core.generations == {"1": 7}
    agent.host(placed_job(), generation=8)
    assert agent.core.generations == {"1": 8}
    assert said(agent.fact(JobCancelRequested(at=3.0, job=JobId("1"), by="me"), generation=7)) == []
    agent.tell(Commanded(DismissMaster(node=NODE, epoch=1, job=JobId("1"), generation=7)))
    assert agent.core.generations == {"1": 8}
    agent.tell(Commanded(DismissMaster(node=NODE, epoch=1, job=JobId("1"), generation=8)))
    assert agent.core.generations == {}


def test_masters_go_with_the_connection_and_with_their_leader() -> None:
    agent = Agent()
    agent.host(placed_job(), generation=7)
    agent.tell(Disconnected())
    assert agent.core.generations == {}
    agent.tell(Connected())
    agent.host(placed_job(), generation=7)
    agent.tell(Commanded(launch(key(5), epoch=2)))
    assert agent.core.generations == {}


class Broken:
    """An AppMaster with a fault."""

    def __init__(self, job: Job) -> None:
        self._job = job

    @property
    def job(self) -> Job:
        return self._job

    def propose(self, offer: Offer) -> Proposal:
        raise NotImplementedError

    def handle(self, fact: Fact) -> tuple[Decision, ...]:
        raise RuntimeError("a bug")

    def observe(self, usage: Sequence[Usage], now: float) -> None:
        raise RuntimeError("another bug")

    def revise(self, now: float) -> Proposal | None:
        return None

    def resume(self, now: float, gang: int | None = None) -> tuple[Decision, ...]:
        return ()


def test_a_master_that_raises_is_dropped_and_harms_nobody() -> None:
    agent = Agent(Broken)
    agent.host(placed_job())
    agent.tell(Commanded(launch(key())))
    outputs = agent.tell(TaskBegan(key(), 1, 77, 10.0))
    assert reported(outputs).generation is None
    assert [output.text for output in outputs if isinstance(output, Note)] == [
        "dropped the AppMaster of job 1: RuntimeError: a bug"
    ]
    assert agent.core.generations == {}
    agent.host(placed_job())
    [note] = [output for output in agent.tell(Beat(1.0, (Usage(key(), 1),))) if isinstance(output, Note)]
    assert note.text == "dropped the AppMaster of job 1: RuntimeError: another bug"


def test_masters_watch_the_progress_of_their_tasks() -> None:
    masters: list[AppMasterCore] = []

    def factory(job: Job) -> AppMasterCore:
        masters.append(AppMasterCore(job))
        return masters[-1]

    agent = Agent(factory)
    agent.host(placed_job())
    agent.tell(Beat(1.0, (Usage(key(), 1, progress=0.25), Usage(key(9), 1, progress=0.5))))
    assert masters[0].progress(0, 0) == Progress(0.25, 100.0)


def test_what_a_master_believes_anew_is_said_once() -> None:
    agent = Agent()
    agent.host(placed_job())
    agent.run()

    def proposed(progress: float, at: float) -> list[MasterProposed]:
        usage = Usage(key(), 1, progress=progress, progress_total=1_000.0)
        outputs = agent.core.handle(at, 50.0, Beat(at, (usage,)))
        return [message for message in said(outputs) if isinstance(message, MasterProposed)]

    # The task runs since 100: a hundred units in a hundred seconds, so 900 seconds are left.
    [first] = proposed(100.0, 200.0)
    assert (first.node, first.job, first.generation, first.at) == (NODE, "1", 7, 200.0)
    assert first.proposal.outlooks[0].remaining_s == 900.0
    assert proposed(101.0, 201.0) == []
    agent.tell(Disconnected())
    assert proposed(500.0, 900.0) == []
