"""Who bids for whom: offers to AppMasters and to users' own proposers, what they answer, what they measured.

    offer -> AppMaster (here, at once)            -> bids that stand
          -> the user's own proposer (Outcome.asks, somewhere else, time-boxed) -> Proposed -> checked -> its bids stand
    MasterProposed (an AppMaster on a node)       -> what is left of running gangs, rates of the family, trust

Nobody waits for a proposer: until it has answered, and when it crashes, is silent or answers nonsense, the bids of the
AppMaster stand.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from msgspec.structs import replace

from corral.control.book import Book
from corral.control.inputs import AskProposer, Proposed
from corral.control.outlooks import model_of, shape_of
from corral.model.experience import Measurement
from corral.model.ids import JobId, NodeId
from corral.model.job import Job
from corral.model.messages import MasterProposed, Usage
from corral.model.offer import Bid, Offer, Outlook, Proposal, Snapshot
from corral.model.transitions import copy_job
from corral.policy.bidding import check_proposal, claimed, tenure_of
from corral.policy.estimation import devices_of, family_of, scale_of
from corral.ports.master import AppMaster

PRICE_NEWS = 0.1
"""How far a price moves until proposers are asked again: a tenth."""

REFRESH_S = 5.0
"""Between two times at which all jobs are asked again because nodes came or went."""


class Proposals:
    """The proposals of all live jobs. ``prices`` (by device model) are those of the last global round.

    ``failures`` says of jobs whose own proposer made no bids when it was last asked why.
    """

    def __init__(self, book: Book) -> None:
        self._book = book
        self.prices: dict[str, float] = {}
        self.failures: dict[JobId, str] = {}
        self._told: dict[str, float] = {}
        self._own: dict[JobId, tuple[Bid, ...]] = {}
        self._default: dict[JobId, tuple[Bid, ...]] = {}
        self._asked: dict[JobId, Offer | None] = {}
        self._watchers: dict[JobId, AppMaster] = {}
        self._models: dict[str, int] = {}
        self._refreshed_at = -math.inf

    # ---- offers ----------------------------------------------------------------------------------------------------

    def offer(self, now: float, job: Job, snapshot: Snapshot, credit: float) -> None:
        """Make an offer to a job and let the bids stand that it answers."""
        book = self._book
        offer = self.offered(job, snapshot, credit)
        proposal = book.masters.proposer(job).propose(offer)
        # How long a start is protected is the pool's to say: an AppMaster does not know its settings.
        tenure = tenure_of(job.spec, book.config.scheduling)
        bids = tuple(bid if bid.tenure_s == tenure else replace(bid, tenure_s=tenure) for bid in proposal.bids)
        proposal = replace(proposal, bids=bids)
        if job.spec.appmaster is not None:
            self._default[job.id] = proposal.bids
            self._ask(job, offer)
            proposal = replace(proposal, bids=self._own.get(job.id, proposal.bids))
        book.propose(now, job, proposal)

    def refresh(self, now: float) -> None:
        """Ask the jobs again that bid by device model when what is offered of a model changed.

        Their bids are for what was offered when they were made: after a restart, or while nodes are cordoned, that is
        a part of the pool. At most every few seconds, since thousands may have to be asked.
        """
        book = self._book
        models = book.board.models()
        if models == self._models or now < self._refreshed_at + REFRESH_S:
            return
        self._models = models
        for name in book.waiting.proposals:
            job = book.state.jobs.get(name)
            work = job.spec.work if job is not None else None
            if job is not None and ((work is not None and work.throughput) or book.experience.rates(job.spec)):
                book.waiting.unbid[name] = None
                self._refreshed_at = now

    def priced(self, prices: dict[str, float]) -> None:
        """Take the prices of a round. Jobs with a proposer of their own are offered again when one moved by a tenth."""
        before, self.prices = self._told, prices
        if any(_moved(before.get(model, 0.0), prices.get(model, 0.0)) for model in before.keys() | prices.keys()):
            self._told = prices
            own = (name for name in self._default if name in self._book.state.jobs)
            self._book.waiting.unbid.update(dict.fromkeys(own))

    def offered(self, job: Job, snapshot: Snapshot, credit: float) -> Offer:
        """Return a snapshot as one job sees it."""
        return Offer(snapshot, credit, self.prices, self._book.experience.rates(job.spec))

    def _ask(self, job: Job, offer: Offer) -> None:
        """Pass an offer on to a job's own proposer. It sees no gangs of other tenants."""
        tenant = job.spec.tenant
        holdings = tuple(h for h in offer.snapshot.holdings if h.tenant == tenant)
        offer = replace(offer, snapshot=replace(offer.snapshot, holdings=holdings))
        if job.id in self._asked:
            # It is still at an older one: the newest waits for its answer.
            self._asked[job.id] = offer
            return
        self._asked[job.id] = None
        self._book.ask(AskProposer(copy_job(job), offer))

    def answered(self, now: float, said: Proposed) -> None:
        """Take the answer of a job's own proposer, or why there is none."""
        book = self._book
        job = book.state.jobs.get(said.job)
        if job is None or job.id not in self._asked:
            return
        following = self._asked.pop(job.id)
        before = self._own.pop(job.id, None)
        failure = said.failure or "no answer"
        if said.proposal is not None:
            refusal = check_proposal(job, said.proposal, book.config.scheduling)
            failure = refusal.line() if refusal is not None else ""
            if refusal is None:
                self._own[job.id] = said.proposal.bids
        self.failures.pop(job.id, None)
        if failure:
            self.failures[job.id] = failure
            book.notice(f"the proposer of job {job.id} made no bids, the default ones stand: {failure}")
        bids = self._own.get(job.id) or self._default[job.id]
        if bids != (before or self._default[job.id]):
            book.propose(now, job, replace(book.waiting.proposals[job.id], bids=bids))
            book.dirty = True
        if following is not None:
            self._ask(job, following)

    # ---- what running jobs measured --------------------------------------------------------------------------------

    def proposed(self, now: float, said: MasterProposed) -> None:
        """Take in what an AppMaster on a node believes; only the newest generation is listened to."""
        host = self._book.masters.host(said.job)
        if host is not None and host.generation == said.generation and host.node == said.node:
            self._take(now, said.job, said.proposal, now - said.at)

    def observe(self, now: float, node: NodeId, usage: Iterable[Usage]) -> None:
        """Watch the gangs that have no rank where their AppMaster lives: elements of an array."""
        book = self._book
        seen: dict[JobId, list[Usage]] = {}
        for sample in usage:
            job, host = book.state.jobs.get(sample.task.job), book.masters.host(sample.task.job)
            if sample.progress is None or job is None or host is None or host.node == node:
                continue
            gang = job.gangs.get(sample.task.gang)
            if gang is not None and all(placement.node != host.node for placement in gang.placements):
                seen.setdefault(job.id, []).append(sample)
        for name, samples in seen.items():
            job, host = book.state.jobs.get(name), book.masters.host(name)
            if job is None or host is None:
                continue
            watcher = host.master or self._watchers.get(name)
            if watcher is None:
                watcher = self._watchers[name] = book.masters.stand_in(job)
            watcher.observe(samples, now)
            revised = watcher.revise(now)
            if revised is not None:
                self._take(now, name, revised, 0.0)

    def ended(self, job: JobId) -> None:
        """Forget an ended job."""
        for known in (self._own, self._default, self._asked, self._watchers, self.failures):
            known.pop(job, None)

    def _take(self, now: float, name: JobId, proposal: Proposal, shift_s: float) -> None:
        """Take in outlooks and measurements of running gangs. ``shift_s`` brings the node's times to ours."""
        book = self._book
        job = book.state.jobs.get(name)
        if job is None or proposal.job != name:
            return
        outlooks: dict[int, Outlook] = {}
        for index, outlook in proposal.outlooks.items():
            gang = job.gangs.get(index)
            if gang is None or not gang.live:
                continue
            outlooks[index] = Outlook(
                remaining_s=_number(outlook.remaining_s),
                saved_at=_number(outlook.saved_at, most=now, shift=shift_s),
                shape=shape_of(job, gang, book.state.nodes),
                known_at=now,
            )
        book.believe(job, outlooks)
        news = [measurement for measurement in proposal.measured if self._measured(job, measurement)]
        if news:
            self._bid_again(job)

    def _measured(self, job: Job, said: Measurement) -> bool:
        """Take one measurement in, on what the gang really holds; return whether it is news."""
        book = self._book
        gang = job.gangs.get(said.gang)
        if gang is None or not gang.live or gang.incarnation != said.incarnation:
            return False
        shape = gang.bid.shape if gang.bid is not None else job.spec.shape
        model = model_of(gang.placements, book.state.nodes)
        if model is None:
            return False
        measured = replace(said, family=family_of(job.spec), model=model, devices=scale_of(shape))
        if job.spec.work is not None and devices_of(shape):
            claims = claimed(job.spec.work.throughput.items(), (model,), scale_of(job.spec.shape))
            claim = claims.get((model, measured.devices))
            if claim is not None:
                book.experience.audit(job.spec.tenant, measured, claim)
        return book.experience.measured(job.spec.tenant, measured)

    def _bid_again(self, like: Job) -> None:
        """Ask all jobs of a family for new bids: what is known of their throughput changed."""
        book = self._book
        family, tenant = family_of(like.spec), like.spec.tenant
        for name in book.waiting.proposals:
            job = book.state.jobs.get(name)
            if job is not None and job.spec.tenant == tenant and family_of(job.spec) == family:
                book.waiting.unbid[name] = None
        book.dirty = True


def _number(said: float | None, *, most: float = math.inf, shift: float = 0.0) -> float | None:
    """Return what a node said as a number from 0 to ``most``, ``None`` when it says nothing or is none."""
    if said is None or not math.isfinite(said + shift):
        return None
    return min(most, max(0.0, said + shift))


def _moved(before: float, after: float) -> bool:
    return abs(after - before) > PRICE_NEWS * max(abs(before), abs(after))
