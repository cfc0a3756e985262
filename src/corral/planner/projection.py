"""How a pool goes on: its own controller, restored from a snapshot, under a virtual clock with nodes that obey at once.

Everything that decides is production code: the fill, the rounds and their solver, AppMasters. What nobody can know is
how long gangs go on: each one runs for the median of its kind (``policy.forecast``), bounded by what it declared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from corral.appmaster.core import AppMasterCore
from corral.control.config import ControlConfig
from corral.control.core import ControlCore, Input
from corral.control.inputs import Outcome, Solved
from corral.control.launching import launch
from corral.model.errors import PlanTooLarge, SimulationStuck
from corral.model.experience import ServiceHistory
from corral.model.ids import GangKey, JobId, NodeId
from corral.model.job import Cause, Job
from corral.model.messages import PROTOCOL, Hello, LaunchTask, TaskPhase, TaskReport
from corral.model.offer import Bid, Candidate
from corral.model.plan import Course
from corral.model.resources import NodeSpec
from corral.policy.forecast import goes_on_s, runs_s
from corral.ports.solver import Solver
from corral.ports.store import Recovered
from corral.sim.clock import VirtualClock
from corral.sim.exchange import exchange
from corral.sim.fleet import Fleet, Gang
from corral.sim.timeline import Timeline

EPOCH = 2**30
"""Leader epoch of every projection: above that of any controller, so that its nodes obey."""

MEDIAN = 0.5
INSTANTS_MAX = 200_000
"""Instants of one projection: more means a pool too busy to be followed so far."""

LEAST_S = 1.0
"""What is left of a gang that should have ended already."""


class Seen(msgspec.Struct, frozen=True):
    """A pool at one moment: the controller's snapshot and what it does not hold.

    ``answering`` are the nodes that can be counted on; ``at`` is the controller's time (seconds since the epoch).
    """

    image: bytes
    at: float
    answering: tuple[NodeId, ...]
    config: ControlConfig


class Run(msgspec.Struct):
    """What is left of a gang in seconds on its first bid, and where it is. A replica of a service has no end."""

    course: Course
    left_s: float | None = None
    incarnation: int = 0
    since: float | None = None
    rate: float = 1.0
    overhead_s: float = 0.0
    starts: int = 0

    @property
    def endless(self) -> bool:
        """Return whether it goes on until somebody ends it."""
        return self.left_s == math.inf


Happening = tuple[GangKey, int] | None


class Projection:
    """One course of a pool from a moment on."""

    def __init__(self, seen: Seen, solver: Solver) -> None:
        self.clock = VirtualClock(seen.at)
        self.core = ControlCore(Recovered(0, seen.image, ()), seen.config, AppMasterCore, EPOCH)
        # How much load there will be nobody knows: a service keeps the replicas that it has.
        self.core.services.still = True
        self.runs: dict[GangKey, Run] = {}
        self._config = seen.config
        self._solver = solver
        self._timeline: Timeline[Happening] = Timeline()
        self._tick_at: float | None = None
        self._held_s, self._held_share, self._held_at = 0.0, 0.0, seen.at
        nodes = [node.spec for name, node in self.core.book.state.nodes.items() if name in set(seen.answering)]
        self._fleet = Fleet(nodes, AppMasterCore, started=self._started, stopped=self._stopped)
        self._join(nodes)

    @property
    def history(self) -> ServiceHistory:
        """Return how long finished gangs ran."""
        return self.core.book.experience.history()

    # ---- before it goes on -------------------------------------------------------------------------------------

    def _join(self, nodes: Sequence[NodeSpec]) -> None:
        """Let the nodes say hello with what runs on them, and note how long it is expected to go on."""
        tasks: dict[NodeId, list[TaskReport]] = {}
        for job in self.core.book.state.jobs.values():
            for index, gang in job.gangs.items():
                if gang.live:
                    self._adopt(job, index, tasks)
        hellos = [
            Hello(
                node=spec.id,
                protocol=PROTOCOL,
                spec=spec,
                agent_pid=1,
                supervisor_start="0",
                tasks=tuple(tasks.get(spec.id, ())),
                devices=(),
            )
            for spec in nodes
        ]
        self.tell(hellos, settles=False)

    def _adopt(self, job: Job, index: int, tasks: dict[NodeId, list[TaskReport]]) -> None:
        now, key, gang = self.clock.now(), job.gang_key(index), job.gangs[index]
        state = self.core.book.state
        launched: dict[int, LaunchTask] = {}
        for task in gang.tasks:
            if task.state.holds and task.placement is not None and task.placement.node in state.nodes:
                launched[task.rank] = launch(job, gang, task, state, epoch=EPOCH, leases=False)
                report = TaskReport(
                    job.task_key(index, task.rank), gang.incarnation, TaskPhase.RUNNING, 1, task.started_at
                )
                tasks.setdefault(task.placement.node, []).append(report)
        self._fleet.adopt(key, gang.incarnation, launched)
        holding = self.core.book.board.holdings[key]
        started = gang.placed_at if gang.placed_at is not None else now
        run = self._run(key)
        run.course = replace(run.course, running=True, start=started)
        run.incarnation, run.since, run.starts = gang.incarnation, now, 1
        if run.endless:
            return
        left_s = max(LEAST_S, goes_on_s(holding, now, self.history, self._config.scheduling, MEDIAN))
        run.rate = self._rate(job, index)
        run.left_s = left_s * run.rate
        self._timeline.plan(now + left_s, (key, gang.incarnation))

    def _run(self, key: GangKey) -> Run:
        run = self.runs.get(key)
        if run is None:
            job = self.core.book.state.jobs[key.job]
            course = Course(key, job.spec.name, job.spec.tenant, running=False, start=None, end=None)
            run = self.runs[key] = Run(course, math.inf if job.spec.serving is not None else None)
        return run

    def watch(self, jobs: Iterable[JobId]) -> None:
        """Follow all unfinished gangs of some jobs."""
        for name in jobs:
            for index, gang in self.core.book.state.jobs[name].gangs.items():
                if not gang.state.ended:
                    self._run(GangKey(name, index))

    # ---- going on ----------------------------------------------------------------------------------------------

    def tell(self, inputs: Sequence[Input], *, settles: bool = True) -> Sequence[object]:
        """Let the core and the nodes talk until nothing changes any more; return the core's answers to the inputs."""
        try:
            answers = exchange(self.core, self.clock.now(), inputs, self._obey, settles=settles)
        except SimulationStuck:
            raise PlanTooLarge("the copy of the pool does not come to rest") from None
        if settles:
            self._plan_tick()
        return answers

    def go(self, until: float) -> None:
        """Go on until a time, or until all that is followed has ended. Raises ``PlanTooLarge``."""
        self.tell(())
        for _ in range(INSTANTS_MAX):
            at = self._timeline.next_at
            if at is None or all(run.endless or run.course.end is not None for run in self.runs.values()):
                return
            if at > until:
                self.clock.advance(until)
                return
            self.clock.advance(max(at, self.clock.now()))
            self.tell([item for happening in self._timeline.due(at) for item in self._happen(happening)])
        raise PlanTooLarge(f"the pool is too busy to be followed to the end: more than {INSTANTS_MAX:,} changes")

    def courses(self) -> dict[GangKey, Course]:
        """Return how it went on with every gang that is followed."""
        return {key: run.course for key, run in self.runs.items()}

    @property
    def held_s(self) -> float:
        """Return the sum of held shares of the pool over time, in seconds: of its devices, or of CPUs without any."""
        self._account()
        return self._held_s

    # ---- what happens ------------------------------------------------------------------------------------------

    def _happen(self, happening: Happening) -> list[Input]:
        now = self.clock.now()
        if happening is None:
            self._tick_at = None
            return []
        key, incarnation = happening
        run = self.runs[key]
        if run.since is None or run.incarnation != incarnation:
            return []
        run.since, run.left_s = None, 0.0
        run.course = replace(run.course, end=now)
        return list(self._fleet.finish(key, now))

    def _started(self, key: GangKey, gang: Gang) -> None:
        now, run = self.clock.now(), self._run(key)
        job = self.core.book.state.jobs[key.job]
        if run.left_s is None:
            run.left_s = self._fresh_s(key, job)
        run.rate = self._rate(job, key.gang)
        run.overhead_s = job.spec.restart_cost_s if run.starts or job.gangs[key.gang].attained_s else 0.0
        run.since, run.incarnation = now, gang.incarnation
        run.starts += 1
        if run.course.start is None:
            run.course = replace(run.course, start=now)
        if run.endless:
            return
        self._timeline.plan(now + run.overhead_s + max(LEAST_S, run.left_s) / run.rate, (key, gang.incarnation))

    def _stopped(self, key: GangKey, gang: Gang, reason: str) -> None:
        run, now = self._run(key), self.clock.now()
        if run.since is None or run.incarnation != gang.incarnation or run.left_s is None:
            return
        run.left_s = max(LEAST_S, run.left_s - max(0.0, now - run.since - run.overhead_s) * run.rate)
        run.since = None
        run.course = replace(run.course, preemptions=run.course.preemptions + (reason == Cause.PREEMPTED))

    def _rate(self, job: Job, index: int) -> float:
        """Return how fast a gang goes where it runs, in parts of the speed of its job's first bid."""
        won, proposal = job.gangs[index].bid, self.core.book.waiting.proposals.get(job.id)
        if won is None or proposal is None or not proposal.bids:
            return 1.0
        first = proposal.bids[0].throughput
        return won.throughput / first if won.throughput > 0 and first > 0 else 1.0

    def _fresh_s(self, key: GangKey, job: Job) -> float:
        """Return how long a gang is expected to run that starts here for the first time."""
        gang, scheduling = job.gangs[key.gang], self._config.scheduling
        proposal = self.core.book.waiting.proposals.get(key.job)
        bids = proposal.bids if proposal is not None and proposal.bids else (Bid(job.spec.shape),)
        outlook = proposal.outlooks.get(key.gang) if proposal is not None else None
        candidate = Candidate(
            key=key,
            tenant=job.spec.tenant,
            queue=job.spec.queue,
            priority=job.spec.priority,
            queued_at=gang.queued_at,
            order=0,
            bids=bids,
            max_duration_s=job.spec.max_duration_s,
            attained_s=gang.attained_s,
            remaining_s=outlook.remaining_s if outlook is not None else bids[0].remaining_s,
        )
        return max(LEAST_S, runs_s(candidate, self.history, scheduling, MEDIAN))

    def _obey(self, outcome: Outcome) -> list[Input]:
        self._account()
        now = self.clock.now()
        said: list[Input] = []
        for command in outcome.commands:
            said.extend(self._fleet.obey(command, now))
        if outcome.finished:
            self.core.book.durable(outcome.finished)
        if outcome.solve is not None:
            said.append(Solved(outcome.solve.snapshot.version, self._solver(outcome.solve)))
        return said

    def _plan_tick(self) -> None:
        """Wake the core for its next round while anything is unfinished."""
        every = self._config.scheduling.round_s
        if self._tick_at is None and self.core.book.state.jobs:
            self._tick_at = self.clock.now() + every
            self._timeline.plan(self._tick_at, None)

    def _account(self) -> None:
        book, now = self.core.book, self.clock.now()
        held = sum((amount.gpu_milli for amount in book.state.tenant_held.values()), 0)
        total = book.board.capacity.gpu_milli
        if not total:
            held = sum(amount.cpus_milli for amount in book.state.tenant_held.values())
            total = book.board.capacity.cpus_milli
        # What was held until now is what the last exchange left; it is noted after each one.
        self._held_s += self._held_share * (now - self._held_at)
        self._held_at, self._held_share = now, held / total if total else 0.0
