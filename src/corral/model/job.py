"""Jobs, gangs and tasks: what was asked for and how far it is."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from corral.model.experience import WorkSpec
from corral.model.files import JobFiles, Returned
from corral.model.ids import DEFAULT_QUEUE, GangKey, JobId, NodeId, QueueName, TaskKey, TenantId
from corral.model.offer import Bid
from corral.model.resources import Amount, GangShape, Placement
from corral.model.serving import ServingTask


class Fencing(StrEnum):
    """What losing contact means (architecture, decision 4)."""

    EXCLUSIVE = "exclusive"
    NONE = "none"


class TaskState(StrEnum):
    """The states of a task, in the order in which they are passed."""

    PENDING = "pending"
    PLACED = "placed"
    STARTING = "starting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    LOST = "lost"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Return whether the task can never run again in this incarnation."""
        return self in _ENDED

    @property
    def holds(self) -> bool:
        """Return whether the task holds its placement."""
        return self in _HOLDING


_ENDED = frozenset({TaskState.SUCCEEDED, TaskState.FAILED, TaskState.LOST, TaskState.CANCELLED})
_HOLDING = frozenset({TaskState.PLACED, TaskState.STARTING, TaskState.RUNNING})


class JobState(StrEnum):
    """The states of a job; a gang uses the same."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Return whether this is a final state."""
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


class Cause(StrEnum):
    """Why a task ended."""

    EXITED = "exited"
    SIGNAL = "signal"
    MAX_DURATION = "max-duration"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"
    EXEC_FAILED = "exec-failed"
    SETUP_FAILED = "setup-failed"
    LAUNCH_FAILED = "launch-failed"
    MEMORY = "memory"
    LEASE_EXPIRED = "lease-expired"
    GANG_STOPPED = "gang-stopped"
    DEVICE_FAILED = "device-failed"
    SHIM_LOST = "shim-lost"
    NODE_LOST = "node-lost"
    NODE_UNFIT = "node-unfit"
    """Its node can start no task: its disk is full or cannot be written."""
    UNHEALTHY = "unhealthy"
    """A replica that did not start up in time, or whose liveness was bad."""


SIGNAL_BASE = 128
"""Shells report a death by signal n as 128 + n (POSIX.1-2017, 2.8.2)."""

TIMED_OUT_CODE = 124
"""What timeout(1) of coreutils returns for a command whose time was over."""

NOT_STARTED_CODE = 127
"""What a shell returns for a command that it cannot find (POSIX.1-2017, 2.8.2)."""


class TaskExit(msgspec.Struct, frozen=True):
    """How a task ended. Exactly one of ``exit_code`` and ``signal`` is set when the process ran to an end.

    ``blameless`` is an end that says nothing against the node: it was started anew, or left the pool.
    """

    cause: Cause
    exit_code: int | None = None
    signal: int | None = None
    message: str = ""
    started_at: float | None = None
    ended_at: float | None = None
    cpu_s: float | None = None
    rss_max_mib: int | None = None
    log_bytes: int | None = None
    blameless: bool = False

    @property
    def ok(self) -> bool:
        """Return whether the process ended by itself with code 0."""
        return self.cause is Cause.EXITED and self.exit_code == 0

    @property
    def code(self) -> int:
        """Return the code as a shell reports it: 128 + n for a death by signal n. Never 0 unless ``ok``.

        A process that was only stopped may end with 0, and some ends have no process: then the cause decides. A time
        limit gives 124 as timeout(1) of coreutils does, unless the process ended with an error of its own; too much
        memory 137, a command that could not be started 127, any other cause 1.
        """
        if self.cause is Cause.MEMORY:
            return SIGNAL_BASE + 9
        if self.cause is Cause.MAX_DURATION:
            return self.exit_code or TIMED_OUT_CODE
        if self.signal is not None:
            return SIGNAL_BASE + self.signal
        if self.ok:
            return 0
        return self.exit_code or (NOT_STARTED_CODE if self.cause is Cause.EXEC_FAILED else 1)


_LOST = frozenset({
    Cause.SHIM_LOST, Cause.NODE_LOST, Cause.NODE_UNFIT, Cause.LAUNCH_FAILED, Cause.LEASE_EXPIRED, Cause.DEVICE_FAILED,
})  # fmt: skip
_CANCELLED = frozenset({Cause.CANCELLED, Cause.GANG_STOPPED, Cause.PREEMPTED})


