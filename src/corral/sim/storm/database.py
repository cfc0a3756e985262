"""The database of a highly available control plane, as controllers see it: one journal, one row that says who leads.

Every call is one transaction at one instant. It takes its time both ways; when the database is away the call fails, and
whether it was carried out before is not known to the caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from corral.model.errors import CorralError, StoreAway, StoreConflict
from corral.model.ids import JobId, TenantId
from corral.ports.leadership import Answer, Ask, Candidate, Claim, Head, LeaderRow, Look, Renew, Resign
from corral.ports.store import Batch, FinishedJob, JobQuery, JournalEntry, Recovered, UsageRow
from corral.sim.storm.course import Course
from corral.sim.storm.network import Network

HOST = "db"
PATIENCE_S = 1.5
"""After so long without an answer a call is given up."""


class Database:
    """What is durable. ``appended`` is called with every batch in the instant in which it is written."""

    def __init__(self, appended: Callable[[int, Batch], None]) -> None:
        self.up = True
        self.slow_s = 0.0
        self.row = LeaderRow()
        self.entries: list[JournalEntry] = []
        self.finished: dict[JobId, FinishedJob] = {}
        self.snapshot: tuple[int, bytes] | None = None
        self._appended = appended

    # ---- the journal -----------------------------------------------------------------------------------------------

    def append(self, expected_seq: int, epoch: int, batch: Batch) -> int:
        """Append a batch unless somebody else has written; one that is there already is not written again."""
        last = len(self.entries)
        if epoch != self.row.epoch:
            raise StoreConflict(f"epoch {epoch} leads no longer: it is {self.row.epoch}")
        if last != expected_seq:
            there = self.entries[expected_seq : expected_seq + len(batch.facts)]
            if [entry.fact for entry in there] == list(batch.facts) and all(e.epoch == epoch for e in there):
                return last
            raise StoreConflict(f"the journal ends at {last}, not at {expected_seq}")
        self.entries.extend(JournalEntry(last + i + 1, epoch, fact) for i, fact in enumerate(batch.facts))
        for row in batch.finished:
            if row.id in self.finished:
                raise AssertionError(f"job {row.id} finished twice")
            self.finished[row.id] = row
        self._appended(epoch, batch)
        return len(self.entries)

    def recover(self) -> Recovered:
        """Return the newest snapshot and what follows it."""
        seq, data = self.snapshot or (0, None)
        return Recovered(seq, data, tuple(self.entries[seq:]))

    # ---- the row ---------------------------------------------------------------------------------------------------

    def campaign(self, me: Candidate, ask: Ask) -> Answer:
        """Do one ask."""
        row = self.row
        match ask:
            case Look():
                return Answer(row, done=True)
            case Claim(seen):
                if row != seen:
                    return Answer(row, done=False)
                self.row = LeaderRow(row.epoch + 1, row.beat + 1, me.holder, me.place, me.url)
            case Renew(epoch):
                if (row.epoch, row.holder) != (epoch, me.holder):
                    return Answer(row, done=False)
                self.row = msgspec.structs.replace(row, beat=row.beat + 1)
            case Resign(epoch):
                if (row.epoch, row.holder) != (epoch, me.holder):
                    return Answer(row, done=False)
                self.row = LeaderRow(row.epoch, row.beat + 1)
        return Answer(self.row, done=True)


class Session:
    """What one controller sees of the database. Implements ``ports.store.Store`` and ``ports.leadership.LeaderStore``.

    Its methods run at the database, in the instant of their transaction: see ``Calls``.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def open(self) -> None:
        """Do nothing: it is there."""

    def close(self) -> None:
        """Do nothing."""

    def acquire_leadership(self) -> int:
        """Raise: a highly available controller campaigns."""
        raise NotImplementedError

    def recover(self) -> Recovered:
        """Return the newest snapshot and what follows it."""
        return self._database.recover()

    def append(self, expected_seq: int, epoch: int, batch: Batch) -> int:
        """Append a batch."""
        return self._database.append(expected_seq, epoch, batch)

    def save_snapshot(self, seq: int, data: bytes) -> None:
        """Keep a snapshot unless there is a newer one."""
        kept = self._database.snapshot
        if kept is None or kept[0] < seq:
            self._database.snapshot = (seq, data)

    def entries_of_job(self, job: JobId) -> list[JournalEntry]:
        """Return none: nobody reads histories here."""
        return []

    def entries_after(self, seq: int, limit: int) -> list[JournalEntry]:
        """Return up to ``limit`` entries after ``seq``."""
        return self._database.entries[seq : seq + limit]

    def finished_job(self, job: JobId) -> FinishedJob | None:
        """Return one finished job."""
        return self._database.finished.get(job)

    def finished_jobs(self, query: JobQuery) -> list[FinishedJob]:
        """Return finished jobs."""
        return list(self._database.finished.values())[: query.limit]

    def usage(self, since_hour: int, until_hour: int, tenant: TenantId | None) -> list[UsageRow]:
        """Return none: nobody reads usage here."""
        return []

    def prune(self, *, entries_before: float, keep_jobs: Sequence[JobId]) -> int:
        """Keep everything: the checkers read the whole journal."""
        return 0

    def campaign(self, me: Candidate, ask: Ask) -> Answer:
        """Do one ask."""
        return self._database.campaign(me, ask)

    def appear(self, head: Head) -> tuple[Head, ...]:
        """Return the head alone: nobody asks for the list."""
        return (head,)

    def published(self) -> dict[str, str]:
        """Return nothing."""
        return {}

    def publish(self, epoch: int, name: str, value: str) -> None:
        """Forget it: nobody asks."""


class Calls:
    """Carries the blocking calls of one host to the database and back."""

    def __init__(self, course: Course, network: Network, database: Database, host: str) -> None:
        self._course = course
        self._network = network
        self._database = database
        self._host = host

    def call(self, work: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        """Carry a call out and answer the future, by an error when there is no answer."""
        self._course.after(self._way_s(), lambda: self._arrive(work, future))

    def _way_s(self) -> float:
        return self._network.delay_s() + self._database.slow_s

    def _arrive(self, work: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        if not self._database.up or not self._network.reaches(self._host, HOST):
            self._give_up(future)
            return
        try:
            result, error = work(), None
        except CorralError as refused:
            result, error = None, refused
        self._course.after(self._way_s(), lambda: self._return(result, error, future))

    def _return(self, result: object, error: CorralError | None, future: asyncio.Future[Any]) -> None:
        if not self._database.up or not self._network.reaches(HOST, self._host):
            self._give_up(future)
        elif not future.done():
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

    def _give_up(self, future: asyncio.Future[Any]) -> None:
        def fail() -> None:
            if not future.done():
                future.set_exception(StoreAway("the database does not answer"))

        self._course.after(PATIENCE_S, fail)
