"""Short ways to write pools, candidates and jobs in tests of the policy room."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from corral.model.ids import DeviceId, GangKey, JobId, NodeId, QueueName, TenantId
from corral.model.job import Gang, Job, JobSpec, JobState
from corral.model.offer import (
    Arbitration,
    Bid,
    Candidate,
    FreeDevice,
    Holding,
    Locality,
    NodeOffer,
    Preference,
    QueueStanding,
    Reservation,
    Snapshot,
    Standing,
)
from corral.model.resources import (
    MILLI,
    Amount,
    Demand,
    DeviceShare,
    DeviceSpec,
    GangShape,
    NodeSpec,
    Placement,
)
from corral.model.tenant import Queue, Quota, Tenant
from corral.policy.arbitration import PendingIndex, arbitrate
from corral.policy.config import SchedulingConfig

NOW = 1_000.0
CONFIG = SchedulingConfig()
DEFAULT = QueueName("default")


def node_spec(
    name: str,
    gpus: int = 8,
    model: str = "H100",
    *,
    cpus: float = 64,
    memory: int = 64_000,
    rack: str = "rack-0",
    island: int = 8,
    models: Sequence[str] | None = None,
) -> NodeSpec:
    """Return a node whose devices are ``name-0`` ..., ``island`` of them in each NVLink island."""
    devices = tuple(
        DeviceSpec(DeviceId(f"{name}-{i}"), m, "nvidia", 81_920, i, i // island)
        for i, m in enumerate(models if models is not None else [model] * gpus)
    )
    return NodeSpec(NodeId(name), name, "10.0.0.1", round(cpus * MILLI), memory, devices, rack)


def offer(spec: NodeSpec, held: Iterable[Placement] = (), shards: Iterable[str] = ()) -> NodeOffer:
    """Return what a node offers while ``held`` is held of it."""
    mine = [p for p in held if p.node == spec.id]
    used: dict[DeviceId, int] = {}
    for placement in mine:
        for share in placement.devices:
            used[share.uuid] = used.get(share.uuid, 0) + share.milli
    return NodeOffer(
        spec.id,
        spec.rack,
        tuple(FreeDevice(d.uuid, d.model, MILLI - used.get(d.uuid, 0), d.memory_mib, d.island) for d in spec.devices),
        spec.cpus_milli - sum(p.cpus_milli for p in mine),
        spec.memory_mib - sum(p.memory_mib for p in mine),
        Amount(MILLI * len(spec.devices), spec.cpus_milli, spec.memory_mib),
        frozenset(shards),
    )


def snapshot(specs: Sequence[NodeSpec], holdings: Sequence[Holding] = (), at: float = NOW) -> Snapshot:
    """Return the snapshot of nodes on which ``holdings`` run."""
    held = [p for h in holdings for p in h.placements]
    capacity = Amount(
        MILLI * sum(len(s.devices) for s in specs), sum(s.cpus_milli for s in specs), sum(s.memory_mib for s in specs)
    )
    return Snapshot(1, at, tuple(offer(s, held) for s in specs), tuple(holdings), capacity)


def shape(gpus: float = 1, ranks: int = 1, model: str | None = None, cpus: float = 1, memory: int = 100) -> GangShape:
    """Return a shape in GPUs and CPUs per rank."""
    return GangShape(ranks, Demand(round(gpus * MILLI), model, round(cpus * MILLI), memory))


def place_on(
    node: str, *devices: int, rank: int = 0, milli: int = MILLI, cpus: float = 1, memory: int = 100
) -> Placement:
    """Return a placement on devices of a node by their numbers."""
    shares = tuple(DeviceShare(DeviceId(f"{node}-{i}"), milli) for i in devices)
    return Placement(rank, NodeId(node), shares, round(cpus * MILLI), memory)


def holding(
    job: int, *placements: Placement, ends_at: float | None = None, tenant: str = "a", started_at: float = 900.0
) -> Holding:
    """Return a running gang."""
    return Holding(GangKey(JobId(str(job)), 0), TenantId(tenant), placements, started_at, ends_at)


def candidate(
    job: int,
    what: GangShape | None = None,
    *,
    tenant: str = "a",
    queue: str = "default",
    priority: int = 0,
    lasts: float | None = None,
    avoid: Sequence[str] = (),
    queued_at: float = 0.0,
    bids: tuple[Bid, ...] = (),
    locality: Locality = Locality.ANY,
    preferred: Sequence[tuple[str, float]] = (),
) -> Candidate:
    """Return a pending gang; jobs are submitted in the order of their numbers."""
    preferences = tuple(Preference(NodeId(n), s) for n, s in preferred)
    return Candidate(
        GangKey(JobId(str(job)), 0),
        TenantId(tenant),
        QueueName(queue),
        priority,
        queued_at,
        job,
        bids or (Bid(what or shape(), locality, preferences),),
        lasts,
        tuple(NodeId(n) for n in avoid),
    )


def tenant(name: str, weight: float = 1.0, guaranteed: float | None = None, limit: float | None = None) -> Tenant:
    """Return a tenant with quotas in GPUs."""
    floor = None if guaranteed is None else round(guaranteed * MILLI)
    cap = None if limit is None else round(limit * MILLI)
    return Tenant(TenantId(name), weight, Quota(floor), Quota(cap))


def standings(
    *tenants: Tenant, holdings: Iterable[Holding] = (), past: dict[str, float] | None = None
) -> dict[TenantId, Standing]:
    """Return where tenants stand: held from ``holdings``, decayed shares from ``past``."""
    found = {}
    for one in tenants:
        held = Amount()
        for h in holdings:
            if h.tenant == one.id:
                for p in h.placements:
                    held = held + Amount.of(p)
        found[one.id] = Standing(one, held, (past or {}).get(one.id, 0.0))
    return found


def queue(
    name: str = "default", *, priority: int = 0, limit: float | None = None, paused: bool = False
) -> tuple[QueueName, QueueStanding]:
    """Return an entry for a mapping of queues, with a limit in GPUs."""
    cap = Quota(None if limit is None else round(limit * MILLI))
    return QueueName(name), QueueStanding(Queue(QueueName(name), priority, cap, paused))


def run_round(
    specs: Sequence[NodeSpec],
    pending: Iterable[Candidate],
    *,
    holdings: Sequence[Holding] = (),
    tenants: Sequence[Tenant] = (),
    past: dict[str, float] | None = None,
    queues: Iterable[tuple[QueueName, QueueStanding]] = (),
    reservations: Sequence[Reservation] = (),
    config: SchedulingConfig = CONFIG,
    at: float = NOW,
) -> Arbitration:
    """Run one round; tenants that are not given have weight 1."""
    index = PendingIndex(pending)
    known = {t.id: t for t in tenants}
    names = sorted({*known, *index.tenants(), *(h.tenant for h in holdings)})
    all_tenants = [known.get(name) or Tenant(name) for name in names]
    stand = standings(*all_tenants, holdings=holdings, past=past)
    return arbitrate(snapshot(specs, holdings, at), index, stand, dict(queues), reservations, config)


def started(verdict: Arbitration) -> list[int]:
    """Return the numbers of the jobs that won, in the order in which they were placed."""
    return [int(allocation.key.job) for allocation in verdict.allocations]


def nodes_of(verdict: Arbitration, job: int) -> list[str]:
    """Return the nodes of a job's ranks in order of rank."""
    found = next(a for a in verdict.allocations if a.key.job == str(job))
    return [p.node for p in found.placements]


def devices_of(verdict: Arbitration, job: int) -> list[str]:
    """Return the devices of a job in order of rank."""
    found = next(a for a in verdict.allocations if a.key.job == str(job))
    return [s.uuid for p in found.placements for s in p.devices]


def job(spec: JobSpec, *gangs: Gang, cancelled_by: str | None = None) -> Job:
    """Return job 7 with these gangs."""
    open_gangs = sum(1 for g in gangs if not g.state.ended)
    running = any(g.state is JobState.RUNNING for g in gangs)
    return Job(
        JobId("7"),
        spec,
        NOW,
        {g.index: g for g in gangs},
        state=JobState.RUNNING if running else JobState.PENDING,
        cancelled_by=cancelled_by,
        open_gangs=open_gangs,
    )