def end_state(exit_: TaskExit) -> TaskState:
    """Return the state in which a task is that ended like this."""
    if exit_.ok:
        return TaskState.SUCCEEDED
    if exit_.cause in _LOST:
        return TaskState.LOST
    return TaskState.CANCELLED if exit_.cause in _CANCELLED else TaskState.FAILED


class DependencyKind(StrEnum):
    """When a dependency lets its job go: after success (default), after any end, after failure."""

    SUCCEEDED = "succeeded"
    ENDED = "ended"
    FAILED = "failed"


class Dependency(msgspec.Struct, frozen=True):
    """A job that has to end first."""

    job: JobId
    kind: DependencyKind = DependencyKind.SUCCEEDED


class CheckpointSpec(msgspec.Struct, frozen=True):
    """How a job is asked to save itself: the signal name without ``SIG``, its grace and where it writes."""

    signal: str = "USR1"
    grace_s: float = 60.0
    path: str | None = None


class JobSpec(msgspec.Struct, frozen=True):
    """A job as admitted: complete, with all defaults applied.

    Exactly one of ``argv`` (run as it is, without a shell) and ``script`` (run by ``bash -c``) is set. ``points`` holds
    one environment per gang (the array index is ``indices[gang]``). ``data`` names the shards that the job reads.
    ``shapes`` are all sizes of an elastic job, largest first and ``shape`` among them; empty for a rigid one.
    ``appmaster`` is the user's own proposer (``module:function``). ``files`` are those that travel to its nodes,
    ``outputs`` the patterns (relative to the working directory) of those that come back. ``serving`` is set of a
    job that is a replica of a service.
    """

    name: str
    tenant: TenantId
    shape: GangShape
    argv: tuple[str, ...] = ()
    script: str | None = None
    setup: str | None = None
    queue: QueueName = DEFAULT_QUEUE
    envs: dict[str, str] = {}
    workdir: str | None = None
    file_mounts: dict[str, str] = {}
    indices: tuple[int, ...] = (0,)
    points: tuple[dict[str, str], ...] = ()
    is_array: bool = False
    max_duration_s: float | None = None
    grace_s: float = 10.0
    max_restarts: int = 0
    priority: int = 0
    after: tuple[Dependency, ...] = ()
    data: tuple[str, ...] = ()
    fencing: Fencing = Fencing.EXCLUSIVE
    lease_s: float = 90.0
    checkpoint: CheckpointSpec | None = None
    restart_cost_s: float = 30.0
    shapes: tuple[GangShape, ...] = ()
    work: WorkSpec | None = None
    appmaster: str | None = None
    files: JobFiles | None = None
    outputs: tuple[str, ...] = ()
    serving: ServingTask | None = None

    @property
    def gangs(self) -> int:
        """Return the number of gangs (array elements)."""
        return len(self.indices)

    def point(self, gang: int) -> dict[str, str]:
        """Return the parameters of one gang as environment variables."""
        return self.points[gang] if self.points else {}


class Task(msgspec.Struct, frozen=True):
    """One rank of one incarnation of a gang."""

    rank: int
    state: TaskState = TaskState.PENDING
    placement: Placement | None = None
    started_at: float | None = None
    ended_at: float | None = None
    exit: TaskExit | None = None


class StopReason(StrEnum):
    """Why a running gang is being stopped."""

    CANCELLED = "cancelled"
    RANK_ENDED = "rank-ended"
    DEVICE_FAILED = "device-failed"
    PREEMPTED = "preempted"
    NODE_LOST = "node-lost"


