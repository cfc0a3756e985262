"""What the controller and the agents say to each other through an Engine. Both ways are ordered and at-most-once.

Everything an agent reports is repeated in its next hello until it is acknowledged; everything the controller commands
is idempotent per (task, incarnation). ``epoch`` is the leader's: an agent refuses commands of an older one.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from corral.model.events import Decision, Fact
from corral.model.files import JobFiles
from corral.model.ids import JobId, NodeId, TaskKey
from corral.model.job import CheckpointSpec, Job, TaskExit
from corral.model.offer import Proposal
from corral.model.resources import DeviceState, NodeSpec, Placement
from corral.model.service import Secrets
from corral.model.serving import ServingTask

PROTOCOL = 1


class TaskPhase(StrEnum):
    """How far a task is, as its agent sees it."""

    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"


class TaskReport(msgspec.Struct, frozen=True):
    """The state of one incarnation of a task on a node; ``exit`` is set when it ended."""

    task: TaskKey
    incarnation: int
    phase: TaskPhase
    pid: int | None = None
    started_at: float | None = None
    exit: TaskExit | None = None

    @property
    def began(self) -> bool:
        """Return whether the user's program was started, however it ended."""
        return self.phase is TaskPhase.RUNNING or (self.exit is not None and self.exit.started_at is not None)


class Usage(msgspec.Struct, frozen=True):
    """What a running task uses, sampled.

    ``progress`` is the amount of work that it reported last (steps, in the job's own units), ``progress_total`` the
    amount after which it is done, ``checkpointed_at`` the progress (not the time) that its last checkpoint holds. They
    count from the beginning of the job, not of the run: a task that goes on from step 500 reports 500.

    ``halted`` says why the main process does not run although it lives: it is stopped, frozen, or waits in the kernel.
    """

    task: TaskKey
    incarnation: int
    rss_mib: int | None = None
    cpu_s: float | None = None
    gpu_idle_share: float | None = None
    progress: float | None = None
    log_bytes: int | None = None
    progress_total: float | None = None
    checkpointed_at: float | None = None
    halted: str | None = None


class Readiness(msgspec.Struct, frozen=True):
    """Whether a replica answers its probes: started up, and its readiness good.

    ``since`` is when that was first so or not so (seconds since the epoch); ``message`` says what the probe got that
    was not good.
    """

    task: TaskKey
    incarnation: int
    ready: bool
    since: float
    message: str = ""


# ---- agent to controller -------------------------------------------------------------------------------------------


class AgentMessage(msgspec.Struct, frozen=True, tag_field="type", kw_only=True):
    """Base of what agents say."""

    node: NodeId


class Hello(AgentMessage, frozen=True, kw_only=True, tag="hello"):
    """First message of every connection: the node, and every task whose end is not acknowledged.

    It is acknowledged as a heartbeat is: leases run from ``sent_boottime_s``, the agent's CLOCK_BOOTTIME at sending.
    ``asked`` is that of the wish for it; the first one of a connection answers none.
    """

    protocol: int
    spec: NodeSpec
    agent_pid: int
    supervisor_start: str
    tasks: tuple[TaskReport, ...]
    devices: tuple[DeviceState, ...]
    shards: tuple[str, ...] = ()
    sent_boottime_s: float | None = None
    asked: int | None = None


class Heartbeat(AgentMessage, frozen=True, kw_only=True, tag="heartbeat"):
    """Every second, and at once when the readiness of a replica changes.

    ``sent_boottime_s`` is CLOCK_BOOTTIME at sending: leases run from it. ``readiness`` tells of all replicas whose
    programs run here: one that is missing is not known.

    ``unfit`` says why the node can take no tasks, empty when it can.

    ``contact_boottime_s`` is the sending of the newest hello or heartbeat whose acknowledgement has come: the leases of
    the node's tasks run from there. ``None`` before the first one.
    """

    sent_boottime_s: float
    wall_s: float
    devices: tuple[DeviceState, ...] = ()
    shards: tuple[str, ...] = ()
    usage: tuple[Usage, ...] = ()
    load_1m: float | None = None
    memory_free_mib: int | None = None
    contact_boottime_s: float | None = None
    readiness: tuple[Readiness, ...] = ()
    unfit: str = ""


class TaskReported(AgentMessage, frozen=True, kw_only=True, tag="task"):
    """A task changed. ``decisions`` come from the job's AppMaster when it lives here and has seen the change."""

    report: TaskReport
    generation: int | None = None
    decisions: tuple[Decision, ...] = ()


