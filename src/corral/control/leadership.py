"""Leadership as a value: when to ask what of the database, who leads, and until when that holds. No I/O, no clock.

    ask = core.ask(now)                          at ``core.due``; hand it to ``ports.leadership.LeaderStore``
    change = core.answered(sent_at, now, ask, answer)     or core.failed(now)
    core.valid(now)                              may this controller acknowledge leases now?

All times are CLOCK_BOOTTIME of this machine in seconds. Safety: a holder believes in its lease for ``lease_s`` less the
drift, counted from the sending of its last renewal; a standby waits for ``lease_s`` and the drift, counted from the
answer in which it first saw the row as it is. The renewal was written before it was seen, so while every clock runs
within ``drift`` of true time nobody leads before the other has stopped believing. (Compare Gray and Cheriton, "Leases",
SOSP 1989.)
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from corral.ports.leadership import Answer, Ask, Candidate, Claim, LeaderRow, Look, Renew, Resign


class Terms(msgspec.Struct, frozen=True):
    """The times of leadership in seconds. ``drift`` is by how much a clock may run too fast or too slow.

    It is 1 %, more than ``policy.fencing`` allows for, since there is no constant part beside it: of so short a
    lease it costs 45 ms on either side.
    """

    lease_s: float = 4.5
    renew_s: float = 1.4
    look_s: float = 0.5
    retry_s: float = 0.25
    drift: float = 0.01

    @property
    def believed_s(self) -> float:
        """Return how long a holder believes in a renewal."""
        return self.lease_s * (1.0 - self.drift)

    @property
    def awaited_s(self) -> float:
        """Return how long a standby watches an unchanged row before it claims."""
        return self.lease_s * (1.0 + self.drift)


class Change(StrEnum):
    """What an answer changed."""

    ELECTED = "elected"
    DEPOSED = "deposed"


class Leadership:
    """One controller's part. It leads from ``ELECTED`` to ``DEPOSED``; its lease may lapse and be renewed."""

    def __init__(self, me: Candidate, terms: Terms | None = None) -> None:
        self.me = me
        self.terms = terms or Terms()
        self.epoch: int | None = None
        self.row: LeaderRow | None = None
        self.due = float("-inf")
        self._granted_at = float("-inf")
        self._seen_at = float("-inf")
        self._resigned = False

    def valid(self, now: float) -> bool:
        """Return whether it leads and its lease holds."""
        return self.epoch is not None and now < self._granted_at + self.terms.believed_s

    @property
    def expires_at(self) -> float:
        """Return until when the last renewal is believed in."""
        return self._granted_at + self.terms.believed_s

    def resign(self) -> Resign | None:
        """Stop leading at once and claim no more; return what to tell the database, if anything."""
        epoch, self.epoch, self._resigned = self.epoch, None, True
        return Resign(epoch) if epoch is not None else None

    def ask(self, now: float) -> Ask:
        """Return what to ask now."""
        if self.epoch is not None:
            return Renew(self.epoch)
        row = self.row
        if row is None or self._resigned:
            return Look()
        if row.holder == self.me.holder:
            return Renew(row.epoch)  # a claim was done, but its answer got lost
        return Claim(row) if now >= self._free_at(row) else Look()

    def _free_at(self, row: LeaderRow) -> float:
        """Return when a row that does not change any more may be claimed."""
        survived = bool(row.place) and row.place == self.me.place
        return float("-inf") if not row.holder or survived else self._seen_at + self.terms.awaited_s

    def answered(self, sent_at: float, now: float, ask: Ask, answer: Answer) -> Change | None:
        """Take in the answer to an ask that was sent at ``sent_at``."""
        before = self.epoch
        if answer.row != self.row:
            self.row, self._seen_at = answer.row, now
        if self._resigned or isinstance(ask, Resign):
            self.due = now + self.terms.look_s
            return None
        mine = answer.row.holder == self.me.holder
        if mine and answer.done and isinstance(ask, Claim | Renew):
            self.epoch = answer.row.epoch
            self._granted_at = max(self._granted_at, sent_at)
        elif not mine or answer.row.epoch != self.epoch:
            self.epoch = None
        self.due = self._next(now, sent_at)
        if self.epoch == before:
            return None
        return Change.ELECTED if self.epoch is not None else Change.DEPOSED

    def _next(self, now: float, sent_at: float) -> float:
        if self.epoch is not None:
            return max(now, sent_at + self.terms.renew_s)
        row = self.row
        if row is not None and row.holder == self.me.holder:
            return now
        free_at = self._free_at(row) if row is not None else now
        return now if free_at <= now else min(now + self.terms.look_s, free_at)

    def failed(self, now: float) -> None:
        """Take in that an ask had no answer: whether it was done is not known."""
        self.due = now + self.terms.retry_s