class Gang(msgspec.Struct, frozen=True):
    """All ranks of one array element.

    ``incarnation`` rises at each placement and never falls: an older one's messages are refused. ``restarts`` are those
    charged against ``max_restarts``; ``moves`` (node loss, device failure, preemption) are free. ``avoid`` names the
    nodes where it failed, newest last. ``attained_s`` is the service of its ended runs in
    seconds, ``bid`` the one that it runs on. Times are seconds since the epoch, usage is in milli-GPU seconds.
    ``saved`` and ``outputs`` are the newest trees that came back from its ranks: checkpoints, and what it made.
    """

    index: int
    tasks: tuple[Task, ...]
    state: JobState = JobState.PENDING
    incarnation: int = 0
    queued_at: float = 0.0
    placed_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    stopping: StopReason | None = None
    restarts: int = 0
    moves: int = 0
    avoid: tuple[NodeId, ...] = ()
    used_gpu_milli_s: float = 0.0
    lost_gpu_milli_s: float = 0.0
    waited_s: float = 0.0
    attained_s: float = 0.0
    preemptions: int = 0
    bid: Bid | None = None
    saved: tuple[Returned, ...] = ()
    outputs: tuple[Returned, ...] = ()

    @property
    def live(self) -> bool:
        """Return whether any rank holds resources."""
        return any(task.state.holds for task in self.tasks)

    @property
    def placements(self) -> tuple[Placement, ...]:
        """Return what the ranks that still hold something hold."""
        return tuple(t.placement for t in self.tasks if t.placement is not None and t.state.holds)


class Job(msgspec.Struct):
    """A job in the controller's or an AppMaster's memory; changed only by ``transitions.apply_to_job``.

    ``exit_code`` and ``exit_cause`` are set at its end: those of the exit that decided (see ``deciding_exit``).
    """

    id: JobId
    spec: JobSpec
    submitted_at: float
    gangs: dict[int, Gang]
    state: JobState = JobState.PENDING
    started_at: float | None = None
    ended_at: float | None = None
    cancelled_by: str | None = None
    message: str = ""
    user: str = ""
    open_gangs: int = 0
    waiting_for: tuple[JobId, ...] = ()
    idempotency_key: str | None = None
    request_digest: str | None = None
    exit_code: int | None = None
    exit_cause: Cause | None = None

    def gang_key(self, index: int) -> GangKey:
        """Return the key of one of its gangs."""
        return GangKey(self.id, index)

    def task_key(self, gang: int, rank: int) -> TaskKey:
        """Return the key of one of its tasks."""
        return TaskKey(self.id, gang, rank)

    @property
    def held(self) -> Amount:
        """Return what all its live tasks hold together."""
        total = Amount()
        for gang in self.gangs.values():
            for placement in gang.placements:
                total = total + Amount.of(placement)
        return total

    @property
    def size(self) -> GangShape:
        """Return the size in which an elastic job runs or ran last, before that the one that it hopes for."""
        if self.spec.shapes:
            placed = [gang for gang in self.gangs.values() if gang.bid is not None]
            last = max(placed, key=lambda gang: (gang.live, gang.ended_at or 0.0), default=None)
            if last is not None and last.bid is not None:
                return last.bid.shape
        return self.spec.shape


LOSSES = frozenset({Cause.NODE_LOST, Cause.NODE_UNFIT, Cause.DEVICE_FAILED, Cause.LEASE_EXPIRED, Cause.PREEMPTED})
"""Causes that lie outside a job: they outweigh the exit codes of the ranks that they broke."""


def cause_of(task: Task) -> Cause:
    """Return why a task ended that did not end well."""
    if task.exit is not None:
        return task.exit.cause
    return Cause.NODE_LOST if task.state is TaskState.LOST else Cause.CANCELLED


def blame(task: Task) -> tuple[int, float, int]:
    """Return the place of a task among those that ended other than well: the smallest broke the others.

    Losses of node, device, lease or shim come before exits, and ranks that were stopped with their gang come last; then
    the earliest end counts, then the lowest rank.
    """
    cause = cause_of(task)
    order = 2 if cause is Cause.GANG_STOPPED else 0 if cause in LOSSES or cause is Cause.SHIM_LOST else 1
    at = task.exit.ended_at if task.exit is not None and task.exit.ended_at is not None else task.ended_at
    return order, at if at is not None else float("inf"), task.rank


def deciding_exit(gangs: Iterable[Gang]) -> TaskExit | None:
    """Return the exit that decided: that of the task to blame, else the last good one."""
    ended = [task for gang in gangs for task in gang.tasks if task.exit is not None]
    bad = [task for task in ended if task.exit is not None and not task.exit.ok]
    if bad:
        return min(bad, key=blame).exit
    return max(ended, key=lambda task: task.ended_at or 0.0).exit if ended else None
