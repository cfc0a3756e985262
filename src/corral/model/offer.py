"""The words of two-phase scheduling: Snapshot and Offer out, Proposal (of Bids) back, Arbitration as the verdict."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from corral.model.experience import Measurement, Rate
from corral.model.ids import DEFAULT_QUEUE, DeviceId, GangKey, JobId, NodeId, QueueName, ServiceName, TenantId
from corral.model.resources import MILLI, Amount, GangShape, Placement
from corral.model.tenant import Queue, Tenant


class FreeDevice(msgspec.Struct, frozen=True):
    """The free part of a healthy device. Devices with nothing free are listed too, with ``free_milli`` 0."""

    uuid: DeviceId
    model: str
    free_milli: int
    memory_mib: int
    island: int = 0

    @property
    def whole(self) -> bool:
        """Return whether nobody holds any part of it."""
        return self.free_milli >= MILLI


class Kin(msgspec.Struct, frozen=True):
    """What gangs have in common that keep apart: the service that they carry, and its port if that is fixed."""

    service: ServiceName
    port: int | None = None


class NodeOffer(msgspec.Struct, frozen=True):
    """What one node can give now. Only schedulable nodes (up, not cordoned) are offered.

    ``address`` tells machines apart: nodes that share one share its ports. ``shards`` are the data shards and caches
    that the node reports to hold.
    """

    node: NodeId
    rack: str
    devices: tuple[FreeDevice, ...]
    cpus_milli: int
    memory_mib: int
    total: Amount
    shards: frozenset[str] = frozenset()
    address: str = ""


class Locality(StrEnum):
    """How close the ranks of a gang have to be."""

    NODE = "node"
    NVLINK = "nvlink"
    RACK = "rack"
    ANY = "any"


class Preference(msgspec.Struct, frozen=True):
    """A node and the seconds that a start there costs for data that is not yet there."""

    node: NodeId
    cold_start_s: float


class Bid(msgspec.Struct, frozen=True):
    """One way to run a gang. It states a shape; the arbiter chooses the nodes.

    ``throughput`` is in units of work per second with ``confidence`` 0..1; ``remaining_s`` is ``None`` when unknown.
    """

    shape: GangShape
    locality: Locality = Locality.ANY
    preferred: tuple[Preference, ...] = ()
    throughput: float = 1.0
    confidence: float = 0.0
    remaining_s: float | None = None
    restart_cost_s: float = 0.0
    checkpoint_age_s: float | None = None
    tenure_s: float = 0.0


class Holding(msgspec.Struct, frozen=True):
    """What a running gang holds, when it is expected to give it back, and what its giving way would cost.

    ``ends_at`` is the declared end (start + max_duration), ``None`` when the job declared none: the end is unknown.
    ``bids`` are the job's, ``won`` the one that it runs on. ``saved_at`` is its last known checkpoint (``None``: it
    saves nothing, all work since ``started_at`` is lost). ``attained_s`` is the service of all its runs so far in
    seconds, as of ``started_at``; ``remaining_s`` what is believed to be left of it on ``won`` as of ``known_at``.
    ``stopping`` gangs give their devices back soon. Before ``tenure_until`` a gang is not preempted.
    """

    key: GangKey
    tenant: TenantId
    placements: tuple[Placement, ...]
    started_at: float
    ends_at: float | None
    incarnation: int = 0
    queue: QueueName = DEFAULT_QUEUE
    priority: int = 0
    order: int = 0
    submitted_at: float = 0.0
    bids: tuple[Bid, ...] = ()
    won: Bid | None = None
    saved_at: float | None = None
    attained_s: float = 0.0
    remaining_s: float | None = None
    known_at: float = 0.0
    tenure_until: float = 0.0
    stopping: bool = False
    preemptible: bool = True
    kin: Kin | None = None


class Snapshot(msgspec.Struct, frozen=True):
    """The whole free and soon-free capacity at one version of the pool. Shown to all jobs at once, never locked."""

    version: int
    at: float
    nodes: tuple[NodeOffer, ...]
    holdings: tuple[Holding, ...]
    capacity: Amount


class Offer(msgspec.Struct, frozen=True):
    """A snapshot as one job sees it: with its tenant's fairness credit (> 0 is owed) and prices per device model.

    ``rates`` is what the pool has learnt of the throughput of the job's family.
    """

    snapshot: Snapshot
    credit: float
    prices: dict[str, float] = {}
    rates: tuple[Rate, ...] = ()


class Outlook(msgspec.Struct, frozen=True):
    """What is believed of one gang that has run: the seconds left and its last checkpoint (s since the epoch).

    ``remaining_s`` is for ``shape`` (``None``: that of the first bid), with the device model that it was measured on,
    as of ``known_at``; an AppMaster leaves both to the controller and means what the gang runs on now.
    """

    remaining_s: float | None = None
    saved_at: float | None = None
    shape: GangShape | None = None
    known_at: float = 0.0


class Proposal(msgspec.Struct, frozen=True):
    """A job's bids, made on snapshot ``version``. They stand for all its gangs until replaced.

    ``outlooks`` are those of gangs that differ from a fresh one because they have run.
    """

    job: JobId
    version: int
    bids: tuple[Bid, ...]
    outlooks: dict[int, Outlook] = {}
    measured: tuple[Measurement, ...] = ()


class Candidate(msgspec.Struct, frozen=True):
    """A pending gang with everything that the arbiter may know of it.

    ``order`` is the position of submission (ties), ``max_duration_s`` bounds a backfill, ``avoid`` lists nodes where
    it failed before (newest last). ``attained_s`` is the service of its earlier runs in seconds, ``remaining_s`` what
    is believed to be left on its first bid (``None``: unknown). ``urgency`` orders the candidates of one tenant and
    priority, smallest first (0: by submission): global rounds set it.
    """

    key: GangKey
    tenant: TenantId
    queue: QueueName
    priority: int
    queued_at: float
    order: int
    bids: tuple[Bid, ...]
    max_duration_s: float | None = None
    avoid: tuple[NodeId, ...] = ()
    submitted_at: float = 0.0
    attained_s: float = 0.0
    remaining_s: float | None = None
    urgency: float = 0.0
    kin: Kin | None = None

    @property
    def shape(self) -> GangShape:
        """Return the shape of the first bid."""
        return self.bids[0].shape


class Standing(msgspec.Struct, frozen=True):
    """Where a tenant stands: what it holds now and its time-decayed average dominant share (0..1)."""

    tenant: Tenant
    held: Amount = Amount()
    decayed_share: float = 0.0


class QueueStanding(msgspec.Struct, frozen=True):
    """A queue and what its jobs hold together."""

    queue: Queue
    held: Amount = Amount()


class Allocation(msgspec.Struct, frozen=True):
    """A gang won with ``bid``: these are its placements, one per rank."""

    key: GangKey
    placements: tuple[Placement, ...]
    bid: Bid | None = None


class Reservation(msgspec.Struct, frozen=True):
    """An EASY reservation: the placements kept for the first gang that does not fit, and the time from which.

    ``start_at`` is ``None`` when the end of some holder is unknown: then the placements are kept as they become free.
    """

    key: GangKey
    tenant: TenantId
    placements: tuple[Placement, ...]
    start_at: float | None
    made_at: float


class Arbitration(msgspec.Struct, frozen=True):
    """The verdict of one round on snapshot ``version``."""

    version: int
    allocations: tuple[Allocation, ...]
    reservations: tuple[Reservation, ...]


class VerdictKind(StrEnum):
    """How a proposal or a placement was answered at commit."""

    COMMITTED = "committed"
    STALE = "stale"
    INFEASIBLE = "infeasible"


class Verdict(msgspec.Struct, frozen=True):
    """The answer to one placement or proposal: "refresh to version N" when it was stale."""

    kind: VerdictKind
    key: GangKey
    refresh_to: int
    reason: str = ""
