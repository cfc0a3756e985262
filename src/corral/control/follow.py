"""Live streams: journaled facts from any point on, and logs over restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from corral.control.access import Access, scope
from corral.control.shell import ControlShell
from corral.model.errors import NotFound
from corral.model.events import GangPlaced, job_of
from corral.model.ids import JobId, NodeId, TaskKey, TenantId
from corral.model.job import Job, TaskState
from corral.ports.engine import LogChunk
from corral.ports.pool import Change, Principal
from corral.ports.store import JournalEntry, Store

PAGE = 1_000
LOG_APPEARS_S = 0.05


async def follow_changes(
    shell: ControlShell, store: Store, access: Access, who: Principal, ref: str | None, after_seq: int | None
) -> AsyncIterator[Change]:
    """Yield the facts that the principal may see after ``after_seq`` (``None``: from now), then live ones."""
    job = (await access.find(who, ref)).job.id if ref is not None else None
    tenant = scope(who)
    subscriber = shell.feed.subscribe(job, tenant)
    try:
        sent = shell.last_seq if after_seq is None else after_seq
        if after_seq is not None and job is not None:
            for entry in await shell.read(store.entries_of_job, job):
                if entry.seq > after_seq:
                    sent = entry.seq
                    yield Change(entry)
        elif after_seq is not None:
            owners: dict[JobId, TenantId | None] = {}
            while page := await shell.read(store.entries_after, sent, PAGE):
                for entry in page:
                    sent = entry.seq
                    if await _visible(shell, store, entry, tenant, owners):
                        yield Change(entry)
                if len(page) < PAGE:
                    break
        while (live := await subscriber.queue.get()) is not None:
            if live.seq > sent:
                yield Change(live)
    finally:
        shell.feed.unsubscribe(subscriber)


async def _visible(
    shell: ControlShell,
    store: Store,
    entry: JournalEntry,
    tenant: TenantId | None,
    owners: dict[JobId, TenantId | None],
) -> bool:
    about = job_of(entry.fact)
    if tenant is None:
        return True
    if about is None:
        return False
    if about not in owners:
        live = shell.core.book.state.jobs.get(about)
        row = None if live is not None else await shell.read(store.finished_job, about)
        owners[about] = live.spec.tenant if live is not None else row.tenant if row is not None else None
    return owners[about] == tenant


async def follow_log(
    shell: ControlShell,
    store: Store,
    access: Access,
    who: Principal,
    ref: str,
    rank: int,
    offset: int,
    *,
    follow: bool,
) -> AsyncIterator[LogChunk]:
    """Yield one task's log: its newest incarnation, and when followed every later one until the gang ended."""
    found = await access.find(who, ref)
    job, gang = found.job, found.gang or 0
    if rank not in range(job.spec.shape.ranks):
        raise NotFound(f"job {job.id} has no rank {rank}", hint=f"ranks are 0 to {job.spec.shape.ranks - 1}")
    subscriber = shell.feed.subscribe(job.id, None)
    done_incarnation = 0
    try:
        while True:
            place = _place(job, gang, rank) or await _last_place(shell, store, job, gang, rank)
            if place is not None and place[1] > done_incarnation:
                node, done_incarnation = place
                task = job.task_key(gang, rank)
                async for chunk in _one_log(shell, job, node, task, done_incarnation, offset, follow=follow):
                    yield chunk
                offset = 0
            if not follow or job.gangs[gang].state.ended or await subscriber.queue.get() is None:
                return
    finally:
        shell.feed.unsubscribe(subscriber)


async def _one_log(
    shell: ControlShell, job: Job, node: NodeId, task: TaskKey, incarnation: int, offset: int, *, follow: bool
) -> AsyncIterator[LogChunk]:
    while True:
        try:
            if follow and not job.state.ended:
                async for chunk in shell.engine.follow_log(node, task, incarnation, offset):
                    yield chunk
                    offset = chunk.offset + len(chunk.data)
                return
            while True:
                chunk = await shell.engine.read_log(node, task, incarnation, offset, 1 << 18)
                if not chunk.data:
                    return
                yield chunk
                offset = chunk.offset + len(chunk.data)
        except NotFound:
            state = job.gangs[task.gang].tasks[task.rank].state
            if not follow or state not in (TaskState.PLACED, TaskState.STARTING, TaskState.RUNNING):
                return
            await asyncio.sleep(LOG_APPEARS_S)


def _place(job: Job, gang: int, rank: int) -> tuple[NodeId, int] | None:
    placement = job.gangs[gang].tasks[rank].placement
    return (placement.node, job.gangs[gang].incarnation) if placement is not None else None


async def _last_place(shell: ControlShell, store: Store, job: Job, gang: int, rank: int) -> tuple[NodeId, int] | None:
    """Return the last place of a gang that waits again (its tasks hold no placement any more)."""
    found = None
    for entry in await shell.read(store.entries_of_job, job.id):
        fact = entry.fact
        if isinstance(fact, GangPlaced) and fact.gang == gang:
            found = (fact.placements[rank].node, fact.incarnation)
    return found
