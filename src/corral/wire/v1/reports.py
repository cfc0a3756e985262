"""Answers to questions about the pool. Shares are parts of the pool (0..1), times seconds since the epoch."""

from __future__ import annotations

from pydantic import Field

from corral.model.job import JobState
from corral.model.market import PreemptionKind
from corral.wire.v1.base import Answer
from corral.wire.v1.resources import Amount, DeviceSpec, DeviceState, GangShape, NodeSpec, Placement


class GangKey(Answer):
    """One gang of a job."""

    job: str
    gang: int


class Holder(Answer):
    """Who holds how much of a node."""

    job: str
    gang: int
    tenant: str
    gpu_milli: int
    cpus_milli: int
    ends_at: float | None = Field(description="null when unknown")


class NodeConstraint(Answer):
    """What one node lacks for one rank of the gang."""

    node: str
    fits: int = Field(description="how many ranks it could take now")
    free: Amount
    total: Amount
    blocks: list[str] = Field(description="the reasons in words")
    holders: list[Holder]


class ShareArithmetic(Answer):
    """The numbers behind the order."""

    tenant: str
    weight: float
    due_share: float
    held_share: float
    decayed_share: float
    rank_among_tenants: int
    tenants_waiting: int


class StartEstimate(Answer):
    """Expected start as a range."""

    earliest: float
    latest: float | None = Field(description="null when some holder declared no end")
    basis: str


class Reservation(Answer):
    """The placements kept for the first gang that does not fit, and the time from which."""

    key: GangKey
    tenant: str
    placements: list[Placement]
    start_at: float | None
    made_at: float


class ForecastQuality(Answer):
    """How good expected starts were."""

    forecasts: int = Field(description="how many of the last forecasts were compared with a start")
    inside: float = Field(description="the part of them that came within its range")
    off_s: float = Field(description="median distance from the middle of the range")


class PriceTerms(Answer):
    """Why it did not win the last global round."""

    at: float
    reason: str = Field(description="price, placement, limit, tenure or unplaceable")
    worth: float = Field(description="of its best bid, in prices of one device that it asks for")
    cost: float = Field(description="of its best bid, in prices of one device that it asks for")
    gap: float = Field(description="how far the round was from its bound at most (0..1)")
    prices: dict[str, float] = Field(description="of one device, by model")
    protected_until: float | None = Field(description="when the first tenure in its way ends")


class WhyReport(Answer):
    """The true answer to "why is my job waiting"."""

    job: str
    gang: int
    state: JobState
    verdict: str
    shape: GangShape
    position: int | None
    ahead: int
    shortfall: int = Field(description="ranks that found no place")
    constraints: list[NodeConstraint]
    share: ShareArithmetic | None
    blocked_by: list[str]
    reservation: Reservation | None
    own_reservation: bool
    estimate: StartEstimate | None
    cheapest_change: str | None
    pending_gangs: int
    terms: PriceTerms | None
    quality: ForecastQuality | None = Field(description="null before a forecast was compared with a start")
    largest: GangShape | None = Field(description="the most that an elastic job can run with; null for a rigid one")
    notes: list[str] = Field(description="what else went wrong: its own proposer, a global round")


class Receipt(Answer):
    """What a job cost so far or in all."""

    job: str
    name: str
    tenant: str
    state: JobState
    submitted_at: float
    started_at: float | None
    ended_at: float | None
    waited_s: float
    ran_s: float
    gpu_hours: float
    lost_gpu_hours: float
    idle_share: float | None = Field(description="null when it was never measured")
    restarts: int
    moves: int
    gangs: int
    exit_cause: str
    exit_code: int | None
    nodes: list[str]
    cpu_s: float | None
    rss_max_mib: int | None
    simulated: bool


class DeviceReport(Answer):
    """A device with its last observation and who holds it."""

    spec: DeviceSpec
    state: DeviceState | None = Field(description="null when it never told")
    failed_reason: str | None
    held_milli: int
    holders: list[GangKey]


class NodeReport(Answer):
    """A node with its devices and what it holds."""

    spec: NodeSpec
    state: str = Field(description="up, suspect or lost")
    cordoned: bool
    cordon_reason: str
    age_s: float | None = Field(description="age of the last heartbeat")
    held: Amount
    devices: list[DeviceReport]
    gangs: list[GangKey]
    load_1m: float | None
    memory_free_mib: int | None
    clock_skew_s: float | None = Field(description="how far its wall clock is ahead of the pool's")
    notes: list[str] = Field(description="what is wrong with it, in words")
    draining: bool = Field(description="what ran there was told to give way")


class Maintenance(Answer):
    """How far a planned outage of the controller is prepared."""

    active: bool
    started_at: float | None
    until: float | None = Field(description="nothing is frozen or replaced for silence before")
    left_s: float
    by: str
    reason: str
    ready: list[str] = Field(description="nodes that are known to have the long leases")
    missing: list[str] = Field(description="nodes that are not: the outage must not begin while there are any")
    holding: list[str] = Field(description="nodes that may still hold the long leases of one that is over")


class NodeReports(Answer):
    """All nodes."""

    nodes: list[NodeReport]


class QueueLine(Answer):
    """One pending gang."""

    position: int
    key: GangKey
    name: str
    tenant: str
    queue: str
    priority: int
    shape: GangShape
    waited_s: float
    reason: str
    estimate: StartEstimate | None


class QueueLines(Answer):
    """Pending gangs in the order in which they are considered."""

    lines: list[QueueLine]


class HeadReport(Answer):
    """A machine that has a controller of the pool."""

    name: str
    url: str
    leads: bool
    seen_s: float = Field(description="how long ago it was there")


class PoolStatus(Answer):
    """The pool at a glance."""

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
    models: dict[str, int]
    heads: list[HeadReport] = Field(default=[], description="of a pool whose controllers share a database")
    store_away_s: float = Field(
        default=0.0, description="for how long the database has been away; what is told may be out of date then"
    )


class Preemption(Answer):
    """Why a gang gave way."""

    kind: PreemptionKind
    beneficiary: str | None = Field(description="the job that gained; null when the gang itself did, - when foreign")
    tenant: str | None
    lost_s: float = Field(description="seconds of work that it repeats")


class LedgerEntry(Answer):
    """A gang that gave way."""

    at: float
    key: GangKey
    tenant: str
    gpu_milli: int
    preemption: Preemption


class LedgerLine(Answer):
    """One tenant's account."""

    tenant: str
    active_s: float = Field(description="seconds in which it held or wanted something")
    due_gpu_hours: float
    received_gpu_hours: float
    balance_gpu_hours: float = Field(description="received less due: below 0 it is owed")
    preempted: int
    preempted_by_others: int
    lost_gpu_hours: float
    preempted_others: int


class Ledger(Answer):
    """Who received, owes and was preempted."""

    since: float
    lines: list[LedgerLine]
    preemptions: list[LedgerEntry]


class Alive(Answer):
    """That the daemon answers."""

    version: str
    pid: int
    ok: bool = True
    leads: bool = Field(default=True, description="whether this controller leads the pool, or stands by")


class Stopped(Answer):
    """The daemon stops."""

    tasks_left: int = Field(description="tasks that run on")
