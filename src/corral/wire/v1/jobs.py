"""Jobs, gangs and tasks. Times are seconds since the epoch."""

from __future__ import annotations

from collections import Counter

from pydantic import Field

from corral.model import job as model
from corral.model import offer
from corral.wire.v1.base import Answer
from corral.wire.v1.resources import GangShape, Placement
from corral.wire.v1.services import ServingTask


class TaskExit(Answer):
    """How a task ended."""

    cause: model.Cause
    exit_code: int | None
    signal: int | None
    message: str
    started_at: float | None
    ended_at: float | None
    cpu_s: float | None
    rss_max_mib: int | None
    log_bytes: int | None
    blameless: bool = Field(description="the end says nothing against its node: it was started anew or left the pool")


class Task(Answer):
    """One rank of one incarnation of a gang."""

    rank: int
    state: model.TaskState
    placement: Placement | None
    started_at: float | None
    ended_at: float | None
    exit: TaskExit | None


class Preference(Answer):
    """A node and the seconds that a start there costs for data that is not yet there."""

    node: str
    cold_start_s: float


class Bid(Answer):
    """One way to run a gang."""

    shape: GangShape
    locality: offer.Locality
    preferred: list[Preference]
    throughput: float = Field(description="units of work per second")
    confidence: float = Field(description="0..1")
    remaining_s: float | None = Field(description="null when unknown")
    restart_cost_s: float
    checkpoint_age_s: float | None
    tenure_s: float = Field(description="seconds without preemption after a start")


class WorkSpec(Answer):
    """What the job says of its work."""

    total: float | None = Field(description="units of work of one gang")
    family: str | None
    throughput: dict[str, float] = Field(description="claimed units per second by MODEL or MODEL:DEVICES")


class Returned(Answer):
    """A tree of files that came back from a rank of a gang."""

    rank: int
    incarnation: int
    tree: str = Field(description="the name of the tree, to be fetched with POST /v1/files/fetch")
    at: float
    size_bytes: int


class JobFiles(Answer):
    """The files that a job brought along."""

    tree: str
    workdir: bool = Field(description="whether the working directory is among them")
    targets: list[str] = Field(description="the mounts that are among them")


class Gang(Answer):
    """All ranks of one array element."""

    index: int = Field(description="position among the job's gangs; its array index is spec.indices[index]")
    tasks: list[Task]
    state: model.JobState
    incarnation: int = Field(description="rises at each placement")
    queued_at: float
    placed_at: float | None
    started_at: float | None
    ended_at: float | None
    stopping: model.StopReason | None
    restarts: int = Field(description="those charged against max_restarts")
    moves: int = Field(description="restarts that no fault of the job caused")
    avoid: list[str] = Field(description="nodes where it failed, newest last")
    used_gpu_milli_s: float
    lost_gpu_milli_s: float
    waited_s: float
    attained_s: float = Field(description="seconds of service of its ended runs")
    preemptions: int = Field(description="how often it gave way to others, or for its own good")
    bid: Bid | None = Field(description="the bid that it runs on; null when it does not run")
    saved: list[Returned] = Field(description="the newest checkpoints that came back, of each rank")
    outputs: list[Returned] = Field(description="the newest outputs that came back, of each rank")


class Dependency(Answer):
    """A job that has to end first."""

    job: str
    kind: model.DependencyKind


class CheckpointSpec(Answer):
    """How a job is asked to save itself."""

    signal: str
    grace_s: float
    path: str | None


