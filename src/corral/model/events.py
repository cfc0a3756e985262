"""Facts: what the journal holds. Each is a tagged frozen struct with ``at`` in seconds since the epoch.

Facts are journaled, observations (heartbeats, metrics, bids) never. A field is only ever added, with a default;
a kind is never removed: journals of every released version must fold.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from corral.model.files import ReturnKind
from corral.model.ids import DeviceId, JobId, NodeId, QueueName, ServiceName, TenantId
from corral.model.job import JobSpec, JobState, StopReason, TaskExit, TaskState
from corral.model.market import Preemption
from corral.model.offer import Bid
from corral.model.resources import NodeSpec, Placement
from corral.model.service import Secrets, ServiceSpec
from corral.model.tenant import Queue, Tenant, Token


class Event(msgspec.Struct, frozen=True, tag_field="kind", kw_only=True):
    """Base of all facts."""

    at: float


class JobEvent(Event, frozen=True, kw_only=True):
    """A fact about one job."""

    job: JobId


class GangEvent(JobEvent, frozen=True, kw_only=True):
    """A fact about one incarnation of a gang."""

    gang: int
    incarnation: int


class JobSubmitted(JobEvent, frozen=True, kw_only=True, tag="job-submitted"):
    """A job was admitted. ``waiting_for`` are the dependencies that had not ended yet."""

    spec: JobSpec
    user: str = ""
    waiting_for: tuple[JobId, ...] = ()
    idempotency_key: str | None = None
    request_digest: str | None = None


class JobCancelRequested(JobEvent, frozen=True, kw_only=True, tag="job-cancel-requested"):
    """Somebody asked for the end of a job."""

    by: str


class GangPlaced(GangEvent, frozen=True, kw_only=True, tag="gang-placed"):
    """An arbitration gave a gang its devices: all ranks or none. ``bid`` is the one that won.

    An elastic gang has as many ranks as ``placements`` until it is placed again.
    """

    placements: tuple[Placement, ...]
    bid: Bid | None = None


class TaskStarted(GangEvent, frozen=True, kw_only=True, tag="task-started"):
    """The user's process of one rank runs."""

    rank: int
    pid: int | None = None


class TaskEnded(GangEvent, frozen=True, kw_only=True, tag="task-ended"):
    """One rank ended or was lost; what it held is free again."""

    rank: int
    state: TaskState
    exit: TaskExit


class GangStopping(GangEvent, frozen=True, kw_only=True, tag="gang-stopping"):
    """The remaining ranks of a gang are told to stop.

    Of a preempted gang ``preemption`` says for whom it gives way, or ``drained`` which node is emptied.
    """

    reason: StopReason
    preemption: Preemption | None = None
    drained: NodeId | None = None


class GangRequeued(GangEvent, frozen=True, kw_only=True, tag="gang-requeued"):
    """All ranks have ended and the gang waits again. ``counted`` charges ``max_restarts``.

    ``saved_at`` is its last known checkpoint: only the work since then is lost.
    """

    counted: bool
    reason: str
    avoid: tuple[NodeId, ...] = ()
    saved_at: float | None = None


class FilesReturned(GangEvent, frozen=True, kw_only=True, tag="files-returned"):
    """A running task's node gave files back: ``tree`` is their name, ``size_bytes`` their sum."""

    rank: int
    what: ReturnKind
    tree: str
    size_bytes: int = 0


class GangEnded(GangEvent, frozen=True, kw_only=True, tag="gang-ended"):
    """A gang reached a final state."""

    state: JobState
    reason: str = ""


class JobEnded(JobEvent, frozen=True, kw_only=True, tag="job-ended"):
    """All gangs of a job reached a final state, or the job can never start."""

    state: JobState
    reason: str = ""


class NodeJoined(Event, frozen=True, kw_only=True, tag="node-joined"):
    """An agent registered its node, new or again with other devices or another incarnation."""

    spec: NodeSpec


class NodeLost(Event, frozen=True, kw_only=True, tag="node-lost"):
    """A node was given up; its tasks are ended by events of their own."""

    node: NodeId
    reason: str


class NodeCordoned(Event, frozen=True, kw_only=True, tag="node-cordoned"):
    """No new tasks on a node. Running ones stay, unless it is to ``drain``: then their gangs give way."""

    node: NodeId
    by: str
    reason: str = ""
    drain: bool = False


class NodeUncordoned(Event, frozen=True, kw_only=True, tag="node-uncordoned"):
    """A node takes tasks again."""

    node: NodeId
    by: str


class NodeRemoved(Event, frozen=True, kw_only=True, tag="node-removed"):
    """A lost or empty node was forgotten."""

    node: NodeId
    by: str


class DeviceFailed(Event, frozen=True, kw_only=True, tag="device-failed"):
    """A device is not given out any more."""

    node: NodeId
    device: DeviceId
    reason: str


class DeviceRecovered(Event, frozen=True, kw_only=True, tag="device-recovered"):
    """A failed device is healthy again."""

    node: NodeId
    device: DeviceId