class MasterDecided(AgentMessage, frozen=True, kw_only=True, tag="decided"):
    """An AppMaster on this node decided; ``generation`` is the one it was hosted under."""

    job: JobId
    generation: int
    decisions: tuple[Decision, ...]


class MasterProposed(AgentMessage, frozen=True, kw_only=True, tag="proposed"):
    """An AppMaster on this node measured something that changes what it believes.

    ``at`` is the node's time, on which the times of the proposal are. Its outlooks are those that changed, with the
    seconds left on what each gang runs on now; without bids those that it made before stand.
    """

    job: JobId
    generation: int
    proposal: Proposal
    at: float = 0.0


AgentSays = Hello | Heartbeat | TaskReported | MasterDecided | MasterProposed


# ---- controller to agent -------------------------------------------------------------------------------------------


class Command(msgspec.Struct, frozen=True, tag_field="type", kw_only=True):
    """Base of what the controller commands. ``cause`` is the journal sequence of the fact behind it."""

    node: NodeId
    epoch: int
    cause: int = 0


class Peer(msgspec.Struct, frozen=True):
    """Where a rank of the gang runs."""

    rank: int
    node: NodeId
    address: str


class LaunchTask(Command, frozen=True, kw_only=True, tag="launch"):
    """Start one task. All that the agent needs is here; it adds devices' environment and its own directories.

    ``restore`` names the trees of its checkpoint (of a file that several have, what was written last counts),
    ``outputs`` are the patterns of the files that come back at its end. A replica of a service has ``serving`` and its
    part of the service's ``secrets``: without the front ends' own certificate. The port that it takes when ``serving``
    names none is that of its placement.
    """

    task: TaskKey
    incarnation: int
    placement: Placement
    tenant: str
    name: str
    array_index: int | None
    is_gang: bool
    peers: tuple[Peer, ...]
    master_port: int
    argv: tuple[str, ...]
    script: str | None
    setup: str | None
    envs: dict[str, str]
    workdir: str | None
    file_mounts: dict[str, str]
    max_duration_s: float | None
    grace_s: float
    checkpoint: CheckpointSpec | None
    lease_s: float | None
    restarts: int = 0
    files: JobFiles | None = None
    outputs: tuple[str, ...] = ()
    restore: tuple[str, ...] = ()
    serving: ServingTask | None = None
    secrets: Secrets | None = None


class StopTask(Command, frozen=True, kw_only=True, tag="stop"):
    """Stop one task: SIGTERM, ``grace_s`` seconds, SIGKILL. Unknown tasks are reported as ended (shim-lost).

    With ``saving_s`` above 0 it is first asked for a checkpoint, and has so long to end by itself. A replica is asked
    for none: it has this time undisturbed, for the requests under way. A later order with less time shortens it.
    """

    task: TaskKey
    incarnation: int
    reason: str
    grace_s: float
    saving_s: float = 0.0


class Acknowledge(Command, frozen=True, kw_only=True, tag="ack"):
    """The end of this incarnation is in the journal: the agent may forget it (its log stays)."""

    task: TaskKey
    incarnation: int


class AcknowledgeHeartbeat(Command, frozen=True, kw_only=True, tag="ack-heartbeat"):
    """Echo of a hello or a heartbeat: leases of this node run from ``sent_boottime_s``.

    They last at least ``lease_s`` from there, also those of tasks with shorter ones: that is how a planned outage of
    the controller is prepared. An acknowledgement with 0 takes an earlier grant back.
    """

    sent_boottime_s: float
    lease_s: float = 0.0


class SayHello(Command, frozen=True, kw_only=True, tag="say-hello"):
    """Say hello again on this connection: the controller gave up what ran here and acknowledges nothing before.

    The hello repeats ``asked``. One that answers an older wish, or the same one again, may have been said before
    launches that were sent since: it does not tell of them.
    """

    asked: int = 0


class HostMaster(Command, frozen=True, kw_only=True, tag="host"):
    """Host the job's AppMaster from this state on."""

    job: Job
    generation: int


class DismissMaster(Command, frozen=True, kw_only=True, tag="dismiss"):
    """Stop hosting the job's AppMaster."""

    job: JobId
    generation: int


class TellMaster(Command, frozen=True, kw_only=True, tag="tell"):
    """A journaled fact for an AppMaster that lives on this node."""

    job: JobId
    generation: int
    fact: Fact


ControllerSays = (
    LaunchTask | StopTask | Acknowledge | AcknowledgeHeartbeat | SayHello | HostMaster | DismissMaster | TellMaster
)
