"""Answers about the pool, read from the book: receipts, nodes, tenants, usage, status. ``why`` asks the policy."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from corral.control.accounts import HOUR_S, usage_rows
from corral.control.core import ControlCore
from corral.control.notes import node_notes
from corral.model.ids import GangKey, JobId, NodeId, TenantId
from corral.model.job import Gang, Job, JobState, deciding_exit
from corral.model.report import DeviceReport, Ledger, LedgerEntry, NodeReport, PoolStatus, Receipt, TenantReport
from corral.model.resources import MILLI, Amount
from corral.model.state import Held
from corral.policy.explain import HIDDEN
from corral.policy.fairness import due_shares
from corral.ports.store import UsageRow

HOUR_GPU_MILLI_S = 3_600.0 * MILLI


# ---- receipts ------------------------------------------------------------------------------------------------------


def receipt(core: ControlCore, job: Job, now: float, idle_share: float | None) -> Receipt:
    """Return what a job cost so far (live) or in all (finished)."""
    gangs = list(job.gangs.values())
    last = deciding_exit(gangs)
    ended = job.ended_at
    used = sum(g.used_gpu_milli_s + _running_use(g, now) for g in gangs)
    nodes = {t.placement.node: None for g in gangs for t in g.tasks if t.placement is not None}
    tasks = [t.exit for g in gangs for t in g.tasks if t.exit is not None]
    cpu = [e.cpu_s for e in tasks if e.cpu_s is not None]
    memory = [e.rss_max_mib for e in tasks if e.rss_max_mib is not None]
    return Receipt(
        job=job.id,
        name=job.spec.name,
        tenant=job.spec.tenant,
        state=job.state,
        submitted_at=job.submitted_at,
        started_at=job.started_at,
        ended_at=ended,
        waited_s=max((_waited(g, now) for g in gangs), default=0.0),
        ran_s=max(0.0, (ended if ended is not None else now) - job.started_at) if job.started_at is not None else 0.0,
        gpu_hours=used / HOUR_GPU_MILLI_S,
        lost_gpu_hours=sum(g.lost_gpu_milli_s for g in gangs) / HOUR_GPU_MILLI_S,
        idle_share=idle_share,
        restarts=sum(g.restarts for g in gangs),
        moves=sum(g.moves for g in gangs),
        gangs=len(gangs),
        exit_cause=last.cause.value if last is not None else job.message or job.state.value,
        exit_code=last.code if last is not None else None,
        nodes=tuple(nodes),
        cpu_s=sum(cpu) if cpu else None,
        rss_max_mib=max(memory) if memory else None,
        simulated=any(n in core.book.state.nodes and core.book.state.nodes[n].spec.simulated for n in nodes),
    )


def _waited(gang: Gang, now: float) -> float:
    waiting = gang.state is JobState.PENDING
    return gang.waited_s + (max(0.0, now - gang.queued_at) if waiting else 0.0)


def _running_use(gang: Gang, now: float) -> float:
    begin = gang.placed_at if gang.placed_at is not None else now
    return sum(p.gpu_milli for p in gang.placements) * max(0.0, now - begin)


# ---- nodes and tenants ---------------------------------------------------------------------------------------------


def nodes(core: ControlCore, now: float, tenant: TenantId | None) -> tuple[NodeReport, ...]:
    """Return all nodes; holders of other tenants are left out for a tenant."""
    book = core.book
    found = []
    for name, node in sorted(book.state.nodes.items()):
        held = book.state.held.get(name) or Held()
        contact = book.observed.contact(name)
        keys = [k for k in map(_gang_key, held.gangs) if _may_see(core, k.job, tenant)]
        by_device: dict[str, list[GangKey]] = {}
        for key in keys:
            for placement in book.state.jobs[key.job].gangs[key.gang].placements:
                if placement.node == name:
                    for share in placement.devices:
                        by_device.setdefault(share.uuid, []).append(key)
        devices = tuple(
            DeviceReport(
                spec=d,
                state=contact.devices.get(d.uuid),
                failed_reason=node.failed.get(d.uuid),
                held_milli=held.devices.get(d.uuid, 0),
                holders=tuple(by_device.get(d.uuid, ())),
            )
            for d in node.spec.devices
        )
        found.append(
            NodeReport(
                spec=node.spec,
                state=node_state(core, name),
                cordoned=node.cordoned,
                cordon_reason=node.cordon_reason,
                age_s=now - contact.heard_at if contact.heard_at is not None else None,
                held=held.amount,
                devices=devices,
                gangs=tuple(keys),
                load_1m=contact.load_1m,
                memory_free_mib=contact.memory_free_mib,
                clock_skew_s=contact.clock_skew_s,
                notes=node_notes(core, name, now),
                draining=node.draining,
            )
        )
    return tuple(found)


def node_state(core: ControlCore, node: NodeId) -> str:
    """Return ``up``, ``suspect`` (silent) or ``lost``."""
    if core.book.state.nodes[node].lost:
        return "lost"
    return "up" if core.book.board.view(node).answering else "suspect"


def _gang_key(text: str) -> GangKey:
    job, gang = text.split(".")
    return GangKey(JobId(job), int(gang))


def _may_see(core: ControlCore, job: JobId, tenant: TenantId | None) -> bool:
    live = core.book.state.jobs.get(job)
    return live is not None and tenant in (None, live.spec.tenant)


def tenants(core: ControlCore, now: float) -> tuple[TenantReport, ...]:
    """Return every tenant with its standing; shares are due among those who hold or want something."""
    book = core.book
    standings = book.standings.of_tenants(book.state, book.board.capacity, now)
    running: dict[TenantId, int] = {}
    pending: dict[TenantId, int] = {}
    for job in book.state.jobs.values():
        for gang in job.gangs.values():
            if gang.live:
                running[job.spec.tenant] = running.get(job.spec.tenant, 0) + 1
            elif not gang.state.ended:
                pending[job.spec.tenant] = pending.get(job.spec.tenant, 0) + 1
    due = due_shares(standings, set(running) | set(pending), capacity=book.board.capacity)
    return tuple(
        TenantReport(
            tenant=standing.tenant,
            due_share=due.get(name, 0.0),
            held_share=standing.held.dominant_share(book.board.capacity),
            decayed_share=standing.decayed_share,
            held=standing.held,
            running=running.get(name, 0),
            pending=pending.get(name, 0),
        )
        for name, standing in sorted(standings.items())
    )


def ledger(core: ControlCore, since: float, tenant: TenantId | None) -> Ledger:
    """Return the fairness ledger. A tenant sees its own account and what it gained or gave, without foreign jobs."""
    book = core.book
    lines = book.ledger.lines(since, book.board.capacity.gpu_milli / MILLI)
    entries = book.ledger.entries(since)
    if tenant is not None:
        lines = tuple(line for line in lines if line.tenant == tenant)
        entries = tuple(_veiled(e, tenant) for e in entries if tenant in (e.tenant, e.preemption.tenant))
    return Ledger(since // HOUR_S * HOUR_S, lines, entries)


def _veiled(entry: LedgerEntry, viewer: TenantId) -> LedgerEntry:
    preemption, key = entry.preemption, entry.key
    if entry.tenant != viewer:
        key = GangKey(HIDDEN, 0)
    if preemption.tenant != viewer and preemption.beneficiary is not None and entry.tenant != preemption.tenant:
        preemption = replace(preemption, beneficiary=HIDDEN)
    return replace(entry, key=key, preemption=preemption)


# ---- usage and status ----------------------------------------------------------------------------------------------


def running_usage(core: ControlCore, now: float, since: float, until: float, tenant: TenantId | None) -> list[UsageRow]:
    """Return what still runs as usage rows, up to now."""
    rows: list[UsageRow] = []
    for holding in core.book.board.holdings.values():
        if tenant not in (None, holding.tenant):
            continue
        for placement in holding.placements:
            begin, end = max(since, holding.started_at), min(until, now)
            rows.extend(usage_rows(holding.tenant, placement, begin, end))
    return rows


def merge_usage(rows: Iterable[UsageRow]) -> tuple[UsageRow, ...]:
    """Add rows of the same tenant and hour together."""
    merged: dict[tuple[TenantId, int], UsageRow] = {}
    for row in rows:
        key = (row.tenant, row.hour)
        old = merged.get(key)
        merged[key] = (
            row
            if old is None
            else UsageRow(
                row.tenant,
                row.hour,
                old.gpu_milli_s + row.gpu_milli_s,
                old.cpus_milli_s + row.cpus_milli_s,
                old.lost_gpu_milli_s + row.lost_gpu_milli_s,
            )
        )
    return tuple(merged[key] for key in sorted(merged))


def status(core: ControlCore, now: float, seq: int) -> PoolStatus:
    """Return the pool at a glance; the daemon adds what it knows of itself."""
    book = core.book
    held = Amount()
    for one in book.state.held.values():
        held = held + one.amount
    specs = [n.spec for n in book.state.nodes.values()]
    devices = [d for spec in specs for d in spec.devices]
    models: dict[str, int] = {}
    for device in devices:
        models[device.model] = models.get(device.model, 0) + 1
    gangs = [g for j in book.state.jobs.values() for g in j.gangs.values()]
    return PoolStatus(
        version="",
        pid=0,
        url="",
        started_at=now,
        now=now,
        epoch=book.epoch,
        seq=seq,
        nodes_up=sum(1 for n in book.state.nodes if node_state(core, n) == "up"),
        nodes=len(specs),
        devices=len(devices),
        devices_failed=sum(len(n.failed) for n in book.state.nodes.values()),
        simulated_devices=sum(1 for d in devices if d.simulated),
        capacity=book.board.capacity,
        held=held,
        running_gangs=sum(1 for g in gangs if g.live),
        pending_gangs=sum(1 for g in gangs if g.state is JobState.PENDING),
        waiting_jobs=sum(1 for j in book.state.jobs.values() if j.waiting_for),
        finished_jobs=book.state.finished,
        cpu_pool=not devices,
        clock_offset_s=0.0,
        models=models,
    )
