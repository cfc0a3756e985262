"""The journal and the relational rows beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from corral.model.events import Fact
from corral.model.ids import JobId, TenantId


class JournalEntry(msgspec.Struct, frozen=True):
    """One journaled fact with its place."""

    seq: int
    epoch: int
    fact: Fact


class FinishedJob(msgspec.Struct, frozen=True):
    """A finished job as a row. ``document`` is the JSON of :class:`corral.model.job.Job` at its end.

    ``gpu_milli`` is what each of its ``ranks`` asked for, of an elastic job in its last size. GPU use is in milli-GPU
    seconds; ``idle_share`` is 0..1 or ``None`` when the device never told.
    """

    id: JobId
    number: int
    tenant: TenantId
    queue: str
    name: str
    user: str
    state: str
    submitted_at: float
    started_at: float | None
    ended_at: float
    gangs: int
    restarts: int
    moves: int
    used_gpu_milli_s: float
    lost_gpu_milli_s: float
    idle_share: float | None
    idempotency_key: str | None
    request_digest: str | None
    document: bytes
    ranks: int = 1
    gpu_milli: int = 0
    gpu_model: str | None = None
    is_array: bool = False
    exit_code: int | None = None
    exit_cause: str | None = None
    message: str = ""


class UsageRow(msgspec.Struct, frozen=True):
    """Milli-GPU and milli-CPU seconds that a tenant used in one hour (``hour`` = epoch seconds, whole hours)."""

    tenant: TenantId
    hour: int
    gpu_milli_s: float
    cpus_milli_s: float
    lost_gpu_milli_s: float = 0.0


class JobQuery(msgspec.Struct, frozen=True):
    """Which finished jobs to read: newest first, ``before`` is an exclusive job number, ``since`` bounds the end."""

    tenant: TenantId | None = None
    name: str | None = None
    state: str | None = None
    since: float | None = None
    before: int | None = None
    limit: int = 100


class Batch(msgspec.Struct, frozen=True):
    """What one append writes in one transaction."""

    facts: tuple[Fact, ...]
    finished: tuple[FinishedJob, ...] = ()
    usage: tuple[UsageRow, ...] = ()


class Recovered(msgspec.Struct, frozen=True):
    """What a start finds: the newest snapshot (or none) and every entry after it."""

    snapshot_seq: int
    snapshot: bytes | None
    entries: tuple[JournalEntry, ...]


class Store(Protocol):
    """Durable state. All methods block; the shell calls them in a thread of their own.

    Errors: ``StoreFull``, ``StoreCorrupt``, ``StoreConflict``, ``SchemaTooNew``, ``StateUnusable``; and ``StoreAway``
    of one that is a service: what was asked of it may have been done.
    """

    def open(self) -> None:
        """Open, check and migrate the store. Must be called before anything else."""

    def close(self) -> None:
        """Close it; a second call does nothing."""

    def acquire_leadership(self) -> int:
        """Raise the leader epoch durably and return it. Writers of older epochs are refused from now on."""

    def recover(self) -> Recovered:
        """Return the newest snapshot and the entries after it, oldest first."""

    def append(self, expected_seq: int, epoch: int, batch: Batch) -> int:
        """Append a batch after ``expected_seq`` (compare-and-append) and return the new last sequence.

        Durable when it returns. Usage rows are added to what is there. Raises ``StoreConflict`` when the last sequence
        or the epoch differs: another controller has written. After ``StoreAway`` the same call finds out whether the
        batch is there, and appends it if not.
        """

    def save_snapshot(self, seq: int, data: bytes) -> None:
        """Keep ``data`` as the state after ``seq``; older snapshots but one are dropped."""

    def entries_of_job(self, job: JobId) -> list[JournalEntry]:
        """Return the journaled facts of one job, oldest first."""

    def entries_after(self, seq: int, limit: int) -> list[JournalEntry]:
        """Return up to ``limit`` entries after ``seq``, oldest first."""

    def finished_job(self, job: JobId) -> FinishedJob | None:
        """Return one finished job."""

    def finished_jobs(self, query: JobQuery) -> list[FinishedJob]:
        """Return finished jobs, newest first, without their documents (``document`` is empty)."""

    def usage(self, since_hour: int, until_hour: int, tenant: TenantId | None) -> list[UsageRow]:
        """Return the usage rows of hours in [since, until)."""

    def prune(self, *, entries_before: float, keep_jobs: Sequence[JobId]) -> int:
        """Delete journal entries older than a time and covered by a snapshot, except of live jobs; return how many."""
