"""The simulated world: the production control core under a virtual clock, nodes that obey at once, jobs of a trace.

One instant is handled like this: what falls due becomes inputs of the core; its commands go to the nodes, whose answers
are inputs again, until all is said; then the core settles (its scheduling round), and so on until nothing changes. A
global round is solved in place, and its plan comes back as an input of the same instant.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import msgspec

from corral.appmaster.core import AppMasterCore
from corral.control.config import ControlConfig
from corral.control.core import ControlCore, Input
from corral.control.inputs import Administer, Outcome, Solved, Submit
from corral.model.errors import CorralError, Refusal, SimulationStuck
from corral.model.events import TenantSet
from corral.model.ids import DEFAULT_TENANT, DeviceId, GangKey, JobId
from corral.model.job import Cause
from corral.model.resources import MILLI, NodeSpec
from corral.model.tenant import Tenant
from corral.ports.solver import Solver
from corral.ports.store import Recovered
from corral.sim.clock import VirtualClock
from corral.sim.exchange import exchange
from corral.sim.fleet import Fleet, Gang
from corral.sim.information import Information, Teller
from corral.sim.record import Record
from corral.sim.runs import Run, Truth
from corral.sim.timeline import Timeline
from corral.sim.workload import CANNOT, TraceJob, Workload

PROGRESS_KNOWN_S = 300.0
"""Service after which the fraction done of a job is known (design: level ``progress``)."""

SAMPLES = 3
"""Progress reports a minute apart before their distance doubles: steady work tells nothing new for long."""

SAMPLE_S = 60.0

Watcher = Callable[[int, int], None]
"""Is told how many jobs have ended, and of how many."""

Happening = TraceJob | tuple[GangKey, int] | tuple[GangKey, int, int] | None
"""An arrival; the end of an incarnation; the n-th report of its progress; a round."""


class Rules(msgspec.Struct, frozen=True):
    """How a world goes on: what is set by the trace's experiment, the policy and the options.

    ``tick_s`` wakes the core so often while jobs are unfinished: for a round. With ``only_ticks`` it settles at
    multiples of it and never in between, so that nothing starts inside a round; with ``whole_steps`` rounds follow each
    other as :class:`corral.sim.workload.Workload` says.
    """

    control: ControlConfig
    information: Information
    restart_cost_s: float
    tick_s: float | None = None
    only_ticks: bool = False
    whole_steps: bool = False


class World:
    """One simulation. ``run`` goes on to the end of the last job; ``step`` handles one instant."""

    def __init__(
        self, workload: Workload, nodes: Sequence[NodeSpec], rules: Rules, solver: Solver | None, truth: Truth
    ) -> None:
        self.workload = workload
        self.clock = VirtualClock()
        self.record = Record()
        self.truth = truth
        self.information = rules.information
        self.finished = 0
        self.held = 0.0
        self._rules = rules
        self._solver = solver
        self._teller = Teller(workload, nodes, rules.information, rules.restart_cost_s)
        self._teller.check()
        self._models: dict[DeviceId, str] = {d.uuid: d.model for node in nodes for d in node.devices}
        self._running: dict[GangKey, Run] = {}
        self._timeline: Timeline[Happening] = Timeline()
        self._tick_at: float | None = None
        self._ticked_at: float = -1.0
        self._round_at: float = 0.0
        self.core = ControlCore(Recovered(0, None, ()), rules.control, AppMasterCore, epoch=1)
        self._fleet = Fleet(nodes, AppMasterCore, started=self._started, stopped=self._stopped)
        self._tell([*self._tenants(), *self._fleet.hellos()], settles=True)
        for job in workload.jobs:
            self._timeline.plan(job.arrival_s, job)

    def run(self, watcher: Watcher | None = None) -> None:
        """Go on until every job has ended. Raises ``SimulationStuck`` when some never can."""
        total, shown = len(self.workload.jobs), 0
        while self.finished < total:
            if not self.step():
                raise SimulationStuck(
                    f"{total - self.finished} of {total} jobs wait for ever: the cluster is too small"
                )
            if watcher is not None and self.finished != shown:
                shown = self.finished
                watcher(shown, total)

    def step(self) -> bool:
        """Handle the next instant; return ``False`` when nothing is planned."""
        at = self._timeline.next_at
        if at is None:
            return False
        self.clock.advance(at)
        inputs: list[Input] = []
        ticks = False
        for happening in self._timeline.due(at):
            ticks = ticks or happening is None
            inputs.extend(self._happen(happening))
        if ticks and self._rules.whole_steps:
            for run in self._running.values():
                run.close_round(at)
        self._tell(inputs, settles=self._settles(at, ticks=ticks, spoken=bool(inputs)))
        if not self._rules.whole_steps:
            self._plan_tick()
        elif ticks or not self._running:
            self._plan_round(at, after_round=ticks)
        unfinished = len(self.core.book.state.jobs)
        self.record.note(at, self.held, self.core.book.waiting.count(), unfinished)
        return True

    def _settles(self, now: float, *, ticks: bool, spoken: bool) -> bool:
        """Return whether the core has to look at the pool: not when only time has passed and no round is due."""
        if self._rules.only_ticks and not ticks:
            return False
        return spoken or self.core.book.dirty or self.core.rounds.due(now)

    # ---- what happens ----------------------------------------------------------------------------------------------

    def _tenants(self) -> list[Input]:
        names = sorted({job.tenant for job in self.workload.jobs} - {DEFAULT_TENANT})
        return [Administer(TenantSet(at=0.0, tenant=Tenant(name), by="trace"), create=True) for name in names]

    def _happen(self, happening: Happening) -> list[Input]:
        now = self.clock.now()
        if happening is None:
            self._tick_at, self._ticked_at = None, now
            return []
        if isinstance(happening, TraceJob):
            self._submit(happening)
            return []
        run = self.truth.runs[happening[0]]
        if not run.running or run.incarnation != happening[1]:
            return []
        if len(happening) == 3:
            return self._report(run, happening[2])
        run.finish(now)
        del self._running[run.key]
        self.held -= run.devices
        self.finished += 1
        return list(self._fleet.finish(run.key, now))

    def _report(self, run: Run, number: int) -> list[Input]:
        now = self.clock.now()
        wait_s = SAMPLE_S * 2.0 ** max(0, number - SAMPLES)
        self._timeline.plan(now + wait_s, (run.key, run.incarnation, number + 1))
        return list(self._fleet.sample(run.key, self._progress(run), now))

    def _progress(self, run: Run) -> float:
        return run.work_done(self.clock.now()) / run.job.work * self._teller.total(run.job)

    def _submit(self, job: TraceJob) -> None:
        answer = self.core.handle(self.clock.now(), Submit((self._teller.ask(job),)))
        if isinstance(answer, Refusal):
            raise CorralError.of(self.workload.placed(job, answer))
        assert isinstance(answer, tuple)
        key = GangKey(JobId(answer[0]), 0)
        self.truth.runs[key] = Run(key, job)

    def _started(self, key: GangKey, gang: Gang) -> None:
        run, now = self.truth.runs[key], self.clock.now()
        shares = [share for launch in gang.launched.values() for share in launch.placement.devices]
        # A gang goes as fast as its slowest rank.
        models = {self._models[share.uuid] for share in shares}
        rate = min(run.job.speed(model, len(shares)) for model in models)
        devices = sum(share.milli for share in shares) / MILLI
        if self._solver is None and rate <= CANNOT * max(run.job.speeds.values()):
            raise SimulationStuck(f"{run.job.name} was put where it cannot run, and no round will ever move it")
        run.start(now, gang.incarnation, rate, devices, self._rules.restart_cost_s)
        self.held += run.devices
        self._running[key] = run
        if not self._rules.whole_steps:
            self._timeline.plan(run.ends_at(), (key, run.incarnation))
        if self._rules.information.reports:
            first_s = run.overhead_s + max(SAMPLE_S, PROGRESS_KNOWN_S - run.service_s)
            self._timeline.plan(now + first_s, (key, run.incarnation, 1))

    def _stopped(self, key: GangKey, gang: Gang, reason: str) -> float | None:
        run = self.truth.runs[key]
        if not run.running or run.incarnation != gang.incarnation:
            return None
        run.stop(self.clock.now())
        del self._running[key]
        run.preemptions += reason == Cause.PREEMPTED
        self.held -= run.devices
        known = self._rules.information.reports and run.service_s >= PROGRESS_KNOWN_S
        return self._progress(run) if known else None

    # ---- core and nodes --------------------------------------------------------------------------------------------

    def _tell(self, inputs: Sequence[Input], *, settles: bool) -> None:
        exchange(self.core, self.clock.now(), inputs, self._obey, settles=settles)

    def _obey(self, outcome: Outcome) -> list[Input]:
        now = self.clock.now()
        said: list[Input] = []
        for command in outcome.commands:
            said.extend(self._fleet.obey(command, now))
        if outcome.finished:
            self.core.book.durable(outcome.finished)
        if outcome.solve is not None and self._solver is not None:
            begin = time.perf_counter()
            plan = self._solver(outcome.solve)
            self.record.solved(plan, time.perf_counter() - begin)
            self._round_at = now
            said.append(Solved(outcome.solve.snapshot.version, plan))
        return said

    def _plan_tick(self) -> None:
        every = self._rules.tick_s
        if every is None or self._tick_at is not None or not self.core.book.state.jobs:
            return
        # Production counts from its last round, and a round is due at the first look after the interval.
        begin = 0.0 if self._rules.only_ticks else self._round_at
        self._tick_at = begin + math.ceil((self.clock.now() - begin) / every) * every
        if self._tick_at <= self._ticked_at:
            self._tick_at += every
        self._timeline.plan(self._tick_at, None)

    def _plan_round(self, now: float, *, after_round: bool) -> None:
        """Plan the next round of whole steps: when all that run have done theirs, else at once for an arrival."""
        if self._tick_at is not None or not self.core.book.state.jobs:
            return
        round_s = self._rules.tick_s or 0.0
        ends = []
        for run in self._running.values():
            ends.append(run.open_round(now, round_s))
            if run.ends_at() < float("inf"):
                self._timeline.plan(run.ends_at(), (run.key, run.incarnation))
        if ends:
            self._tick_at = max(ends)
        else:
            self._tick_at = now + round_s if after_round else now
        self._timeline.plan(self._tick_at, None)
