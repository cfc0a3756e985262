"""Subscribers of journaled facts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec

from corral.model.events import JobEnded, JobSubmitted, job_of
from corral.model.ids import JobId, TenantId
from corral.model.state import PoolState
from corral.ports.store import JournalEntry

BACKLOG_MAX = 10_000
TENANTS_MAX = 20_000


class Subscriber(msgspec.Struct, eq=False):
    """One listener: to one job (``job``), to one tenant's jobs (``tenant``), or to all. Overrun closes it."""

    queue: asyncio.Queue[JournalEntry | None]
    job: JobId | None = None
    tenant: TenantId | None = None


class Feed:
    """Hands every appended fact to those who may see it."""

    def __init__(self) -> None:
        self._subscribers: set[Subscriber] = set()
        self._tenant_of: dict[JobId, TenantId] = {}
        self._ended: dict[JobId, list[asyncio.Future[None]]] = {}

    def subscribe(self, job: JobId | None, tenant: TenantId | None) -> Subscriber:
        """Return a new subscriber; call ``unsubscribe`` when done."""
        subscriber = Subscriber(asyncio.Queue(BACKLOG_MAX), job, tenant)
        self._subscribers.add(subscriber)
        return subscriber

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Let a subscriber go."""
        self._subscribers.discard(subscriber)

    def close(self) -> None:
        """End all subscriptions."""
        for subscriber in list(self._subscribers):
            self._end(subscriber)

    def ended(self, job: JobId) -> asyncio.Future[None]:
        """Return a future that is done once the job's end is durable."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ended.setdefault(job, []).append(future)
        return future

    def forget(self, job: JobId, future: asyncio.Future[None]) -> None:
        """Let a future of ``ended`` go."""
        waiting = self._ended.get(job, [])
        if future in waiting:
            waiting.remove(future)
        if not waiting:
            self._ended.pop(job, None)

    def publish(self, entries: Iterable[JournalEntry], state: PoolState) -> None:
        """Hand appended entries out, in order."""
        for entry in entries:
            job = job_of(entry.fact)
            tenant = self._tenant(job, entry, state)
            for subscriber in list(self._subscribers):
                if subscriber.job is not None and subscriber.job != job:
                    continue
                if subscriber.tenant is not None and subscriber.tenant != tenant:
                    continue
                try:
                    subscriber.queue.put_nowait(entry)
                except asyncio.QueueFull:
                    self._end(subscriber)
            if isinstance(entry.fact, JobEnded):
                for future in self._ended.pop(entry.fact.job, ()):
                    if not future.done():
                        future.set_result(None)

    def _end(self, subscriber: Subscriber) -> None:
        self._subscribers.discard(subscriber)
        while subscriber.queue.full():
            subscriber.queue.get_nowait()
        subscriber.queue.put_nowait(None)

    def _tenant(self, job: JobId | None, entry: JournalEntry, state: PoolState) -> TenantId | None:
        if job is None:
            return None
        if isinstance(entry.fact, JobSubmitted):
            tenant = entry.fact.spec.tenant
        elif job in state.jobs:
            return state.jobs[job].spec.tenant
        else:
            return self._tenant_of.pop(job, None)
        self._tenant_of[job] = tenant
        while len(self._tenant_of) > TENANTS_MAX:
            del self._tenant_of[next(iter(self._tenant_of))]
        return tenant
