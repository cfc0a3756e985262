"""Subscribers of journaled facts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import msgspec

from corral.model.events import GangEvent, JobEnded, job_of
from corral.model.ids import JobId, TenantId
from corral.ports.store import JournalEntry

BACKLOG_MAX = 10_000


class Subscriber(msgspec.Struct, eq=False):
    """One listener: to all, to one tenant's jobs, to one job, or to that job and one of its gangs.

    ``queue`` ends with ``None``. Who is more than ``BACKLOG_MAX`` facts behind loses what it had not taken yet and is
    ended: it goes on from the journal, after the last fact that it saw.
    """

    queue: asyncio.Queue[JournalEntry | None]
    job: JobId | None = None
    tenant: TenantId | None = None
    gang: int | None = None

    def wants(self, entry: JournalEntry, job: JobId | None, tenant: TenantId | None) -> bool:
        """Return whether a fact about ``job`` of ``tenant`` is for this listener."""
        if self.job not in (None, job) or self.tenant not in (None, tenant):
            return False
        return self.gang is None or not isinstance(entry.fact, GangEvent) or entry.fact.gang == self.gang


class Feed:
    """Hands every appended fact to those who may see it."""

    def __init__(self) -> None:
        self._subscribers: set[Subscriber] = set()
        self._ended: dict[JobId, list[asyncio.Future[None]]] = {}

    def subscribe(self, job: JobId | None, tenant: TenantId | None, gang: int | None = None) -> Subscriber:
        """Return a new subscriber; call ``unsubscribe`` when done."""
        subscriber = Subscriber(asyncio.Queue(BACKLOG_MAX), job, tenant, gang)
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

    def publish(self, entries: Iterable[JournalEntry], tenant_of: Callable[[JobId], TenantId | None]) -> None:
        """Hand appended entries out, in order. ``tenant_of`` must still know the jobs that these entries end."""
        for entry in entries:
            job = job_of(entry.fact)
            tenant = tenant_of(job) if job is not None and self._subscribers else None
            for subscriber in list(self._subscribers):
                if not subscriber.wants(entry, job, tenant):
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
        # An overrun one keeps nothing: if only its oldest facts went, it would go on after a gap that nobody sees.
        self._subscribers.discard(subscriber)
        if subscriber.queue.full():
            while not subscriber.queue.empty():
                subscriber.queue.get_nowait()
        subscriber.queue.put_nowait(None)