class JobSpec(Answer):
    """A job as admitted, with all defaults applied. Exactly one of argv and script is set."""

    name: str
    tenant: str
    shape: GangShape
    argv: list[str]
    script: str | None
    setup: str | None
    queue: str
    envs: dict[str, str]
    workdir: str | None
    file_mounts: dict[str, str]
    indices: list[int]
    points: list[dict[str, str]]
    is_array: bool
    max_duration_s: float | None
    grace_s: float
    max_restarts: int
    priority: int
    after: list[Dependency]
    data: list[str]
    fencing: model.Fencing
    lease_s: float
    checkpoint: CheckpointSpec | None
    restart_cost_s: float
    shapes: list[GangShape] = Field(description="all sizes of an elastic job, largest first; empty for a rigid one")
    work: WorkSpec | None
    appmaster: str | None = Field(description="the job's own proposer, as module:function")
    files: JobFiles | None = Field(description="what it brought along; null where nodes see its paths")
    outputs: list[str] = Field(description="patterns of the files that come back")
    serving: ServingTask | None = Field(description="what makes it a replica of a service")


class Job(Answer):
    """A job with its gangs and tasks."""

    id: str
    spec: JobSpec
    submitted_at: float
    gangs: dict[int, Gang]
    state: model.JobState
    started_at: float | None
    ended_at: float | None
    cancelled_by: str | None
    message: str
    user: str
    open_gangs: int
    waiting_for: list[str] = Field(description="jobs that have to end first")
    exit_code: int | None = Field(description="set at the end: the code of the exit that decided, 128 + n for signal n")
    exit_cause: model.Cause | None = Field(description="set at the end: the cause of the exit that decided")


class JobSummary(Answer):
    """A job as one row."""

    id: str
    name: str
    tenant: str
    queue: str
    state: model.JobState
    submitted_at: float
    user: str
    priority: int
    started_at: float | None
    ended_at: float | None
    is_array: bool
    elements: int = Field(description="number of gangs")
    counts: dict[str, int] = Field(description="gangs by state; empty for a finished job in a list")
    num_nodes: int
    gpu_milli: int = Field(description="per node")
    gpu_model: str | None
    cpus_milli: int = Field(description="per node")
    memory_mib: int = Field(description="per node")
    nodes: list[str] = Field(description="where its live tasks are")
    restarts: int
    moves: int
    exit_code: int | None = Field(description="of the exit that decided, 128 + n for signal n")
    exit_cause: str | None
    message: str
    progress: float | None = Field(description="0..1, as reported by the tasks of an unfinished job; null: not known")

    @classmethod
    def of(cls, source: model.Job, progress: float | None = None) -> JobSummary:
        """Return the row of a job. Built unchecked: the values come from checked types, and lists are long."""
        spec, gangs = source.spec, source.gangs.values()
        shape = source.size
        demand = shape.demand
        return cls.model_construct(
            id=source.id,
            name=spec.name,
            tenant=spec.tenant,
            queue=spec.queue,
            state=source.state,
            submitted_at=source.submitted_at,
            user=source.user,
            priority=spec.priority,
            started_at=source.started_at,
            ended_at=source.ended_at,
            is_array=spec.is_array,
            elements=len(spec.indices),
            counts=dict(Counter(gang.state.value for gang in gangs)),
            num_nodes=shape.ranks,
            gpu_milli=demand.gpu_milli,
            gpu_model=demand.gpu_model,
            cpus_milli=demand.cpus_milli,
            memory_mib=demand.memory_mib,
            nodes=list(dict.fromkeys(placement.node for gang in gangs for placement in gang.placements)),
            restarts=sum(gang.restarts for gang in gangs),
            moves=sum(gang.moves for gang in gangs),
            exit_code=source.exit_code,
            exit_cause=source.exit_cause.value if source.exit_cause is not None else None,
            message=source.message,
            progress=progress,
        )


class JobRows(Answer):
    """Jobs as rows, newest first."""

    jobs: list[JobSummary]
    next_before: int | None = Field(description="the job number to continue with, null when there are no more")
    total_live: int = Field(description="unfinished jobs in all")


class Submitted(Answer):
    """The jobs of one submission, in its order."""

    jobs: list[JobSummary]


class JournalEntry(Answer):
    """One journaled fact with its place. A fact has kind and at, and what its kind needs."""

    seq: int
    epoch: int
    fact: dict[str, object]


class History(Answer):
    """The journaled facts of a job, oldest first."""

    entries: list[JournalEntry]
