"""The controller's book: records facts, keeps every projection in step, and collects the commands that follow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from corral.control.accounts import finished_row, lost_rows, usage_rows, with_checkpoint
from corral.control.board import Board
from corral.control.config import ControlConfig
from corral.control.experience import Experience, ExperienceImage
from corral.control.forecasts import Forecasts
from corral.control.inputs import AskProposer, Outcome
from corral.control.launching import draining_s, launch, stops
from corral.control.ledger import Ledger, LedgerImage
from corral.control.masters import Host, Masters
from corral.control.observed import Observed
from corral.control.outlooks import after_run
from corral.control.standings import Average, Standings
from corral.control.waiting import Waiting, never_started, satisfies
from corral.model.errors import IllegalTransition
from corral.model.events import (
    Decision,
    DeviceFailed,
    DeviceRecovered,
    Fact,
    FilesReturned,
    GangEnded,
    GangEvent,
    GangPlaced,
    GangRequeued,
    GangStopping,
    JobCancelRequested,
    JobEnded,
    JobEvent,
    JobSubmitted,
    NodeCordoned,
    NodeJoined,
    NodeLost,
    NodeRemoved,
    NodeUncordoned,
    TaskEnded,
    TaskStarted,
    TenantRemoved,
    job_of,
)
from corral.model.ids import JobId, NodeId, TenantId
from corral.model.job import Gang, Job, StopReason
from corral.model.market import Market
from corral.model.messages import Acknowledge, ControllerSays, DismissMaster, HostMaster, TellMaster
from corral.model.offer import Outlook, Proposal
from corral.model.resources import Amount
from corral.model.state import PoolState
from corral.model.transitions import copy_job, fold
from corral.policy import recovery
from corral.policy.fairness import due_shares
from corral.policy.inventory import Inventory
from corral.ports.master import AppMasterFactory
from corral.ports.store import FinishedJob, UsageRow

Told = TaskStarted | TaskEnded | GangStopping | JobCancelRequested


class Image(msgspec.Struct):
    """What a snapshot of the store holds: the fold of the journal, decayed averages, the ledger, what was learnt."""

    state: PoolState
    averages: dict[TenantId, Average]
    ledger: LedgerImage = msgspec.field(default_factory=lambda: LedgerImage({}, []))
    experience: ExperienceImage = ExperienceImage()


class Book:
    """State plus projections. ``record`` is the only way in which anything changes."""

    def __init__(self, image: Image, config: ControlConfig, factory: AppMasterFactory, epoch: int) -> None:
        self.config = config
        self.epoch = epoch
        self.state = image.state
        self.standings = Standings(config.scheduling.usage_half_life_s, image.averages)
        self.ledger = Ledger(image.ledger)
        self.experience = Experience(image.experience)
        self.forecasts = Forecasts()
        self.board = Board(self.state, config.scheduling)
        self.waiting = Waiting()
        self.masters = Masters(factory, epoch)
        self.observed = Observed(may_be_deaf=config.leases)
        self.dirty = True
        self.leaving: dict[JobId, Job] = {}
        self._inventory: Inventory | None = None
        self._facts: list[Fact] = []
        self._commands: list[ControllerSays] = []
        self._finished: list[FinishedJob] = []
        self._usage: list[UsageRow] = []
        self._fences: list[NodeId] = []
        self._notices: list[str] = []
        self._asks: list[AskProposer] = []
        self._solve: Market | None = None
        for job in self.state.jobs.values():
            self.waiting.refresh_job(job)

    @property
    def inventory(self) -> Inventory:
        """Return what all known nodes have, those that are busy, cordoned or away included."""
        if self._inventory is None:
            self._inventory = Inventory.of(node.spec for node in self.state.nodes.values())
        return self._inventory

    @property
    def facts(self) -> Sequence[Fact]:
        """Return what was recorded since the last ``drain``, oldest first."""
        return self._facts

    def image(self) -> Image:
        """Return what a snapshot keeps."""
        return Image(self.state, self.standings.averages, self.ledger.image, self.experience.image())

    def drain(self) -> Outcome:
        """Return and clear what was collected since the last call."""
        outcome = Outcome(
            tuple(self._facts),
            tuple(self._commands),
            tuple(self._finished),
            tuple(self._usage),
            tuple(self._fences),
            self._solve,
            tuple(self._notices),
            tuple(self._asks),
        )
        collected = (self._facts, self._commands, self._finished, self._usage, self._fences, self._notices, self._asks)
        for kept in collected:
            kept.clear()
        self._solve = None
        return outcome

    def durable(self, finished: Iterable[FinishedJob]) -> None:
        """Let go of the finished jobs whose rows are in the store; until then they are found in ``leaving``."""
        for row in finished:
            self.leaving.pop(row.id, None)

    def send(self, command: ControllerSays) -> None:
        """Send a command once the facts so far are durable."""
        self._commands.append(command)

    def fence(self, node: NodeId) -> None:
        """Ask the engine to fence a node."""
        self._fences.append(node)

    def solve(self, market: Market) -> None:
        """Ask for the plan of a global round."""
        self._solve = market

    def notice(self, words: str) -> None:
        """Tell the administrator something that he should find in the log."""
        self._notices.append(words)

    def ask(self, offer: AskProposer) -> None:
        """Ask a job's own proposer."""
        self._asks.append(offer)

    def propose(self, now: float, job: Job, proposal: Proposal) -> None:
        """Take a job's bids, for the gangs that wait and for those that run; what is known of gangs stays known."""
        self.waiting.propose(job, proposal)
        for gang in job.gangs.values():
            if gang.live:
                self._hold(job, gang)

    def believe(self, job: Job, outlooks: Mapping[int, Outlook]) -> None:
        """Take in what is believed of some gangs of a job that has made its bids."""
        self.waiting.believe(job.id, outlooks)
        for index in outlooks:
            self._hold(job, job.gangs[index])

    def _hold(self, job: Job, gang: Gang) -> None:
        self.board.hold(job, gang, self.waiting.proposals.get(job.id))

    def sample_shares(self, now: float) -> None:
        """Keep the ledger: what every tenant that holds or wants something is due and holds now."""
        if not self.ledger.due(now):
            return
        standings = self.standings.of_tenants(self.state, self.board.capacity, now)
        wanting = {name for name, standing in standings.items() if standing.held != Amount()}
        wanting.update(self.waiting.index.tenants())
        due = due_shares(standings, wanting, capacity=self.board.capacity)
        held = {name: standings[name].held.dominant_share(self.board.capacity) for name in wanting if name in standings}
        self.ledger.sample(now, {name: share for name, share in due.items() if name in wanting}, held)

    # ---- recording -------------------------------------------------------------------------------------------------

    def record(self, fact: Fact, *, replay: bool = False) -> None:
        """Fold a fact and keep the projections in step. Raises ``IllegalTransition`` and changes nothing."""
        name = job_of(fact)
        job = self.state.jobs.get(name) if name is not None else None
        before = self.state.tenant_held.get(job.spec.tenant, Amount()) if job is not None else Amount()
        lost, left = self._over(job, fact) if job is not None and isinstance(fact, GangRequeued) else ((), None)
        dependents = self.state.dependents.get(fact.job, ()) if isinstance(fact, JobEnded) else ()
        fold(self.state, fact)
        if isinstance(fact, JobSubmitted):
            job = self.state.jobs[fact.job]
        if job is not None and isinstance(fact, GangEnded) and job.spec.serving is None:
            self.experience.ended(job, job.gangs[fact.gang], fact.at)
        if job is not None and left is not None and isinstance(fact, GangRequeued):
            self.believe(job, {fact.gang: left})
        if job is not None and isinstance(fact, JobEvent):
            if isinstance(fact, GangPlaced | TaskEnded):
                self.standings.advance(job.spec.tenant, before, self.board.capacity, fact.at)
            self._project(job, fact, dependents)
        else:
            self._project_pool(fact)
        # These change nothing that a round looks at: the devices of a start are held since the placement.
        self.dirty = self.dirty or not isinstance(fact, TaskStarted | FilesReturned)
        if replay:
            return
        self._facts.append(fact)
        self._usage.extend(lost)
        if job is not None and isinstance(fact, JobEvent):
            self._command(job, fact)
            if isinstance(fact, JobEnded):
                self._release(dependents, fact)

    def _over(self, job: Job, fact: GangRequeued) -> tuple[tuple[UsageRow, ...], Outlook | None]:
        """Return the use that a requeued gang got nothing for, and what is left of it: the fold forgets its devices."""
        left = after_run(job, fact, self.waiting.proposals.get(job.id), self.state.nodes)
        gang = job.gangs.get(fact.gang)
        return tuple(lost_rows(job.spec.tenant, gang, fact)) if gang is not None else (), left

    def _project(self, job: Job, fact: JobEvent, dependents: Iterable[JobId]) -> None:
        if isinstance(fact, GangPlaced | TaskEnded):
            gang = job.gangs[fact.gang]
            self._hold(job, gang)
            changed = fact.placements if isinstance(fact, GangPlaced) else (gang.tasks[fact.rank].placement,)
            for placement in changed:
                if placement is not None:
                    self.board.touch(placement.node)
        if isinstance(fact, GangStopping):
            self._hold(job, job.gangs[fact.gang])
            self.ledger.preempted(job, fact)
        if isinstance(fact, GangPlaced):
            self.forecasts.started(job.gang_key(fact.gang), fact.at)
        elif isinstance(fact, GangEnded):
            self.forecasts.dropped(job.gang_key(fact.gang))
        if isinstance(fact, GangPlaced | GangRequeued | GangEnded):
            self.waiting.refresh(job, fact.gang)
        elif isinstance(fact, JobSubmitted | JobCancelRequested):
            self.waiting.refresh_job(job)
        elif isinstance(fact, JobEnded):
            self.waiting.job_ended(fact.job)
            for name in dependents:
                if name in self.state.jobs:
                    self.waiting.refresh_job(self.state.jobs[name])

    def _project_pool(self, fact: Fact) -> None:
        if isinstance(fact, NodeJoined | NodeRemoved):
            self._inventory = None
        if isinstance(fact, TenantRemoved):
            self.standings.forget(fact.tenant)
            self.ledger.forget(fact.tenant)
            self.experience.forget(fact.tenant)
        elif isinstance(fact, NodeJoined):
            self.board.touch(fact.spec.id)
            self.board.nodes_changed()
        elif isinstance(fact, NodeLost | NodeRemoved | DeviceFailed | DeviceRecovered | NodeCordoned | NodeUncordoned):
            self.board.touch(fact.node)
            self.board.nodes_changed()
            if isinstance(fact, NodeRemoved):
                self.observed.forget_node(fact.node)

    # ---- commands --------------------------------------------------------------------------------------------------

    def _command(self, job: Job, fact: JobEvent) -> None:
        match fact:
            case GangPlaced():
                self._launch_gang(job, fact)
            case TaskEnded():
                self._task_ended(job, fact)
            case GangStopping():
                # Who preempts says for whom, who empties a node says which; a pool that stops has nothing to name.
                pool_stops = fact.reason is StopReason.PREEMPTED and fact.preemption is None and fact.drained is None
                self._stop_gang(job, job.gangs[fact.gang], fact.reason, pool_stops=pool_stops)
            case JobEnded():
                self._job_ended(job)
            case JobSubmitted() | TaskStarted() | GangRequeued() | GangEnded() | JobCancelRequested() | FilesReturned():
                pass
            case _:
                raise IllegalTransition(f"no commands are defined for {type(fact).__name__}")

    def _launch_gang(self, job: Job, fact: GangPlaced) -> None:
        gang = job.gangs[fact.gang]
        host = self.masters.host(job.id)
        if host is None or host.node is None:
            node = fact.placements[0].node
            generation = self.masters.move(job.id, node)
            self.send(HostMaster(node=node, epoch=self.epoch, job=copy_job(job), generation=generation))
        else:
            self._tell_remote(host, job.id, fact)
        for task in gang.tasks:
            self.send(launch(job, gang, task, self.state, epoch=self.epoch, leases=self.config.leases))

    def _stop_gang(self, job: Job, gang: Gang, reason: StopReason, *, pool_stops: bool) -> None:
        left_s = draining_s(job, gang, reason, self.state)
        for stop in stops(job, gang, reason, epoch=self.epoch, pool_stops=pool_stops, draining_s=left_s):
            self.send(stop)

    def _task_ended(self, job: Job, fact: TaskEnded) -> None:
        gang = job.gangs[fact.gang]
        placement = gang.tasks[fact.rank].placement
        if placement is None:
            return
        key = job.task_key(fact.gang, fact.rank)
        begin = gang.placed_at if gang.placed_at is not None else fact.at
        self._usage.extend(usage_rows(job.spec.tenant, placement, begin, fact.at))
        self.send(Acknowledge(node=placement.node, epoch=self.epoch, task=key, incarnation=fact.incarnation))

    def _job_ended(self, job: Job) -> None:
        self.leaving[job.id] = job
        self._finished.append(finished_row(job, self.observed.forget_job(job.id)))
        host = self.masters.forget(job.id)
        if host is not None and host.node is not None:
            self.send(DismissMaster(node=host.node, epoch=self.epoch, job=job.id, generation=host.generation))

    # ---- decisions -------------------------------------------------------------------------------------------------

    def tell(self, job: JobId, fact: Told, *, seen_by: NodeId | None = None) -> None:
        """Let the job's AppMaster know a recorded fact and act on what it decides.

        ``seen_by`` is the node whose hosted AppMaster has already seen it (its decisions come with the report).
        """
        live = self.state.jobs.get(job)
        if live is None:
            return
        host = self.masters.host(job)
        gang = fact.gang if isinstance(fact, GangEvent) else None
        if host is None or host.node is None:
            # It works on this very job, into which the fact is folded already.
            self.decide(job, self.masters.local(live).resume(fact.at, gang))
            return
        self.masters.owe(job, gang, fact.at)
        if host.node != seen_by:
            self._tell_remote(host, job, fact)

    def _tell_remote(self, host: Host, job: JobId, fact: Fact) -> None:
        if host.node is not None:
            self.send(TellMaster(node=host.node, epoch=self.epoch, job=job, generation=host.generation, fact=fact))

    def decide(self, job: JobId, decisions: Iterable[Decision]) -> None:
        """Append an AppMaster's decisions; one that does not fit the state any more is dropped (it is stale)."""
        host = self.masters.host(job)
        for decision in decisions:
            if decision.job != job:
                continue
            try:
                self.record(with_checkpoint(decision, self.state.jobs.get(job), self.waiting.proposals.get(job)))
            except IllegalTransition:
                continue
            if host is not None and not isinstance(decision, JobEnded):
                self._tell_remote(host, job, decision)
        live = self.state.jobs.get(job)
        if live is not None and live.open_gangs == 0:
            for last in recovery.decide(live, self.state.at):
                self.record(last)

    def resume(self, now: float) -> None:
        """Take the decisions that are due on the state alone: the last run may have died before its masters decided."""
        for job in list(self.state.jobs.values()):
            self.decide(job.id, recovery.decide(job, now))

    def chase(self, now: float, patience_s: float) -> None:
        """Host here again the AppMasters that were silent for too long where the state still calls for a decision."""
        for job, gang in self.masters.overdue(now - patience_s):
            live, host = self.state.jobs.get(job), self.masters.host(job)
            if live is None or host is None or host.node is None:
                continue
            due = recovery.decide(live, now) if gang is None else recovery.decide_gang(live, gang, now)
            if due:
                self.rehost(job, now)

    def rehost(self, job: JobId, now: float) -> None:
        """Host a job's AppMaster here again (its host died or is silent) and take the decisions that are due."""
        live = self.state.jobs.get(job)
        if live is not None:
            self.masters.forget(job)
            self.decide(job, self.masters.local(live).resume(now))

    def _release(self, dependents: Iterable[JobId], ended: JobEnded) -> None:
        for name in dependents:
            job = self.state.jobs.get(name)
            if job is None:
                continue
            kinds = [d.kind for d in job.spec.after if d.job == ended.job]
            if not all(satisfies(kind, ended.state) for kind in kinds):
                reason = f"job {ended.job}, which it waits for, ended as {ended.state}"
                for fact in list(never_started(job, ended.at, reason)):
                    self.record(fact)
