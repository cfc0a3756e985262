"""What the control core is told. Answers are values: a result or a ``Refusal``."""

from __future__ import annotations

import msgspec

from corral.model.ask import JobAsk
from corral.model.events import (
    Fact,
    RolloutEnded,
    RolloutWidened,
    ServiceRemoved,
    ServiceScaled,
    ServiceSet,
)
from corral.model.ids import JobId, NodeId
from corral.model.job import Job, JobState
from corral.model.market import Market, RoundPlan
from corral.model.messages import ControllerSays
from corral.model.offer import Offer, Proposal
from corral.model.routes import RoutingTable
from corral.ports.store import FinishedJob, UsageRow


class EndedJob(msgspec.Struct, frozen=True):
    """A finished job that a submission depends on, looked up in the store."""

    job: JobId
    state: JobState


class Submit(msgspec.Struct, frozen=True):
    """Admit these jobs together. ``ended`` resolves the ``after`` references that are not live, by their text."""

    asks: tuple[JobAsk, ...]
    idempotency_key: str | None = None
    digest: str | None = None
    ended: dict[str, EndedJob] = {}


class Cancel(msgspec.Struct, frozen=True):
    """Ask for the end of a live job."""

    job: JobId
    by: str


class Administer(msgspec.Struct, frozen=True):
    """An admin act that is one fact; the core checks that it fits. ``create`` refuses an existing name."""

    fact: Fact
    create: bool = False


ServiceAct = ServiceSet | ServiceScaled | RolloutWidened | RolloutEnded | ServiceRemoved
"""What people may ask of a service."""


class Serve(msgspec.Struct, frozen=True):
    """A wish about a service, as the fact that it would be. The core checks it, dates it and numbers a new revision.

    A ``ServiceSet`` bears secrets, which count where the service is new; the same spec as the newest, brought out or
    being so, changes nothing. A ``RolloutEnded`` gives the rollout up that is under way. The answer is a refusal or
    ``None``.
    """

    fact: ServiceAct


class Quiesce(msgspec.Struct, frozen=True):
    """The pool is about to stop: place nothing more; with ``stop_tasks`` what runs is stopped and queued again."""

    stop_tasks: bool


class Fenced(msgspec.Struct, frozen=True):
    """The answer of the engine to a request to fence a silent node."""

    node: NodeId
    proven: bool


class Solved(msgspec.Struct, frozen=True):
    """The answer to ``Outcome.solve``, whose snapshot had ``version``: a plan, or in ``fault`` why there is none."""

    version: int
    plan: RoundPlan | None = None
    fault: str = ""


class AskProposer(msgspec.Struct, frozen=True):
    """An offer for a job's own proposer (``job.spec.appmaster``). The answer, good or bad, is ``Proposed``."""

    job: Job
    offer: Offer


class Proposed(msgspec.Struct, frozen=True):
    """What a job's own proposer answered; without a proposal ``failure`` says in one line why there is none."""

    job: JobId
    proposal: Proposal | None = None
    failure: str = ""


class Outcome(msgspec.Struct, frozen=True):
    """What a batch of inputs led to: facts to append, then commands to send and nodes to fence.

    ``solve`` is a global round to solve somewhere else; its answer comes back as ``Solved``, and no other round is
    asked for until then. ``notices`` are things that an administrator should find in the log. ``asks`` go to users' own
    proposers; each is answered by ``Proposed``, and no job is asked again before. ``table`` is set when front ends
    are to be told something else than before.
    """

    facts: tuple[Fact, ...]
    commands: tuple[ControllerSays, ...]
    finished: tuple[FinishedJob, ...]
    usage: tuple[UsageRow, ...]
    fences: tuple[NodeId, ...]
    solve: Market | None = None
    notices: tuple[str, ...] = ()
    asks: tuple[AskProposer, ...] = ()
    table: RoutingTable | None = None
