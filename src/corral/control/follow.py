"""Live streams: journaled facts from any point on, and logs over restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
from msgspec.structs import replace

from corral.control.access import Access, scope, seen_by
from corral.control.files import ControllerFiles
from corral.control.shell import ControlShell
from corral.model.errors import NotFound, Unavailable
from corral.model.events import GangEnded, GangPlaced, JobEnded, job_of
from corral.model.ids import JobId, NodeId, TaskKey, TenantId
from corral.model.job import Job
from corral.ports.engine import LogChunk
from corral.ports.pool import Change, Principal
from corral.ports.store import JournalEntry, Store

PAGE = 1_000
LOG_APPEARS_S = 0.05
LOG_AWAY_S = 0.5
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
                    yield Change(seen_by(entry, tenant))
        elif after_seq is not None:
            owners: dict[JobId, TenantId | None] = {}
            while page := await shell.read(store.entries_after, sent, PAGE):
                for entry in page:
                    sent = entry.seq
                    if await _visible(shell, store, entry, tenant, owners):
                        yield Change(seen_by(entry, tenant))
                if len(page) < PAGE:
                    break
        while (live := await subscriber.queue.get()) is not None:
            if live.seq > sent:
                yield Change(seen_by(live, tenant))
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


class LogStart(msgspec.Struct, frozen=True):
    """Where in the logs of a task to begin: ``offset`` in that of ``incarnation`` (``None``: the newest)."""

    rank: int
    offset: int = 0
    incarnation: int | None = None


class LogSource:
    """Where logs are: at the nodes, and what came back of them here."""

    def __init__(self, shell: ControlShell, files: ControllerFiles | None) -> None:
        self.shell = shell
        self._files = files

    def at_node(
        self, node: NodeId, task: TaskKey, incarnation: int, offset: int, *, follow: bool
    ) -> AsyncIterator[LogChunk]:
        """Yield what the node has. Raises ``NotFound``, and ``Unavailable`` when it cannot be reached."""
        if self._files is not None and node not in self.shell.engine.connected():
            raise Unavailable(f"node {node} is not connected")
        if follow:
            return self.shell.engine.follow_log(node, task, incarnation, offset)
        return self._read(node, task, incarnation, offset)

    async def _read(self, node: NodeId, task: TaskKey, incarnation: int, offset: int) -> AsyncIterator[LogChunk]:
        while True:
            chunk = await self.shell.engine.read_log(node, task, incarnation, offset, LOG_BYTES)
            if not chunk.data:
                return
            yield chunk
            offset = chunk.offset + len(chunk.data)

    async def came_back(self, task: TaskKey, incarnation: int) -> bool:
        """Return whether any of a log came back."""
        return self._files is not None and await self._files.read_log(task, incarnation, 0, 0) is not None

    async def here(self, task: TaskKey, incarnation: int, offset: int) -> AsyncIterator[LogChunk]:
        """Yield what came back."""
        while self._files is not None:
            chunk = await self._files.read_log(task, incarnation, offset, LOG_BYTES)
            if chunk is None or not (chunk.data or chunk.complete):
                return
            yield chunk
            if chunk.complete:
                return
            offset = chunk.offset + len(chunk.data)


async def follow_log(
    source: LogSource, store: Store, access: Access, who: Principal, ref: str, start: LogStart, *, follow: bool
) -> AsyncIterator[LogChunk]:
    """Yield one task's log: of one incarnation, and when followed of every later one until the gang ended."""
    shell = source.shell
    found = await access.find(who, ref)
    job, rank = found.job, start.rank
    if rank not in range(job.spec.shape.ranks):
        raise NotFound(f"job {job.id} has no rank {rank}", hint=f"ranks are 0 to {job.spec.shape.ranks - 1}")
    part = _Part(job, found.gang or 0, rank)
    subscriber = shell.feed.subscribe(job.id, None, part.gang)
    try:
        over = job.gangs[part.gang].state.ended
        shown, first = 0, start.incarnation
        places = await _places(shell, store, part, start, follow=follow)
        while True:
            for node, incarnation in places:
                if incarnation <= shown:
                    continue
                shown, first = incarnation, first if first is not None else incarnation
                offset = start.offset if incarnation == first else 0
                async for chunk in _one_log(source, part, node, shown, offset, follow=follow):
                    yield replace(chunk, incarnation=shown)
            if not follow or over:
                return
            entry = await subscriber.queue.get()
            fact = entry.fact if entry is not None else None
            over = fact is None or isinstance(fact, GangEnded | JobEnded)
            places = [(fact.placements[rank].node, fact.incarnation)] if isinstance(fact, GangPlaced) else []
    finally:
        shell.feed.unsubscribe(subscriber)


async def _one_log(
    source: LogSource, part: _Part, node: NodeId, incarnation: int, offset: int, *, follow: bool
) -> AsyncIterator[LogChunk]:
    """Yield the log of one start: from its node, or what came back of it where the node does not have or tell it."""
    task = part.job.task_key(part.gang, part.rank)
    any_read = False
    while True:
        away: Unavailable | None = None
        try:
            lives = follow and not part.job.state.ended
            async for chunk in source.at_node(node, task, incarnation, offset, follow=lives):
                yield chunk
                any_read, offset = True, chunk.offset + len(chunk.data)
            return
        except NotFound:
            pass
        except Unavailable as error:
            away = error
        async for chunk in source.here(task, incarnation, offset):
            yield chunk
            any_read, offset = True, chunk.offset + len(chunk.data)
            if chunk.complete:
                return
        if not follow or not part.may_write(incarnation):
            if away is not None and not any_read and not await source.came_back(task, incarnation):
                raise away
            return
        await asyncio.sleep(LOG_APPEARS_S if away is None else LOG_AWAY_S)


async def _places(
    shell: ControlShell, store: Store, part: _Part, start: LogStart, *, follow: bool
) -> list[tuple[NodeId, int]]:
    """Return (node, incarnation) of the logs to begin with, in order.

    A gang that waits again holds no placement any more, and an older start is told by its facts alone.
    """
    newest = part.place
    if start.incarnation is None and newest is not None:
        return [newest]
    found = [
        (entry.fact.placements[part.rank].node, entry.fact.incarnation)
        for entry in await shell.read(store.entries_of_job, part.job.id)
        if isinstance(entry.fact, GangPlaced) and entry.fact.gang == part.gang
    ]
    if start.incarnation is None:
        return found[-1:]
    if newest is not None and newest not in found:
        found.append(newest)
    return [place for place in found if place[1] == start.incarnation or (follow and place[1] > start.incarnation)]
