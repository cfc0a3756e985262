"""The global round: when one is due, what it is shown, and what becomes of its plan.

    settle -> Market (Outcome.solve) -> solved somewhere else -> Solved -> verified against the newest state
           -> gangs are asked to give way (journaled), awards are kept (not journaled) until all of theirs is free

At most one round is under way. A plan is an opinion on a state that has gone by: what does not hold any more is
refused, with a reason, and the next round looks again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice

from msgspec.structs import replace

from corral.control.awards import overlaps
from corral.control.book import Book
from corral.control.cycle import Cycle
from corral.control.inputs import Solved
from corral.control.stopping import stop_gang
from corral.model.ids import GangKey, TenantId
from corral.model.job import StopReason
from corral.model.market import Loss, Market, RoundPlan
from corral.model.offer import Candidate, Holding, Reservation, Snapshot
from corral.policy.arbitration import gang_amount
from corral.policy.fairness import below_guarantee
from corral.policy.verification import Ruling, verify_plan

Mark = tuple[int, int]

LOOK_S = 1.0
"""How often a broken guarantee or priority is looked for: that costs a look at every gang."""

AT_ONCE = 1_000
"""Gangs that are ranked, or jobs that are asked for bids, in one go: no heartbeat waits for all of a full pool."""


class Rounds:
    """Global rounds over the book. ``plan`` is the last one, of ``planned_at``, ``ruling`` what counted of it.

    ``fault`` says why the newest round gave no plan and ``failed_at`` when; it is empty after one that did.
    """

    def __init__(self, book: Book, cycle: Cycle) -> None:
        self._book = book
        self._cycle = cycle
        self._under_way: int | None = None
        self._last_at: float | None = None
        self._mark: Mark = (-1, -1)
        self._ripens_at = math.inf
        self._looked_at = -math.inf
        self._broken = False
        self._unranked: Iterator[tuple[GangKey, Loss]] = iter(())
        self.plan = RoundPlan(0)
        self.planned_at = 0.0
        self.ruling = Ruling((), (), {})
        self.fault = ""
        self.failed_at = 0.0

    def start(self, now: float) -> None:
        """Begin: a pool that comes back with work gives its nodes one interval to be heard again."""
        if self._book.state.jobs:
            self._last_at = now

    def settle(self, now: float) -> None:
        """Ask for a round when one is due; rank some of those who lost the last one."""
        self._rank()
        if self.due(now):
            market = self.market(now)
            self._under_way = market.snapshot.version
            self._last_at, self._broken = now, False
            self._mark = self._now_at()
            ends = (h.tenure_until for h in market.snapshot.holdings if h.tenure_until > now)
            self._ripens_at = min(ends, default=math.inf)
            self._book.solve(market)

    # ---- when ------------------------------------------------------------------------------------------------------

    def due(self, now: float) -> bool:
        """Return whether a round should begin now."""
        config = self._book.config.scheduling
        if self._under_way is not None or self._cycle.paused:
            return False
        if self._last_at is None:
            return self._contended()
        age = now - self._last_at
        if age >= config.round_s:
            return (self._changed(now) or age >= config.round_s * config.round_rest) and self._contended()
        if age < config.round_early_s or not self._changed(now):
            return False
        if now - self._looked_at >= LOOK_S:
            self._looked_at, self._broken = now, self._violated(now)
        return self._broken

    def _now_at(self) -> Mark:
        return self._book.board.version, self._book.waiting.version

    def _contended(self) -> bool:
        """Return whether anything waits, or anything that runs might run better otherwise."""
        book = self._book
        promised = sum(award.key in book.waiting.index for award in self._cycle.awards.all())
        return book.waiting.count() > promised or book.board.choosing > 0

    def _changed(self, now: float) -> bool:
        """Return whether anything is otherwise than at the last round: the pool, what waits, or whose tenure ended."""
        return self._mark != self._now_at() or now >= self._ripens_at

    def _violated(self, now: float) -> bool:
        """Return whether a guarantee or a priority is broken that others could make good: their tenure is over."""
        book = self._book
        ripe = [h for h in book.board.holdings.values() if not h.stopping and h.tenure_until <= now]
        if not ripe:
            return False
        standings = book.standings.of_tenants(book.state, book.board.capacity, now)
        lowest: dict[TenantId, int] = {}
        for holding in ripe:
            lowest[holding.tenant] = min(lowest.get(holding.tenant, holding.priority), holding.priority)
        for tenant in book.waiting.index.tenants():
            standing = standings.get(tenant)
            for line in book.waiting.index.lines(tenant):
                head = line.entries[0][-1]
                if head.key in self._cycle.awards:
                    continue
                if head.priority > lowest.get(tenant, head.priority):
                    return True
                floor = standing is not None and below_guarantee(standing, gang_amount(head.bids[0]))
                if floor and any(name != tenant for name in lowest):
                    return True
        return False

    # ---- what a round is shown -------------------------------------------------------------------------------------

    def market(self, now: float) -> Market:
        """Return all that a round may know."""
        book = self._book
        snapshot = self._cycle.prune(now)
        self._bid(now, snapshot)
        snapshot = replace(snapshot, holdings=tuple(self._saved(h, now) for h in book.board.holdings.values()))
        return Market(
            snapshot=snapshot,
            pending=self._pending(),
            standings=book.standings.of_tenants(book.state, book.board.capacity, now),
            queues=book.standings.of_queues(book.state),
            reservations=tuple(self._reserved(now)),
            history=book.experience.history(),
            trust=book.experience.trust(),
        )

    def _pending(self) -> tuple[Candidate, ...]:
        """Return who waits without an award: thousands, as a rule, beside hardly any awards."""
        index, awards = self._book.waiting.index, self._cycle.awards
        return tuple(c for c in index if c.key not in awards) if awards else tuple(index)

    def _reserved(self, now: float) -> Iterator[Reservation]:
        """Yield what a round may not give away.

        Awards that are not taken up yet are nobody else's, and their gangs contend no more. The fill's reservations
        stand while nobody could give way for them: once a holder in their way has had its tenure, the round weighs
        the gang that waits against it, and all others too.
        """
        for award in self._cycle.awards.all():
            yield Reservation(award.key, award.tenant, award.placements, None, now)
        holdings = self._book.board.holdings.values()
        ripe = [h for h in holdings if not h.stopping and h.preemptible and h.tenure_until <= now]
        for kept in self._cycle.reservations:
            if not any(overlaps(kept.placements, holding) for holding in ripe):
                yield kept

    def _bid(self, now: float, snapshot: Snapshot) -> None:
        """Ask for the bids of running jobs that are not known, as after a restart; those of many in a few rounds."""
        book = self._book
        unknown = dict.fromkeys(key.job for key in book.board.holdings if key.job not in book.waiting.proposals)
        for name in islice(unknown, AT_ONCE):
            self._cycle.proposals.offer(now, book.state.jobs[name], snapshot, 0.0)

    def _saved(self, holding: Holding, now: float) -> Holding:
        """Return a holding as its giving way now would find it: who saves itself when told to loses nothing more."""
        job = self._book.state.jobs.get(holding.key.job)
        if job is None or job.spec.checkpoint is None:
            return holding
        return replace(holding, saved_at=now)

    # ---- what becomes of a plan ------------------------------------------------------------------------------------

    def solved(self, now: float, answer: Solved) -> None:
        """Take the plan of the round that is under way."""
        if answer.version != self._under_way:
            return
        self._under_way = None
        self.fault, self.failed_at = answer.fault, now
        if answer.plan is None or self._cycle.paused:
            return
        book = self._book
        self.plan, self.planned_at = answer.plan, now
        self._cycle.proposals.priced(answer.plan.prices)
        self.ruling = ruling = verify_plan(
            answer.plan,
            self._cycle.prune(now),
            book.waiting.index,
            book.standings.of_tenants(book.state, book.board.capacity, now),
            book.standings.of_queues(book.state),
            self._cycle.awards.all(),
        )
        self._unranked = iter(answer.plan.losses.items())
        for eviction in ruling.evictions:
            job = book.state.jobs[eviction.key.job]
            stop_gang(book, now, job, eviction.key.gang, StopReason.PREEMPTED, preemption=eviction.preemption)
        self._cycle.awards.keep(now, ruling.awards, book.state, book.board.holdings.values())
        book.dirty = True

    def _rank(self) -> None:
        """Set the urgency of some gangs that lost: by what running them is worth for what they need of the pool."""
        book = self._book
        for key, loss in islice(self._unranked, AT_ONCE):
            candidate = book.waiting.index.get(key)
            if candidate is not None and loss.value > 0:
                share = gang_amount(candidate.bids[0]).dominant_share(book.board.capacity)
                urgency = urgency_of(loss.value, share)
                if urgency != candidate.urgency:
                    book.waiting.rank(candidate, urgency)


def urgency_of(value: float, share: float) -> float:
    """Return the place of a gang in its tenant's order, smallest first: - log2(value per share), in quarters.

    So coarse, gangs that are worth about as much keep the order in which they were submitted, and most keep their
    place in the index from round to round.
    """
    return -math.floor(4.0 * math.log2(value / max(share, 1e-9))) / 4.0
