"""Live streams: journaled facts from any point on, and logs over restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec

from corral.control.access import Access, scope
from corral.control.shell import ControlShell
from corral.model.errors import NotFound
from corral.model.events import GangEnded, GangPlaced, JobEnded, job_of
from corral.model.ids import JobId, NodeId, TenantId
from corral.model.job import Job
from corral.ports.engine import LogChunk
from corral.ports.pool import Change, Principal
from corral.ports.store import JournalEntry, Store

PAGE = 1_000
LOG_APPEARS_S = 0.05
LOG_BYTES = 1 << 18


async def follow_changes(
    shell: ControlShell, store: Store, access: Access, who: Principal, ref: str | None, after_seq: int | None
) -> AsyncIterator[Change]:
    """Yield the facts that the principal may see after ``after_seq`` (``None``: from now), then live ones.

    A sequence that this journal has not reached is of another pool: then from now. Ends when the pool stops, and when
    the reader is too slow: it goes on after the last fact that it saw.
    """
    job = (await access.find(who, ref)).job.id if ref is not None else None
    tenant = scope(who)
    subscriber = shell.feed.subscribe(job, tenant)
    try:
        sent = shell.last_seq if after_seq is None else min(after_seq, shell.last_seq)
        if after_seq is not None and job is not None:
            for entry in await shell.read(store.entries_of_job, job):
                if entry.seq > sent:
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


class _Part(msgspec.Struct, frozen=True):
    """The task whose log is followed: one rank of one gang of a job."""

    job: Job
    gang: int
    rank: int

    @property
    def place(self) -> tuple[NodeId, int] | None:
        """Return the node and the incarnation of the task as it is now, ``None`` while its gang waits."""
        gang = self.job.gangs[self.gang]
        placement = gang.tasks[self.rank].placement
        return (placement.node, gang.incarnation) if placement is not None else None

    def may_write(self, incarnation: int) -> bool:
        """Return whether an incarnation may write a log that is not there yet."""
        gang = self.job.gangs[self.gang]
        return gang.incarnation == incarnation and gang.tasks[self.rank].state.holds


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
    job = found.job
    if rank not in range(job.spec.shape.ranks):
        raise NotFound(f"job {job.id} has no rank {rank}", hint=f"ranks are 0 to {job.spec.shape.ranks - 1}")
    part = _Part(job, found.gang or 0, rank)
    subscriber = shell.feed.subscribe(job.id, None, part.gang)
    try:
        over = job.gangs[part.gang].state.ended
        shown = 0
        place = part.place or await _last_place(shell, store, part)
        while True:
            if place is not None and place[1] > shown:
                node, shown = place
                async for chunk in _one_log(shell, part, node, shown, offset, follow=follow):
                    yield chunk
                offset = 0
            if not follow or over:
                return
            entry = await subscriber.queue.get()
            fact = entry.fact if entry is not None else None
            over = fact is None or isinstance(fact, GangEnded | JobEnded)
            place = (fact.placements[rank].node, fact.incarnation) if isinstance(fact, GangPlaced) else None
    finally:
        shell.feed.unsubscribe(subscriber)


async def _one_log(
    shell: ControlShell, part: _Part, node: NodeId, incarnation: int, offset: int, *, follow: bool
) -> AsyncIterator[LogChunk]:
    task = part.job.task_key(part.gang, part.rank)
    while True:
        try:
            if follow and not part.job.state.ended:
                async for chunk in shell.engine.follow_log(node, task, incarnation, offset):
                    yield chunk
                    offset = chunk.offset + len(chunk.data)
                return
            while True:
                chunk = await shell.engine.read_log(node, task, incarnation, offset, LOG_BYTES)
                if not chunk.data:
                    return
                yield chunk
                offset = chunk.offset + len(chunk.data)
        except NotFound:
            if not follow or not part.may_write(incarnation):
                return
            await asyncio.sleep(LOG_APPEARS_S)


async def _last_place(shell: ControlShell, store: Store, part: _Part) -> tuple[NodeId, int] | None:
    """Return the last place of a gang that waits again (its tasks hold no placement any more)."""
    found = None
    for entry in await shell.read(store.entries_of_job, part.job.id):
        fact = entry.fact
        if isinstance(fact, GangPlaced) and fact.gang == part.gang:
            found = (fact.placements[part.rank].node, fact.incarnation)
    return found
