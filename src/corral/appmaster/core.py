"""The AppMaster of one job: proposes, watches, and decides what follows from what happened.

It is an object without I/O. The controller hosts it while the job is pending, over the controller's own copy of the
job; the agent of the job's first placed rank hosts it afterwards, over a copy of its own that it moves on by the facts
it is told. What it decides counts once the controller has appended it: until then its copy does not change, so a
decision that got lost is simply made again by ``resume``.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from corral.appmaster.progress import Progress, Watch
from corral.appmaster.proposer import DefaultProposer
from corral.model.errors import IllegalTransition
from corral.model.events import Decision, Fact, GangEnded, GangEvent, GangRequeued, JobEvent
from corral.model.ids import NodeId
from corral.model.job import Job
from corral.model.messages import Usage
from corral.model.offer import Offer, Proposal
from corral.model.transitions import apply_to_job
from corral.policy import recovery
from corral.policy.estimation import family_of


class Places(msgspec.Struct, frozen=True):
    """Where the job's things are: declared data shards by node, and the nodes that hold its temporary results."""

    shards: dict[str, tuple[NodeId, ...]]
    temporary: tuple[NodeId, ...]


class AppMasterCore:
    """Implements ``ports.master.AppMaster``."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._proposer = DefaultProposer()
        self._shards: dict[str, tuple[NodeId, ...]] = {}
        self._watch = Watch()
        self._version = 0
        self._temporary: dict[NodeId, None] = {}

    @property
    def job(self) -> Job:
        """Return its copy of the job (the controller's own while hosted there)."""
        return self._job

    @property
    def places(self) -> Places:
        """Return where the job's shards and temporary results lie, as far as offers and facts told."""
        return Places(dict(self._shards), tuple(self._temporary))

    def progress(self, gang: int, rank: int) -> Progress | None:
        """Return what a task reported last, ``None`` when it never did."""
        return self._watch.progress(gang, rank)

    def propose(self, offer: Offer) -> Proposal:
        """Answer an offer; remembers where the job's declared shards are."""
        for shard in self._job.spec.data:
            self._shards[shard] = tuple(n.node for n in offer.snapshot.nodes if shard in n.shards)
        self._version = offer.snapshot.version
        return self._proposer.propose(self._job, offer)

    def observe(self, usage: Sequence[Usage], now: float) -> None:
        """Take in samples of its running tasks: their progress is what remains of them."""
        self._watch.observe([sample for sample in usage if sample.task.job == self._job.id], now)

    def revise(self, now: float) -> Proposal | None:
        """Return what changed materially since it was told last: outlooks (on what each gang runs on), measurements."""
        spec = self._job.spec
        declared = spec.work.total if spec.work is not None else None
        outlooks, measured = self._watch.news(self._job.gangs, family_of(spec), declared, now)
        if not outlooks:
            return None
        return Proposal(self._job.id, self._version, bids=(), outlooks=outlooks, measured=measured)

    def handle(self, fact: Fact) -> tuple[Decision, ...]:
        """Move its copy on by a fact and decide. A fact that its copy has already seen changes nothing."""
        if not isinstance(fact, JobEvent) or fact.job != self._job.id:
            return ()
        try:
            apply_to_job(self._job, fact)
        except IllegalTransition:
            return ()
        if isinstance(fact, GangEvent):
            self._note_places(fact.gang)
            if isinstance(fact, GangEnded | GangRequeued):
                self._watch.forget(fact.gang)
            return self.resume(fact.at, fact.gang)
        return self.resume(fact.at)

    def resume(self, now: float, gang: int | None = None) -> tuple[Decision, ...]:
        """Return what is due on the state alone, of one gang (O(1) for large arrays) or of all."""
        return recovery.decide(self._job, now) if gang is None else recovery.decide_gang(self._job, gang, now)

    def _note_places(self, gang: int) -> None:
        for placement in self._job.gangs[gang].placements:
            self._temporary[placement.node] = None
