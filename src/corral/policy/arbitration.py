"""Phase 2 between global rounds: a work-conserving, event-driven fill of the snapshot by fairness.

Progressive filling: the tenant with the best claim takes next, with its best candidate (queue and job priority, then
urgency, then order of submission), which may start on any of its bids, the first that fits. A candidate that does not
fit is passed over, so that smaller ones fill in behind it; the first of them gets a reservation that nobody may delay.
Gangs are placed with all their ranks or not at all.

A round looks at lines of equal candidates: its cost is O(tenants x lines + placements), whatever the number that waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from corral.model.ids import GangKey, NodeId, QueueName, TenantId
from corral.model.market import Award
from corral.model.offer import (
    Allocation,
    Arbitration,
    Bid,
    Candidate,
    Holding,
    Locality,
    QueueStanding,
    Reservation,
    Snapshot,
    Standing,
)
from corral.model.resources import Amount, Placement
from corral.model.tenant import Queue, Quota, Tenant
from corral.policy.apart import Apart
from corral.policy.config import SchedulingConfig
from corral.policy.cursor import FOREVER, Cursor, TenantCursor
from corral.policy.fairness import claim, weight_sum, within
from corral.policy.feasibility import empty_fit
from corral.policy.memory import Memory
from corral.policy.pending import Kind, PendingIndex, kind_of
from corral.policy.placement import Wish, place_first
from corral.policy.reservation import constraints_of, plan, renewed, yielding
from corral.policy.verification import verify, verify_all

__all__ = ["PendingIndex", "arbitrate", "gang_amount", "verify", "verify_all"]

NO_LIMIT = Quota()
NOWHERE = frozenset[NodeId]()
_Rank = tuple[int, float, int, TenantId, Candidate, Cursor]


def gang_amount(bid: Bid) -> Amount:
    """Return what all ranks of a bid hold together."""
    return Amount.of(bid.shape.demand).times(bid.shape.ranks)


def worth(bid: Bid) -> tuple[float, float | None, Locality, Amount]:
    """Return what bids have in common that are equally good to their job: of those the pool may choose."""
    return bid.throughput, bid.remaining_s, bid.locality, gang_amount(bid)


def arbitrate(
    snapshot: Snapshot,
    pending: PendingIndex,
    standings: Mapping[TenantId, Standing],
    queues: Mapping[QueueName, QueueStanding],
    reservations: Sequence[Reservation],
    config: SchedulingConfig,
    awards: Sequence[Award] = (),
    memory: Memory | None = None,
) -> Arbitration:
    """Return who starts where now, and what is kept for whom. Nothing given is changed.

    ``reservations`` are those of the last round. ``awards`` of the last global round are kept for their gangs, which
    are not started here: nobody else gets what they need, not even for a moment. Run a round after every change, and at
    least once a second while anything waits: reservations and back-offs move with time. ``memory`` saves time; it is
    that of the earlier rounds on the same pool.
    """
    current = _Round(snapshot, pending, standings, queues, config, memory or Memory())
    current.keep(awards)
    current.carry_over(reservations)
    current.fill()
    return Arbitration(snapshot.version, tuple(current.allocations), tuple(current.reservations))


class _Round:
    """The state of one round."""

    def __init__(
        self,
        snapshot: Snapshot,
        pending: PendingIndex,
        standings: Mapping[TenantId, Standing],
        queues: Mapping[QueueName, QueueStanding],
        config: SchedulingConfig,
        memory: Memory,
    ) -> None:
        self.now = snapshot.at
        self.capacity = snapshot.capacity
        self.config = config
        self.trial = memory.trial(snapshot, pending)
        self.pending = pending
        self.standings = dict(standings)
        self.queues = dict(queues)
        self.holdings: list[Holding] = list(snapshot.holdings)
        self.allocations: list[Allocation] = []
        self.reservations: list[Reservation] = []
        self.done: set[GangKey] = set()
        self._apart = Apart(self.trial.offers, snapshot.holdings)
        self._open_until: dict[Kind, float] = {}
        self._never_elsewhere: dict[Kind, bool] = {}

    # ---- awards ----------------------------------------------------------------------------------------------------

    def keep(self, awards: Sequence[Award]) -> None:
        """Take what is awarded, including what those who give way still hold: that becomes less than nothing."""
        holding = {holding.key for holding in self.holdings} if awards else set()
        for award in awards:
            self.done.add(award.key)
            offered = tuple(p for p in award.placements if p.node in self.trial.offers)
            self.trial.take(offered, FOREVER)
            candidate = self.pending.get(award.key)
            if candidate is not None and award.key not in holding:
                self._count(candidate, award.placements)
            if candidate is not None and candidate.kin is not None:
                self._apart.add(candidate.kin, award.placements)
            self.holdings.append(Holding(award.key, award.tenant, offered, self.now, None, preemptible=False))

    def _count(self, candidate: Candidate, placements: Sequence[Placement]) -> None:
        taken = Amount.of(placements[0]).times(len(placements))
        standing, queue = self._standing(candidate.tenant), self._queue(candidate.queue)
        self.standings[candidate.tenant] = Standing(standing.tenant, standing.held + taken, standing.decayed_share)
        self.queues[candidate.queue] = QueueStanding(queue.queue, queue.held + taken)

    # ---- reservations ----------------------------------------------------------------------------------------------

    def carry_over(self, reservations: Sequence[Reservation]) -> None:
        """Start reserved gangs that fit now; keep or renew the reservations of the others.

        In their order: a gang may not delay those before it, nor the start times that those after it were promised.
        """
        left = [old for old in reservations if old.key in self.pending and old.key not in self.done]
        left = left[: self.config.reservations]
        for i, old in enumerate(left):
            candidate = self.pending.get(old.key)
            others = [*self.reservations, *(later for later in left[i + 1 :] if later.start_at is not None)]
            self._protect(others)
            bids = self._bids_within_limits(candidate) if candidate is not None else ()
            if candidate is None or not bids or self._overtaken(candidate) or self._start(candidate):
                continue
            holdings = self._seen_by(candidate)
            kept = renewed(old, candidate, bids, self.trial, holdings, others, self.now, self.config)
            if kept is not None:
                self.reservations.append(kept)
                self.done.add(candidate.key)
        self._protect(self.reservations)

    def _protect(self, reservations: Sequence[Reservation]) -> None:
        holdings: Sequence[Holding] = self.holdings
        for kept in reservations:
            candidate = self.pending.get(kept.key)
            if candidate is not None:
                holdings = yielding(candidate, holdings, self.standings, self.now, self.config)
        self.trial.constrain(constraints_of(reservations, self.trial, holdings))

    def _seen_by(self, candidate: Candidate) -> Sequence[Holding]:
        return yielding(candidate, self.holdings, self.standings, self.now, self.config)

    def _overtaken(self, candidate: Candidate) -> bool:
        """Return whether the same tenant has a candidate of higher priority that waits for room too."""
        own = self._priority(candidate.queue, candidate.priority)
        for line in self.pending.lines(candidate.tenant):
            best = line.entries[0][4]
            higher = self._priority(line.queue, best.priority) > own
            if higher and self._bids_within_limits(best) and self._find(best) is None:
                return True
        return False

    # ---- filling ---------------------------------------------------------------------------------------------------

    def fill(self) -> None:
        """Let the tenants take in the order of their claims until nobody can take any more."""
        filling: dict[TenantId, TenantCursor] = {}
        weights = weight_sum(self.standings, self.pending.tenants())
        for tenant in self.pending.tenants():
            lines = [line for line in self.pending.lines(tenant) if not self._queue(line.queue).queue.paused]
            cursors = [Cursor(line, self._queue(line.queue).queue.priority) for line in lines]
            filling[tenant] = TenantCursor(cursors, self.open_until, self.done, self.now, self.config.backfill_scan)
        ranks: dict[TenantId, _Rank] = {}
        while filling:
            first: _Rank | None = None
            for tenant in list(filling):
                best = filling[tenant].best()
                if best is None:
                    del filling[tenant]
                    continue
                rank = ranks.get(tenant)
                if rank is None or rank[4] is not best[0]:
                    rank = ranks[tenant] = (*self._claim(best[0], weights), best[0].order, tenant, *best)
                if first is None or rank[:4] < first[:4]:
                    first = rank
            if first is not None:
                tenant, candidate, cursor = first[3:]
                filling[tenant].forget()
                del ranks[tenant]
                self._try(candidate, cursor)

    def _claim(self, candidate: Candidate, weights: float) -> tuple[int, float]:
        need = gang_amount(candidate.bids[0])
        return claim(self._standing(candidate.tenant), need, self.capacity, weights, self.config)

    def _try(self, candidate: Candidate, cursor: Cursor) -> None:
        """Start a candidate if it fits; otherwise note what of its kind is still worth a look in this round."""
        bids = self._bids_within_limits(candidate)
        if not bids:
            # What a tenant or a queue holds only grows in a round, and all of the line need as much.
            cursor.closed = True
            return
        if self._start(candidate):
            return
        if candidate.avoid and self._backs_off(candidate):
            cursor.hesitant = self._backs_off
            return
        if len(self.reservations) < self.config.reservations:
            holdings = self._seen_by(candidate)
            new = plan(candidate, bids, self.trial, holdings, self.reservations, self.now, self.config)
            if new is not None:
                self.reservations.append(new.reservation)
                self.done.add(candidate.key)
                self._protect(self.reservations)
        if len(bids) < len(candidate.bids):
            # Others of the kind may have more room under their limits.
            cursor.closed = True
            return
        self._open_until[cursor.line.kind] = self.trial.less_bound(self._end(candidate))

    def open_until(self, kind: Kind) -> float:
        """Return the time by which a candidate of this kind has to end to be worth a try in this round."""
        return self._open_until.get(kind, FOREVER)

    def _end(self, candidate: Candidate) -> float:
        return FOREVER if candidate.max_duration_s is None else self.now + candidate.max_duration_s

    def _start(self, candidate: Candidate) -> bool:
        found = self._find(candidate)
        if found is None:
            return False
        self._commit(candidate, *found)
        return True

    def _find(self, candidate: Candidate) -> tuple[Bid, tuple[Placement, ...]] | None:
        mask = self.trial.mask(self._end(candidate))
        avoided = frozenset(candidate.avoid)
        bids = self._bids_within_limits(candidate)
        kin = candidate.kin
        barred, dearer = (self._apart.without(kin), self._apart.cost(kin)) if kin is not None else (NOWHERE, {})
        for without in (avoided, NOWHERE) if avoided else (avoided,):
            if avoided and not without and self._backs_off(candidate):
                return None
            for _, alike in groupby(bids, key=worth):
                equal = tuple(alike)
                wishes = [Wish.of(bid, self.config, without | barred, dearer) for bid in equal]
                found = place_first(self.trial, wishes, mask)
                if found is not None:
                    return equal[found[0]], found[1]
        return None

    def _commit(self, candidate: Candidate, bid: Bid, placements: tuple[Placement, ...]) -> None:
        end = self._end(candidate)
        self.trial.take(placements, end)
        self.allocations.append(Allocation(candidate.key, placements, bid))
        self.done.add(candidate.key)
        if candidate.kin is not None:
            self._apart.add(candidate.kin, placements)
        declared = None if end == FOREVER else end
        tenure_s = max(self.config.tenure_s, bid.tenure_s)
        self.holdings.append(
            Holding(
                key=candidate.key,
                tenant=candidate.tenant,
                placements=placements,
                started_at=self.now,
                ends_at=declared,
                priority=candidate.priority,
                tenure_until=self.now + tenure_s,
                kin=candidate.kin,
            )
        )
        self._count(candidate, placements)

    def _backs_off(self, candidate: Candidate) -> bool:
        """Return whether a candidate still keeps away from the nodes where it failed, since others could take it."""
        doubled = self.config.avoid_back_off_s * 2.0 ** (len(candidate.avoid) - 1)
        if self.now >= candidate.queued_at + min(doubled, self.config.avoid_back_off_max_s):
            return False
        kind = kind_of(candidate)
        never = self._never_elsewhere.get(kind)
        if never is None:
            others = [offer for node, offer in self.trial.offers.items() if node not in candidate.avoid]
            never = self._never_elsewhere[kind] = not any(
                sum(empty_fit(offer, bid.shape.demand) for offer in others) >= bid.shape.ranks for bid in candidate.bids
            )
        return not never

    # ---- limits and order ------------------------------------------------------------------------------------------

    def _bids_within_limits(self, candidate: Candidate) -> tuple[Bid, ...]:
        standing, queue = self._standing(candidate.tenant), self._queue(candidate.queue)
        if queue.queue.paused:
            return ()
        if standing.tenant.limit == NO_LIMIT and queue.queue.limit == NO_LIMIT:
            return candidate.bids
        return tuple(
            bid
            for bid in candidate.bids
            if within(standing.tenant.limit, standing.held, gang_amount(bid)) is None
            and within(queue.queue.limit, queue.held, gang_amount(bid)) is None
        )

    def _standing(self, tenant: TenantId) -> Standing:
        return self.standings.get(tenant) or Standing(Tenant(tenant))

    def _queue(self, name: QueueName) -> QueueStanding:
        return self.queues.get(name) or QueueStanding(Queue(name))

    def _priority(self, queue: QueueName, priority: int) -> int:
        return self._queue(queue).queue.priority + priority
