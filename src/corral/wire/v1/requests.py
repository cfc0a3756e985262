"""What clients send: a job as a document, and the small requests. Query parameters are models too."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from corral.wire.fields import TEXT_BYTES_MAX
from corral.wire.request import JOBS_MAX
from corral.wire.v1.base import Question

Scalar = str | int | float | bool
Quantity = str | int | float


class Resources(Question):
    """What each node of a job gets."""

    accelerators: Quantity | list[int] | dict[str, Quantity | list[int]] | None = Field(
        default=None,
        description="devices per node; a range or a list makes the job elastic",
        examples=["H100:8", {"H100": 8}, 8, "H100:0.5", "H100:2-8", {"H100": [2, 4, 8]}],
    )
    cpus: Quantity | None = Field(default=None, description="CPUs per node", examples=[4, 0.5, "500m"])
    memory: Quantity | None = Field(
        default=None, description="memory per node; a bare number is GiB", examples=["32GB", "512MiB", 16]
    )


class Checkpoint(Question):
    """How a job is asked to save itself."""

    signal: str | None = Field(default=None, description="the signal's name", examples=["USR1"])
    grace: Quantity | None = Field(default=None, description="how long it may take", examples=["60s"])
    path: str | None = Field(default=None, description="where it writes")


class Work(Question):
    """What a job says of its work."""

    total: Quantity | None = Field(default=None, description="units of work of one gang", examples=[90_000])
    family: str | None = Field(
        default=None, max_length=128, description="jobs that go equally fast on equal devices; the job's name"
    )
    throughput: dict[str, Quantity] | None = Field(
        default=None,
        description="units per second by device model, or by model and devices of the whole gang",
        examples=[{"V100": 12.0, "V100:4": 40.0}],
    )


class Files(Question):
    """The files that a job brings along, sent before with POST /v1/files/blobs."""

    tree: str = Field(pattern="^[0-9a-f]{64}$", description="the name of the tree")
    workdir: bool = Field(default=True, description="whether the working directory is in it")
    targets: list[str] = Field(default=[], description="the mounts that are in it")


After = str | int | dict[str, Literal["succeeded", "ended", "failed"]]


class JobRequest(Question):
    """A job: the fields of a job file. What is left out gets the pool's default.

    This class documents the schema. Jobs are read by :mod:`corral.wire.request`, whose rules and messages are the same
    for files, flags, the SDK and HTTP; a test holds the two against each other.
    """

    name: str | None = Field(default=None, max_length=128, description="no blanks, not a number")
    tenant: str | None = Field(default=None, max_length=128, description="the token's tenant; an admin may name any")
    queue: str | None = Field(default=None, max_length=128)
    resources: Resources | None = None
    num_gpus: Quantity | list[int] | None = Field(
        default=None,
        description="short for resources.accelerators without a model",
        examples=[2, "2-8", [2, 4, 8]],
    )
    num_nodes: Annotated[int, Field(ge=1)] | str | list[int] | None = Field(
        default=None,
        description="tasks that start together, each on its own share; a range or a list makes the job elastic",
        examples=[4, "1-4", [1, 2, 4]],
    )
    setup: str | None = Field(
        default=None, max_length=TEXT_BYTES_MAX, description="a shell script that runs before run"
    )
    run: Annotated[str, Field(max_length=TEXT_BYTES_MAX)] | list[Scalar] = Field(
        description="a shell script, or a program and its arguments", examples=["python train.py", ["sleep", 10]]
    )
    envs: dict[str, Scalar] | None = Field(default=None, description="names that begin with CORRAL_ are refused")
    workdir: str | None = Field(default=None, max_length=4096, description="an absolute path on the nodes")
    file_mounts: dict[str, str] | None = Field(
        default=None, description="from a target inside the task's directory to an absolute source path"
    )
    array: Quantity | list[int] | None = Field(
        default=None, description="indices, or a number of elements", examples=["0-23", "0-23:2", 24, [1, 5, 7]]
    )
    sweep: dict[str, Scalar | list[Scalar]] | list[dict[str, Scalar]] | None = Field(
        default=None,
        description="values by parameter, of which all combinations run, or a list of points",
        examples=[{"C": [0.1, 1], "GAMMA": [0.01, 0.1]}],
    )
    max_duration: Quantity | None = Field(default=None, description="seconds, or", examples=["2h30m", "1-00:00:00"])
    grace: Quantity | None = Field(default=None, description="from SIGTERM to SIGKILL")
    max_restarts: int | None = Field(default=None, ge=0, description="after faults of the job itself")
    priority: int | None = Field(default=None, description="among the tenant's own jobs and within its share")
    after: After | list[After] | None = Field(
        default=None, description="jobs that end first, by number or name", examples=["prepare", {"prepare": "ended"}]
    )
    data: str | list[str] | None = Field(default=None, description="names of the data shards that the job reads")
    fencing: Literal["exclusive", "none"] | None = Field(
        default=None, description="whether a task may go on without contact to the pool"
    )
    lease: Quantity | None = Field(default=None, description="how long an exclusive task may be without contact")
    checkpoint: Checkpoint | None = None
    restart_cost: Quantity | None = Field(
        default=None, description="what a restart costs, from the stop to the first new step", examples=["45s"]
    )
    work: Work | None = None
    appmaster: str | None = Field(
        default=None,
        max_length=256,
        description="the job's own proposer, found in workdir",
        examples=["my_module:propose"],
    )
    outputs: str | list[str] | None = Field(
        default=None,
        description="patterns of files below the working directory that come back at the end",
        examples=[["results/*.json", "logs/**"]],
    )
    files: Files | None = Field(default=None, description="what was sent along; clients write this")
    user: str | None = Field(default=None, description="who submits, for information")


class SubmitRequest(Question):
    """Jobs that are admitted together or not at all."""

    jobs: list[JobRequest] = Field(min_length=1, max_length=JOBS_MAX)


class NewNodes(Question):
    """Further nodes like an existing one."""

    count: int = Field(ge=1, le=10_000)
    like: str | None = Field(default=None, description="a node of the pool; the one with the most devices")


class PlanRequest(Question):
    """Changes that are tried together on a copy of the pool. A user may only try jobs."""

    jobs: list[dict[str, Any]] = Field(default=[], max_length=JOBS_MAX, description="as those that are submitted")
    weights: dict[str, Annotated[float, Field(gt=0, le=1e9)]] = Field(default={}, description="of tenants")
    drain: list[str] = Field(default=[], description="nodes to empty")
    add: list[NewNodes] = Field(default=[], description="nodes to try in addition")
    horizon_s: float = Field(default=7 * 86_400.0, ge=60, le=90 * 86_400.0, description="how far to look")


class MaintenanceRequest(Question):
    """How long the controller may be away, and why."""

    duration_s: float = Field(ge=60.0, le=7 * 86_400.0, allow_inf_nan=False)
    reason: str = Field(default="", max_length=256)


class CordonRequest(Question):
    """Why a node gets no new tasks, and what becomes of those that run there."""

    reason: str = Field(default="", max_length=256)
    drain: bool = Field(default=False, description="have them save themselves, stop them and queue their jobs again")


class StopRequest(Question):
    """What becomes of live tasks: refuse to stop, stop them (their jobs are queued again), or let them run on."""

    tasks: Literal["refuse", "stop", "leave"] = "refuse"


class JobsQuery(Question):
    """Which jobs to list."""

    live: bool = Field(default=True, description="unfinished jobs")
    finished: bool = Field(default=False, description="finished jobs")
    tenant: str | None = Field(default=None, max_length=128)
    name: str | None = Field(default=None, max_length=128)
    state: Literal["pending", "running", "succeeded", "failed", "cancelled"] | None = None
    since: float | None = Field(default=None, allow_inf_nan=False, description="unfinished, or ended at or after")
    before: int | None = Field(default=None, ge=0, le=2**53, description="job numbers below, for the next page")
    limit: int = Field(default=100, ge=1, le=10_000)


class JobQuery(Question):
    """Which gangs of a job to show."""

    gangs_from: int = Field(default=0, ge=0)
    gangs_max: int = Field(default=1_000, ge=0, le=10_000)


class WaitQuery(Question):
    """How long to wait."""

    timeout_s: float = Field(default=20.0, ge=0, le=3_600, allow_inf_nan=False)


class LogQuery(Question):
    """Which part of which task's log."""

    rank: int | None = Field(default=None, ge=0, le=1_000_000, description="rank 0 unless given")
    incarnation: int | None = Field(
        default=None, ge=1, le=2**53, description="which start of the task, the newest unless given"
    )
    offset: int = Field(default=0, ge=0, le=2**53, description="first byte of that incarnation's log")
    limit: int = Field(default=1 << 20, ge=1, le=4 << 20, description="bytes at most (not for streams)")
    follow: bool = Field(default=False, description="a stream until the job ended; also asked for by Accept")


class EventsQuery(Question):
    """Which facts to stream."""

    job: str | None = Field(default=None, max_length=128, description="one job's; the stream ends with it")
    after_seq: int | None = Field(default=None, ge=0, le=2**53, description="begin after this one, else from now")


class LimitQuery(Question):
    """How many lines."""

    limit: int = Field(default=100, ge=1, le=10_000)


class LedgerQuery(Question):
    """How far back. A week is kept."""

    hours: float = Field(default=24.0, ge=1, le=168)


class UsageQuery(Question):
    """Which hours of whom."""

    since: float = Field(allow_inf_nan=False, ge=0, le=1e11, description="seconds since the epoch")
    until: float = Field(allow_inf_nan=False, ge=0, le=1e11, description="seconds since the epoch")
    tenant: str | None = Field(default=None, max_length=128)
