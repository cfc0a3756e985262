"""The words of a global round: a Market goes out to be solved, a RoundPlan comes back and is verified before it counts.

A round never stops anything by itself: it says which gangs should give way, for whom and at what price. Control asks
them to save themselves, and credits what they hold only when their nodes have confirmed the release.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from corral.model.experience import ServiceHistory
from corral.model.ids import GangKey, JobId, QueueName, TenantId
from corral.model.offer import Bid, Candidate, QueueStanding, Reservation, Snapshot, Standing
from corral.model.resources import Placement


class Market(msgspec.Struct, frozen=True):
    """All that a global round may know: a frozen copy that can be solved in another process.

    The running gangs are the holdings of ``snapshot``; with the ``pending`` they contend for the same capacity.
    ``trust`` is the measured/claimed ratio of each tenant's throughput claims (1 where nothing was measured).
    """

    snapshot: Snapshot
    pending: tuple[Candidate, ...]
    standings: dict[TenantId, Standing]
    queues: dict[QueueName, QueueStanding]
    reservations: tuple[Reservation, ...] = ()
    history: ServiceHistory = ServiceHistory()
    trust: dict[TenantId, float] = {}


class PreemptionKind(StrEnum):
    """Why a running gang gives way."""

    ROOM = "room"
    """Another gang of higher worth needs its devices."""
    RECLAIM = "reclaim"
    """A tenant below its guarantee takes back what was lent."""
    PRIORITY = "priority"
    """A gang of higher priority in the same tenant needs its devices."""
    MOVE = "move"
    """It goes on on devices that suit it better."""
    RESIZE = "resize"
    """It goes on with more or fewer devices."""
    DEFRAGMENT = "defragment"
    """It goes on elsewhere, so that a large gang finds its devices together."""


class Preemption(msgspec.Struct, frozen=True):
    """Why a gang was asked to give way, for the ledger and for ``corral why``.

    ``beneficiary`` is ``None`` when the gang itself gains. ``lost_s`` is the work that it repeats: since its last
    checkpoint, plus its restart cost, in seconds.
    """

    kind: PreemptionKind
    beneficiary: JobId | None = None
    tenant: TenantId | None = None
    lost_s: float = 0.0


class Eviction(msgspec.Struct, frozen=True):
    """A running gang that should give way. It counts only for the ``incarnation`` that the round saw."""

    key: GangKey
    incarnation: int
    preemption: Preemption


class Award(msgspec.Struct, frozen=True):
    """A gang that won: these placements are kept for it until all of them are free, then it starts on them.

    A gang that is evicted in the same round (a move or a new size) may be awarded too.
    """

    key: GangKey
    tenant: TenantId
    bid: Bid
    placements: tuple[Placement, ...]


class Loss(msgspec.Struct, frozen=True):
    """Why a gang did not win: its best bid is worth ``value`` and costs ``cost`` at the round's prices.

    ``reason`` is ``price`` (others are worth more), ``placement`` (it can pay, but its shape fits nowhere together),
    ``limit`` (of its tenant or queue), ``tenure`` (those who would give way are protected still) or ``unplaceable``
    (no bid ever fits this pool). ``protected_until`` is when the first tenure in its way ends (s since the epoch).
    """

    value: float
    cost: float
    reason: str
    protected_until: float | None = None


class RoundPlan(msgspec.Struct, frozen=True):
    """The verdict of a global round on snapshot ``version``.

    ``value`` is that of the placed allocation (kept gangs included), ``bound`` the dual bound that includes topology:
    no allocation is worth more. What a tenant's priorities displaced against its worth counts as if it went on.
    ``prices`` are values per device, by device model.
    """

    version: int
    awards: tuple[Award, ...] = ()
    evictions: tuple[Eviction, ...] = ()
    prices: dict[str, float] = {}
    value: float = 0.0
    bound: float = 0.0
    losses: dict[GangKey, Loss] = {}
    seconds: float = 0.0

    @property
    def gap(self) -> float:
        """Return (bound - value) / bound, 0 when nothing contends."""
        return (self.bound - self.value) / self.bound if self.bound > 0 else 0.0