class MaintenanceStarted(Event, frozen=True, kw_only=True, tag="maintenance-started"):
    """Leases last at least until ``until``: the controller may be away so long, and nothing is frozen or replaced."""

    until: float
    by: str
    reason: str = ""


class MaintenanceEnded(Event, frozen=True, kw_only=True, tag="maintenance-ended"):
    """Leases have their usual length again; who was not reached since keeps what was granted."""

    by: str


class MaintenanceSettled(Event, frozen=True, kw_only=True, tag="maintenance-settled"):
    """Every node has told that its leases have their usual length again: nothing is left of what was granted."""


class TenantSet(Event, frozen=True, kw_only=True, tag="tenant-set"):
    """A tenant was added or changed."""

    tenant: Tenant
    by: str


class TenantRemoved(Event, frozen=True, kw_only=True, tag="tenant-removed"):
    """A tenant without unfinished jobs was removed; its tokens end with it."""

    tenant: TenantId
    by: str


class QueueSet(Event, frozen=True, kw_only=True, tag="queue-set"):
    """A queue was added or changed."""

    queue: Queue
    by: str


class QueueRemoved(Event, frozen=True, kw_only=True, tag="queue-removed"):
    """A queue without unfinished jobs was removed."""

    queue: QueueName
    by: str


class TokenIssued(Event, frozen=True, kw_only=True, tag="token-issued"):
    """An access token was made; only its digest is known."""

    token: Token
    by: str


class TokenRevoked(Event, frozen=True, kw_only=True, tag="token-revoked"):
    """An access token is refused from now on."""

    token_id: str
    by: str


class ServiceEvent(Event, frozen=True, kw_only=True):
    """A fact about one service."""

    service: ServiceName


class ServiceSet(ServiceEvent, frozen=True, kw_only=True, tag="service-set"):
    """A service was made (``secrets`` are its own then), or its next revision begins to follow the stable one."""

    spec: ServiceSpec
    revision: int
    by: str
    secrets: Secrets | None = None
    canary_percent: int | None = None


class ServiceScaled(ServiceEvent, frozen=True, kw_only=True, tag="service-scaled"):
    """Load or a person asks for another number of replicas."""

    replicas: int
    by: str
    reason: str = ""


class RolloutWidened(ServiceEvent, frozen=True, kw_only=True, tag="rollout-widened"):
    """A canary was found good: from now on the revision may have this part of the replicas (``None``: all)."""

    canary_percent: int | None
    by: str


class RolloutEnded(ServiceEvent, frozen=True, kw_only=True, tag="rollout-ended"):
    """``revision`` is the stable one from now on. ``undone``: the one that was to follow it was given up."""

    revision: int
    undone: bool
    by: str
    reason: str = ""


class ReplicaReady(ServiceEvent, frozen=True, kw_only=True, tag="replica-ready"):
    """An incarnation of a replica was ready for the first time: front ends may send it requests."""

    job: JobId
    incarnation: int


class ReplicaDraining(ServiceEvent, frozen=True, kw_only=True, tag="replica-draining"):
    """A replica gets no new requests, and ends when those under way are done."""

    job: JobId
    reason: str


class ServiceRemoved(ServiceEvent, frozen=True, kw_only=True, tag="service-removed"):
    """A service is to end: it is gone when its last replica is."""

    by: str


Fact = (
    JobSubmitted
    | JobCancelRequested
    | GangPlaced
    | TaskStarted
    | TaskEnded
    | GangStopping
    | GangRequeued
    | FilesReturned
    | GangEnded
    | JobEnded
    | NodeJoined
    | NodeLost
    | NodeCordoned
    | NodeUncordoned
    | NodeRemoved
    | DeviceFailed
    | DeviceRecovered
    | MaintenanceStarted
    | MaintenanceEnded
    | MaintenanceSettled
    | TenantSet
    | TenantRemoved
    | QueueSet
    | QueueRemoved
    | TokenIssued
    | TokenRevoked
    | ServiceSet
    | ServiceScaled
    | RolloutWidened
    | RolloutEnded
    | ReplicaReady
    | ReplicaDraining
    | ServiceRemoved
)

Decision = GangStopping | GangRequeued | GangEnded | JobEnded
"""The facts that only a job's AppMaster may propose; the controller appends them after checking."""


class FactCodec:
    """JSON of facts, both ways. Unknown fields are ignored on reading, so that newer journals' additions are safe."""

    _decoder: ClassVar[msgspec.json.Decoder[Fact]] = msgspec.json.Decoder(Fact)
    _encoder: ClassVar[msgspec.json.Encoder] = msgspec.json.Encoder()

    @classmethod
    def encode(cls, fact: Fact) -> bytes:
        """Return the UTF-8 JSON of a fact."""
        return cls._encoder.encode(fact)

    @classmethod
    def decode(cls, data: bytes | str) -> Fact:
        """Return the fact of its JSON; raise ``msgspec.ValidationError`` or ``msgspec.DecodeError``."""
        return cls._decoder.decode(data)


def job_of(fact: Fact) -> JobId | None:
    """Return the job that a fact is about, if any."""
    return fact.job if isinstance(fact, JobEvent) else None
