"""Answers to questions about the pool: why a job waits, what it cost, what the nodes and tenants look like."""

from __future__ import annotations

import msgspec

from corral.model.ids import GangKey, JobId, NodeId, TenantId
from corral.model.job import JobState
from corral.model.market import Preemption
from corral.model.offer import Reservation
from corral.model.resources import Amount, DeviceSpec, DeviceState, GangShape, NodeSpec
from corral.model.tenant import Tenant


class Holder(msgspec.Struct, frozen=True):
    """Who holds how much of a node. ``ends_at`` is ``None`` when unknown."""

    job: JobId
    gang: int
    tenant: TenantId
    gpu_milli: int
    cpus_milli: int
    ends_at: float | None


class NodeConstraint(msgspec.Struct, frozen=True):
    """What one node lacks for one rank of the gang. ``fits`` is how many ranks it could take now.

    ``blocks`` are the reasons in words: wrong model, too few free devices, CPUs, memory, cordoned, down, kept for
    job N.
    """

    node: NodeId
    fits: int
    free: Amount
    total: Amount
    blocks: tuple[str, ...]
    holders: tuple[Holder, ...] = ()


class ShareArithmetic(msgspec.Struct, frozen=True):
    """The numbers behind the order: shares are parts of the pool (0..1)."""

    tenant: TenantId
    weight: float
    due_share: float
    held_share: float
    decayed_share: float
    rank_among_tenants: int
    tenants_waiting: int


class StartEstimate(msgspec.Struct, frozen=True):
    """Expected start as a range in epoch seconds. ``latest`` is ``None`` when some holder declared no end."""

    earliest: float
    latest: float | None
    basis: str


class ForecastQuality(msgspec.Struct, frozen=True):
    """How good expected starts were: of the last ``forecasts`` the part ``inside`` (0..1) came within their range.

    ``off_s`` is the median distance of the start from the middle of the range, in seconds.
    """

    forecasts: int
    inside: float
    off_s: float


class PriceTerms(msgspec.Struct, frozen=True):
    """Why a gang did not win the last global round, which was at ``at`` (seconds since the epoch).

    ``worth`` and ``cost`` of its best bid are in devices: 1 is the price of one device that it asks for. ``reason`` is
    one of those of :class:`corral.model.market.Loss`, ``gap`` how far the round was from its bound (0..1) at most.
    """

    at: float
    reason: str
    worth: float
    cost: float
    gap: float
    prices: dict[str, float] = {}
    protected_until: float | None = None


class WhyReport(msgspec.Struct, frozen=True):
    """The true answer to "why is my job waiting" (or running where it runs, or ended).

    ``verdict`` is one line. ``shortfall`` is in ranks that found no place. ``cheapest_change`` is the smallest change
    of the request that would start it now, or ``None`` when there is none. ``shape`` is the least that it can run with,
    ``largest`` the most of an elastic job (``None`` for a rigid one). ``notes`` say what else went wrong, a line each:
    its own proposer, a global round.
    """

    job: JobId
    gang: int
    state: JobState
    verdict: str
    shape: GangShape
    position: int | None = None
    ahead: int = 0
    shortfall: int = 0
    constraints: tuple[NodeConstraint, ...] = ()
    share: ShareArithmetic | None = None
    blocked_by: tuple[str, ...] = ()
    reservation: Reservation | None = None
    own_reservation: bool = False
    estimate: StartEstimate | None = None
    cheapest_change: str | None = None
    pending_gangs: int = 0
    terms: PriceTerms | None = None
    quality: ForecastQuality | None = None
    largest: GangShape | None = None
    notes: tuple[str, ...] = ()


class Receipt(msgspec.Struct, frozen=True):
    """What a job cost. Times in seconds, GPU figures in GPU-hours.

    ``waited_s`` is that of the element that waited longest, ``ran_s`` lasts from the first start to the end or to now.
    ``exit_code`` is that of the exit that decided, 128 + n when signal n ended it. ``idle_share`` is the part of held
    GPU time in which the device did nothing, ``None`` when it was never measured.
    """

    job: JobId
    name: str
    tenant: TenantId
    state: JobState
    submitted_at: float
    started_at: float | None
    ended_at: float | None
    waited_s: float
    ran_s: float
    gpu_hours: float
    lost_gpu_hours: float
    idle_share: float | None
    restarts: int
    moves: int
    gangs: int
    exit_cause: str
    exit_code: int | None
    nodes: tuple[NodeId, ...]
    cpu_s: float | None = None
    rss_max_mib: int | None = None
    simulated: bool = False


class NodeReport(msgspec.Struct, frozen=True):
    """A node as people see it. ``state`` is up, suspect, or lost; ``age_s`` is the age of the last heartbeat.

    ``draining``: what ran there was told to give way; it is empty when ``gangs`` is.
    ``clock_skew_s`` is how far its wall clock is ahead of the pool's, ``notes`` say in words what is wrong with it.
    """

    spec: NodeSpec
    state: str
    cordoned: bool
    cordon_reason: str
    age_s: float | None
    held: Amount
    devices: tuple[DeviceReport, ...]
    gangs: tuple[GangKey, ...]
    load_1m: float | None = None
    memory_free_mib: int | None = None
    clock_skew_s: float | None = None
    notes: tuple[str, ...] = ()
    draining: bool = False


