"""The global round: when one is due, what it is shown, and what becomes of its plan.

    settle -> Market (Outcome.solve) -> solved somewhere else -> Solved -> verified against the newest state
           -> gangs are asked to give way (journaled), awards are kept (not journaled) until all of theirs is free

At most one round is under way. A plan is an opinion on a state that has gone by: what does not hold any more is
refused, with a reason, and the next round looks again.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from corral.control.book import Book
from corral.control.cycle import Cycle
from corral.control.holdings import order_of
from corral.control.inputs import Solved
from corral.control.liveness import Liveness
from corral.model.ids import GangKey, TenantId
from corral.model.job import Gang, Job, StopReason
from corral.model.market import Market, RoundPlan
from corral.model.offer import Candidate, Holding, Snapshot
from corral.policy.arbitration import gang_amount
from corral.policy.fairness import below_guarantee
from corral.policy.verification import Ruling, verify_plan

Mark = tuple[int, int]


class Rounds:
    """Global rounds over the book. ``plan`` is the last one, of ``planned_at``, ``ruling`` what counted of it."""

    def __init__(self, book: Book, cycle: Cycle, liveness: Liveness) -> None:
        self._book = book
        self._cycle = cycle
        self._liveness = liveness
        self._under_way: int | None = None
        self._last_at: float | None = None
        self._mark: Mark = (-1, -1)
        self.plan = RoundPlan(0)
        self.planned_at = 0.0
        self.ruling = Ruling((), (), {})

    def start(self, now: float) -> None:
        """Begin: a pool that comes back with work gives its nodes one interval to be heard again."""
        if self._book.state.jobs:
            self._last_at = now

    def settle(self, now: float) -> None:
        """Ask for a round when one is due."""
        if self.due(now):
            market = self.market(now)
            self._under_way = market.snapshot.version
            self._last_at = now
            self._mark = self._now_at()
            self._book.solve(market)

    # ---- when ------------------------------------------------------------------------------------------------------

    def due(self, now: float) -> bool:
        """Return whether a round should begin now."""
        config = self._book.config.scheduling
        if self._under_way is not None or self._cycle.paused or not self._contended():
            return False
        if self._last_at is None:
            return True
        age = now - self._last_at
        if age >= config.round_s:
            return self._changed(now) or age >= config.round_s * config.round_rest
        return age >= min(config.round_early_s, config.round_s) and self._changed(now) and self._violated(now)

    def _now_at(self) -> Mark:
        return self._book.board.version, self._book.waiting.version

    def _contended(self) -> bool:
        """Return whether anything waits, or anything that runs might run better otherwise."""
        book = self._book
        return book.waiting.count() > 0 or any(len(h.bids) > 1 for h in book.board.holdings.values())

    def _changed(self, now: float) -> bool:
        """Return whether anything is otherwise than at the last round: the pool, what waits, or whose tenure ended."""
        if self._mark != self._now_at():
            return True
        last = self._last_at if self._last_at is not None else now
        return any(last < h.tenure_until <= now for h in self._book.board.holdings.values())

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
        snapshot = book.board.snapshot(now)
        self._bid(now, snapshot)
        snapshot = replace(snapshot, holdings=tuple(self._saved(h, now) for h in book.board.holdings.values()))
        return Market(
            snapshot=snapshot,
            pending=(*book.waiting.index, *self._returning(snapshot.holdings)),
            standings=book.standings.of_tenants(book.state, book.board.capacity, now),
            queues=book.standings.of_queues(book.state),
            reservations=self._cycle.reservations,
            prices=self.plan.prices,
            history=book.experience.history(),
            trust=book.experience.trust(),
        )

    def _bid(self, now: float, snapshot: Snapshot) -> None:
        """Ask for the bids of running jobs that are not known, as after a restart."""
        book = self._book
        for name in {key.job for key in book.board.holdings if key.job not in book.waiting.proposals}:
            job = book.state.jobs[name]
            proposal = self._cycle.proposal(job, snapshot)
            if proposal.bids:
                book.propose(now, job, proposal)

    def _saved(self, holding: Holding, now: float) -> Holding:
        """Return a holding as its giving way now would find it: who saves itself when told to loses nothing more."""
        job = self._book.state.jobs.get(holding.key.job)
        if job is None or job.spec.checkpoint is None:
            return holding
        return replace(holding, saved_at=now)

    def _returning(self, holdings: Iterable[Holding]) -> Iterable[Candidate]:
        """Yield the gangs that are giving way: they will wait again, and may be awarded something already."""
        jobs = self._book.state.jobs
        for holding in holdings:
            job = jobs.get(holding.key.job) if holding.stopping and holding.bids else None
            gang = job.gangs.get(holding.key.gang) if job is not None else None
            if job is None or gang is None or job.cancelled_by is not None:
                continue
            if gang.stopping is StopReason.PREEMPTED:
                yield candidate_of(job, gang, holding)

    # ---- what becomes of a plan ------------------------------------------------------------------------------------

    def solved(self, now: float, answer: Solved) -> None:
        """Take the plan of the round that is under way."""
        if answer.version != self._under_way:
            return
        self._under_way = None
        if answer.plan is None or self._cycle.paused:
            return
        book = self._book
        self.plan, self.planned_at = answer.plan, now
        self._cycle.proposals.prices = answer.plan.prices
        self.ruling = ruling = verify_plan(
            answer.plan,
            book.board.snapshot(now),
            book.waiting.index,
            book.standings.of_tenants(book.state, book.board.capacity, now),
            book.standings.of_queues(book.state),
        )
        for eviction in ruling.evictions:
            job = book.state.jobs[eviction.key.job]
            self._liveness.stop_gang(now, job, eviction.key.gang, StopReason.PREEMPTED, eviction.preemption)
        self._cycle.awards.replace(now, ruling.awards, book.state, book.board.holdings.values())
        book.dirty = True


def candidate_of(job: Job, gang: Gang, holding: Holding) -> Candidate:
    """Return a gang that is giving way as it will wait again."""
    limit = job.spec.max_duration_s
    return Candidate(
        key=GangKey(job.id, gang.index),
        tenant=holding.tenant,
        queue=holding.queue,
        priority=holding.priority,
        queued_at=holding.started_at,
        order=order_of(job, gang),
        bids=holding.bids,
        max_duration_s=None if limit is None else limit + job.spec.grace_s,
        avoid=gang.avoid,
        submitted_at=job.submitted_at,
        attained_s=holding.attained_s,
        remaining_s=holding.remaining_s,
    )
