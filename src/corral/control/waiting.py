"""What waits: pending gangs with their job's proposal as candidates, jobs that owe a proposal, and dependencies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec.structs import replace

from corral.control.holdings import kin_of, order_of
from corral.control.outlooks import remaining_on_first
from corral.model.events import GangEnded, JobEnded
from corral.model.ids import GangKey, JobId, NodeId
from corral.model.job import DependencyKind, Gang, Job, JobState
from corral.model.offer import Candidate, Outlook, Proposal
from corral.policy.pending import PendingIndex

UNRATED = 1e9
"""The urgency of a gang that no round has looked at: behind those of its tenant that one has, in order among others."""


def satisfies(kind: DependencyKind, state: JobState) -> bool:
    """Return whether a dependency is met by the way in which its job ended."""
    match kind:
        case DependencyKind.ENDED:
            return True
        case DependencyKind.SUCCEEDED:
            return state is JobState.SUCCEEDED
        case DependencyKind.FAILED:
            return state is not JobState.SUCCEEDED


def may_start(job: Job, gang: Gang) -> bool:
    """Return whether a gang waits for nothing but room."""
    return gang.state is JobState.PENDING and job.cancelled_by is None and not job.waiting_for


def never_started(job: Job, at: float, reason: str) -> Iterator[GangEnded | JobEnded]:
    """Yield the end of a job that can never start (a dependency ended otherwise than required)."""
    for gang in job.gangs.values():
        if not gang.state.ended:
            state = JobState.CANCELLED
            yield GangEnded(
                at=at, job=job.id, gang=gang.index, incarnation=gang.incarnation, state=state, reason=reason
            )
    yield JobEnded(at=at, job=job.id, state=JobState.CANCELLED, reason=reason)


def avoided(job: Job, gang: Gang) -> tuple[NodeId, ...]:
    """Return the nodes where a gang, or replicas of its service before it, failed: newest last."""
    before = job.spec.serving.avoid if job.spec.serving is not None else ()
    return tuple(node for node in before if node not in gang.avoid) + gang.avoid


class Waiting:
    """The index of candidates that arbitration works on. ``version`` rises with every change of bids and outlooks."""

    def __init__(self) -> None:
        self.index = PendingIndex()
        self.version = 0
        self.proposals: dict[JobId, Proposal] = {}
        self.unbid: dict[JobId, None] = {}
        self._indexed: dict[JobId, set[int]] = {}

    def count(self) -> int:
        """Return the number of candidates."""
        return len(self.index)

    def jobs_with_data(self, jobs: Iterable[Job]) -> None:
        """Ask pending jobs that declared data for new bids: the places of shards changed."""
        for job in jobs:
            if job.spec.data and job.id in self._indexed:
                self.unbid[job.id] = None

    def refresh_job(self, job: Job) -> None:
        """Bring all gangs of a job up to date."""
        for gang in job.gangs:
            self.refresh(job, gang)

    def refresh(self, job: Job, gang: int) -> None:
        """Bring one gang up to date."""
        state = job.gangs[gang]
        if not may_start(job, state):
            self._drop(job.id, gang)
            return
        proposal = self.proposals.get(job.id)
        if proposal is None or not proposal.bids:
            self.unbid[job.id] = None
            return
        self._add(job, state, proposal)

    def believe(self, job: JobId, outlooks: Mapping[int, Outlook]) -> None:
        """Remember what is believed of some gangs of a job; without bids of the job nobody asks for it."""
        known = self.proposals.get(job)
        if known is not None:
            self.proposals[job] = replace(known, outlooks={**known.outlooks, **outlooks})
            self.version += 1

    def propose(self, job: Job, proposal: Proposal) -> None:
        """Take a job's bids: they stand for all its gangs until replaced. Without a bid none is a candidate.

        What is believed of gangs that have run stays.
        """
        self.unbid.pop(job.id, None)
        old = self.proposals.get(job.id)
        if old is not None and old.outlooks:
            proposal = replace(proposal, outlooks={**old.outlooks, **proposal.outlooks})
        self.proposals[job.id] = proposal
        same = old is not None and old.bids == proposal.bids and old.outlooks == proposal.outlooks
        self.version += not same
        indexed = self._indexed.get(job.id, set())
        for gang in job.gangs.values():
            if same and gang.index in indexed:
                continue
            if may_start(job, gang) and proposal.bids:
                self._add(job, gang, proposal)
            else:
                self._drop(job.id, gang.index)

    def job_ended(self, job: JobId) -> None:
        """Forget an ended job."""
        for gang in list(self._indexed.get(job, ())):
            self._drop(job, gang)
        self.proposals.pop(job, None)
        self.unbid.pop(job, None)

    def rank(self, candidate: Candidate, urgency: float) -> None:
        """Move a candidate to its place in the order of its tenant."""
        self.index.add(replace(candidate, urgency=urgency))

    def _add(self, job: Job, gang: Gang, proposal: Proposal) -> None:
        before = self.index.get(GangKey(job.id, gang.index))
        self._drop(job.id, gang.index)
        self.version += 1
        limit = job.spec.max_duration_s
        self.index.add(
            Candidate(
                key=GangKey(job.id, gang.index),
                tenant=job.spec.tenant,
                queue=job.spec.queue,
                priority=job.spec.priority,
                queued_at=gang.queued_at,
                order=order_of(job, gang),
                bids=proposal.bids,
                max_duration_s=None if limit is None else limit + job.spec.grace_s,
                avoid=avoided(job, gang),
                submitted_at=job.submitted_at,
                attained_s=gang.attained_s,
                remaining_s=remaining_on_first(proposal, gang.index),
                urgency=before.urgency if before is not None else UNRATED,
                kin=kin_of(job),
            )
        )
        self._indexed.setdefault(job.id, set()).add(gang.index)

    def _drop(self, job: JobId, gang: int) -> None:
        known = self._indexed.get(job)
        if known is None or gang not in known:
            return
        known.discard(gang)
        self.version += 1
        if not known:
            del self._indexed[job]
        self.index.remove(GangKey(job, gang))