class DeviceReport(msgspec.Struct, frozen=True):
    """A device with its last observation (``None``: never told) and who holds it."""

    spec: DeviceSpec
    state: DeviceState | None
    failed_reason: str | None
    held_milli: int
    holders: tuple[GangKey, ...]


class TenantReport(msgspec.Struct, frozen=True):
    """A tenant with its standing. Shares are parts of the pool's dominant resource (0..1)."""

    tenant: Tenant
    due_share: float
    held_share: float
    decayed_share: float
    held: Amount
    running: int
    pending: int


class QueueLine(msgspec.Struct, frozen=True):
    """One pending gang in the order in which it is considered."""

    position: int
    key: GangKey
    name: str
    tenant: TenantId
    queue: str
    priority: int
    shape: GangShape
    waited_s: float
    reason: str
    estimate: StartEstimate | None = None


HEAD_SILENT_S = 10.0
"""A head that stands by and was not heard for so long is taken for gone where heads are shown."""


class HeadReport(msgspec.Struct, frozen=True):
    """A machine that has a controller of the pool; ``seen_s`` ago it was there by the database's clock."""

    name: str
    url: str
    leads: bool
    seen_s: float


class PoolStatus(msgspec.Struct, frozen=True):
    """The pool at a glance.

    ``heads`` are those of a pool whose controllers share a database; ``store_away_s`` says for how long that has been
    away: what is told then may be out of date, for another controller may lead.
    """

    version: str
    pid: int
    url: str
    started_at: float
    now: float
    epoch: int
    seq: int
    nodes_up: int
    nodes: int
    devices: int
    devices_failed: int
    simulated_devices: int
    capacity: Amount
    held: Amount
    running_gangs: int
    pending_gangs: int
    waiting_jobs: int
    finished_jobs: int
    cpu_pool: bool
    clock_offset_s: float
    models: dict[str, int] = {}
    heads: tuple[HeadReport, ...] = ()
    store_away_s: float = 0.0


class MaintenanceReport(msgspec.Struct, frozen=True):
    """How far a planned outage of the controller is prepared.

    ``ready`` are the nodes that are known to have leases until ``until``, ``missing`` those that have not yet. The
    outage may begin when none is missing: nothing is frozen or replaced before ``until``, ``left_s`` from now.
    ``holding`` are those that may still have the long leases of one that is over: their tasks are waited for so long.
    """

    active: bool
    started_at: float | None = None
    until: float | None = None
    left_s: float = 0.0
    by: str = ""
    reason: str = ""
    ready: tuple[NodeId, ...] = ()
    missing: tuple[NodeId, ...] = ()
    holding: tuple[NodeId, ...] = ()


class JobSummary(msgspec.Struct, frozen=True):
    """A job as one row.

    ``elements`` is the number of gangs, ``counts`` how many are in each state (empty for a finished job read from its
    row). ``exit_code`` is that of the exit that decided, 128 + n when signal n ended it; ``None`` while the job runs
    and when no process ran to an end. ``progress`` (0..1) is what tasks of an unfinished job report.
    """

    id: JobId
    name: str
    tenant: TenantId
    queue: str
    state: JobState
    submitted_at: float
    user: str = ""
    priority: int = 0
    started_at: float | None = None
    ended_at: float | None = None
    is_array: bool = False
    elements: int = 1
    counts: dict[str, int] = {}
    num_nodes: int = 1
    gpu_milli: int = 0
    gpu_model: str | None = None
    cpus_milli: int = 0
    memory_mib: int = 0
    nodes: tuple[NodeId, ...] = ()
    restarts: int = 0
    moves: int = 0
    exit_code: int | None = None
    exit_cause: str | None = None
    message: str = ""
    progress: float | None = None


class JobRows(msgspec.Struct, frozen=True):
    """Jobs as rows, newest first; ``next_before`` is the job number to continue with, ``total_live`` of unfinished."""

    jobs: tuple[JobSummary, ...]
    next_before: int | None
    total_live: int


class LedgerEntry(msgspec.Struct, frozen=True):
    """A gang of ``tenant`` gave way at ``at`` with ``gpu_milli`` in its hands: for whom and at what price."""

    at: float
    key: GangKey
    tenant: TenantId
    gpu_milli: int
    preemption: Preemption


class LedgerLine(msgspec.Struct, frozen=True):
    """One tenant's account over the window.

    ``due_gpu_hours`` accrue while the tenant holds or wants something. ``balance_gpu_hours`` is received less due:
    above 0 the tenant used what others left, below 0 it is owed. ``lost_gpu_hours`` is work repeated after it gave way.
    """

    tenant: TenantId
    active_s: float
    due_gpu_hours: float
    received_gpu_hours: float
    balance_gpu_hours: float
    preempted: int
    preempted_by_others: int
    lost_gpu_hours: float
    preempted_others: int


class Ledger(msgspec.Struct, frozen=True):
    """Who received, owes and was preempted since ``since`` (the beginning of an hour, seconds since the epoch)."""

    since: float
    lines: tuple[LedgerLine, ...]
    preemptions: tuple[LedgerEntry, ...]
