"""The fairness ledger: what every tenant was due and received, hour by hour, and who gave way for whom.

Shares are parts of the pool's dominant resource. They are sampled (once a second while anything changes hands) and
taken as constant in between. A tenant is due something only while it holds or wants something: who asks for nothing is
owed nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from corral.model.events import GangStopping
from corral.model.ids import GangKey, TenantId
from corral.model.job import Job
from corral.model.report import LedgerEntry, LedgerLine

HOUR_S = 3_600.0
HOURS_KEPT = 7 * 24
ENTRIES_KEPT = 1_000
SAMPLE_S = 1.0


class Hours(msgspec.Struct):
    """One tenant in one hour: share-seconds due and received, and the seconds in which it took part."""

    due_s: float = 0.0
    received_s: float = 0.0
    active_s: float = 0.0


class LedgerImage(msgspec.Struct):
    """What a snapshot keeps of the ledger: hours (since the epoch) by tenant, preemptions oldest first."""

    hours: dict[TenantId, dict[int, Hours]] = {}
    entries: list[LedgerEntry] = []


class Ledger:
    """Accounts of all tenants over the last ``HOURS_KEPT`` hours."""

    def __init__(self, image: LedgerImage | None = None) -> None:
        self.image = image or LedgerImage({}, [])
        self._at: float | None = None
        self._due: dict[TenantId, float] = {}
        self._held: dict[TenantId, float] = {}

    def due(self, now: float) -> bool:
        """Return whether it is time for a sample."""
        return self._at is None or now - self._at >= SAMPLE_S

    def sample(self, now: float, due: Mapping[TenantId, float], held: Mapping[TenantId, float]) -> None:
        """Account for the time since the last sample with the shares that held then, and remember the new ones.

        ``due`` names every tenant that holds or wants something, ``held`` its share of the dominant resource (0..1).
        """
        if self._at is not None and now > self._at:
            for tenant in self._due.keys() | self._held.keys():
                self._account(tenant, self._at, now)
        self._at, self._due, self._held = now, dict(due), {name: share for name, share in held.items() if share > 0}
        self._prune(int(now // HOUR_S) - HOURS_KEPT)

    def preempted(self, job: Job, fact: GangStopping) -> None:
        """Write down that a gang gives way. Facts without a reason (a drained pool) are not entries."""
        if fact.preemption is None:
            return
        held = sum(placement.gpu_milli for placement in job.gangs[fact.gang].placements)
        self.image.entries.append(
            LedgerEntry(fact.at, GangKey(job.id, fact.gang), job.spec.tenant, held, fact.preemption)
        )
        del self.image.entries[:-ENTRIES_KEPT]

    def forget(self, tenant: TenantId) -> None:
        """Drop the account of a removed tenant; what it was preempted for stays written."""
        self.image.hours.pop(tenant, None)
        self._due.pop(tenant, None)
        self._held.pop(tenant, None)

    def lines(self, since: float, gpus: float) -> tuple[LedgerLine, ...]:
        """Return every tenant's account from the hour of ``since`` on, in GPU-hours of a pool with ``gpus`` devices."""
        first = int(since // HOUR_S)
        entries = self.entries(first * HOUR_S)
        found = []
        for tenant, hours in sorted(self.image.hours.items()):
            within = [one for hour, one in hours.items() if hour >= first]
            if within:
                found.append(_line(tenant, within, entries, gpus))
        return tuple(found)

    def entries(self, since: float) -> tuple[LedgerEntry, ...]:
        """Return the preemptions since a time, oldest first."""
        return tuple(entry for entry in self.image.entries if entry.at >= since)

    def _account(self, tenant: TenantId, begin: float, end: float) -> None:
        hours = self.image.hours.setdefault(tenant, {})
        due, held = self._due.get(tenant, 0.0), self._held.get(tenant, 0.0)
        while begin < end:
            hour = int(begin // HOUR_S)
            until = min(end, (hour + 1) * HOUR_S)
            account = hours.get(hour)
            if account is None:
                account = hours[hour] = Hours()
            account.due_s += due * (until - begin)
            account.received_s += held * (until - begin)
            account.active_s += until - begin
            begin = until

    def _prune(self, before: int) -> None:
        for tenant, hours in list(self.image.hours.items()):
            for hour in [hour for hour in hours if hour < before]:
                del hours[hour]
            if not hours:
                del self.image.hours[tenant]


def _line(tenant: TenantId, hours: Iterable[Hours], entries: Iterable[LedgerEntry], gpus: float) -> LedgerLine:
    own = [entry for entry in entries if entry.tenant == tenant]
    due = sum(hour.due_s for hour in hours) * gpus / HOUR_S
    received = sum(hour.received_s for hour in hours) * gpus / HOUR_S
    gained = sum(1 for entry in entries if entry.preemption.tenant == tenant and entry.tenant != tenant)
    return LedgerLine(
        tenant=tenant,
        active_s=sum(hour.active_s for hour in hours),
        due_gpu_hours=due,
        received_gpu_hours=received,
        balance_gpu_hours=received - due,
        preempted=len(own),
        preempted_by_others=sum(1 for e in own if e.preemption.tenant not in (None, tenant)),
        lost_gpu_hours=sum(e.preemption.lost_s * e.gpu_milli for e in own) / (HOUR_S * 1_000),
        preempted_others=gained,
    )
