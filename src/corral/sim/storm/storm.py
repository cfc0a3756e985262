"""One storm: a pool, people, faults, checkers after every step; then all is repaired and everything must end."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from corral.appmaster.core import AppMasterCore
from corral.control.config import ControlConfig
from corral.control.core import ControlCore
from corral.control.ledger import LedgerImage
from corral.model.ids import DeviceId, NodeId
from corral.model.resources import DeviceSpec, NodeSpec
from corral.policy.config import SchedulingConfig
from corral.policy.fencing import RATE_DIFFERENCE_MAX
from corral.ports.store import Batch, Recovered
from corral.sim.storm.checkers import JournalChecker, MachineChecker
from corral.sim.storm.clocks import HostClock
from corral.sim.storm.controller import Head
from corral.sim.storm.course import Course
from corral.sim.storm.database import Database
from corral.sim.storm.faults import QUIET, STEADY, THEMES, Faults, PowerSwitches
from corral.sim.storm.machine import Machine
from corral.sim.storm.network import Network
from corral.sim.storm.offering import Offering, has_service, service_words, whole
from corral.sim.storm.people import People
from corral.sim.storm.relay import Relay
from corral.sim.storm.run import Run

NODES = {"n1": 2, "n2": 4, "n3": 1, "n4": 3, "n5": 2}
STORM_S = 150.0
BREATH_S = 5.0
HEAL_S = 600.0
CALM_S = 45.0
QUIET_EVERY = 4
"""Every so many storms are quiet: nothing is moved, relays refuse nobody, jobs are long, clocks are at their
worst, and a leader or a node fails. What one does that leads no longer shows only while it has nothing to write."""

DRIFT_MAX = RATE_DIFFERENCE_MAX / 2
"""By how much a boot clock runs too fast or too slow: two of them differ by all that leases are laid out for."""


class Report(msgspec.Struct, frozen=True):
    """What became of one storm; ``failure`` is empty when all went well."""

    seed: int
    failure: str
    digest: str
    steps: int
    virtual_s: float
    jobs: int
    placed: int
    leaders: int
    overlaps: int
    faults: dict[str, int]


class Errors(logging.Handler):
    """Keeps what production code logs as an error: no fault of a storm is a reason for one."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record."""
        error = record.exc_info[1] if record.exc_info else None
        self.found.append(record.getMessage() + (f": {type(error).__name__}: {error}" if error else ""))


@contextmanager
def listening() -> Iterator[Errors]:
    """Collect the errors that the rooms of corral log; let nothing of their log out."""
    errors, log = Errors(), logging.getLogger("corral")
    before, log.propagate = log.propagate, False
    log.addHandler(errors)
    try:
        yield errors
    finally:
        log.removeHandler(errors)
        log.propagate = before


class Storm:
    """The pool of one seed."""

    def __init__(self, seed: int, listen: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.course = Course(seed, listen)
        chance = self.course.chance
        self.clocks: list[HostClock] = []
        # In the worst case the controllers' clocks run fast and those of the machines slowly.
        self._mixed = chance.random() < 0.6
        # Nodes with wrong wall clocks get nothing new: too many of them, and nothing is ever moved.
        self._wrong = chance.random() < 0.25
        self.network = Network(self.course)
        self.machine_checker = MachineChecker(self.course)
        self.journal = JournalChecker(self.machine_checker.runs)
        self.database = Database(self._appended)
        self._quiet = quiet = seed % QUIET_EVERY == 0
        self._mixed = self._mixed and not quiet
        strict = not quiet and chance.random() < 0.5
        self.relays = {NodeId(n): Relay(self.course, self.network, NodeId(n), strict=strict) for n in NODES}
        self.machines = {
            node: Machine(self.course, _spec(node), self._clock(-1.0), relay, self._moved)
            for node, relay in self.relays.items()
        }
        switches = PowerSwitches(self.course, self.machines, works=chance.random() < 0.3)
        round_s, tenure_s = (60.0, 600.0) if quiet else chance.choice(((2.0, 3.0), (10.0, 20.0), (60.0, 600.0)))
        scheduling = SchedulingConfig(round_s=round_s, tenure_s=tenure_s, tenure_restarts=0.0)
        self.config = ControlConfig(scheduling=scheduling, leases=True)
        self.heads = [
            Head(
                self.course,
                f"h{i}",
                self._clock(1.0),
                self.network,
                self.database,
                self.relays,
                self.config,
                switches.off,
            )
            for i in range(1, 3 if quiet else chance.choice((2, 2, 3, 4)))
        ]
        self.people = People(self.course, self.network, self.heads, [str(n) for n in NODES])
        self.offering = (
            Offering(seed, self.course, self.network, self.heads, self.people) if has_service(seed) else None
        )
        self.people.patient, self.people.small = self.people.patient or quiet, quiet
        self._theme = chance.choice(QUIET if quiet else THEMES)
        self.faults = Faults(self.course, self.network, self.database, self.heads, list(self.machines.values()))
        self.faults.aim = quiet

    def _clock(self, favoured: float) -> HostClock:
        chance = self.course.chance
        drift = (chance.choice((-1.0, 0.0, 1.0)) if self._mixed else favoured) * DRIFT_MAX
        ahead_s = chance.choice((0.0, 5.0, -7_000.0) if self._wrong else (0.0, 0.5, -0.5))
        clock = HostClock(self.course, rate=1.0 + drift, boot_s=chance.uniform(10.0, 1e6), ahead_s=ahead_s)
        self.clocks.append(clock)
        return clock

    def _moved(self, machine: Machine, run: Run) -> None:
        self.machine_checker.moved(machine, run)
        if not run.alive:
            self.journal.check_stopped(run)

    def _appended(self, epoch: int, batch: Batch) -> None:
        self.course.absorb(msgspec.msgpack.encode(batch))
        self.journal.appended(epoch, batch)

    # ---- the course ------------------------------------------------------------------------------------------------

    def run(self) -> Report:
        """Let it pass; what was wrong is in the report."""
        failure = ""
        with listening() as errors:
            try:
                self._pass(errors)
            except Exception as error:  # noqa: BLE001 - whatever breaks, it is the finding of this seed
                failure = f"{type(error).__name__}: {error}{_place(error)}"
            for head in self.heads:
                head.end()
        self.course.note("storm", failure or "all is well")
        return Report(
            self.seed,
            failure,
            self.course.digest,
            self.course.steps,
            round(self.course.now, 3),
            len(self.people.admitted),
            self.journal.placed,
            self.database.row.epoch,
            self.machine_checker.overlaps,
            dict(sorted(self.faults.counts.items())),
        )

    def _pass(self, errors: Errors) -> None:
        chance = self.course.chance
        for head in self.heads:
            self.course.after(chance.uniform(0.0, 0.5), head.start)
        for machine in self.machines.values():
            self.course.after(chance.uniform(0.0, 2.0), machine.start_agent)
        self.course.after(1.0, self.people.begin)
        if self.people.patient:
            # A leader with nothing to write does not notice that its database is away.
            late = self._theme in STEADY if self._quiet else chance.random() < 0.5
            until = 0.8 * STORM_S if late else 3 * BREATH_S
            for _ in range(chance.choice((4, 8))):
                self.course.after(chance.uniform(BREATH_S, until), self.people.submit)
        else:
            for _ in range(chance.choice((8, 20, 45))):
                self.course.after(chance.uniform(2.0, 0.8 * STORM_S), self.people.submit)
            for _ in range(chance.choice((0, 0, 3))):
                self.course.after(chance.uniform(BREATH_S, STORM_S), self.people.cordon)
        for _ in range(chance.choice((0, 0, 0, 2))):
            self.course.after(chance.uniform(BREATH_S, STORM_S), self.people.plan_outage)
        if self.offering is not None:
            self.offering.plan(0.8 * STORM_S)
        self.faults.plan(3 * BREATH_S, STORM_S / 2 if self._quiet else STORM_S, self._theme)
        self._until(STORM_S, errors)
        self.course.note("storm", "is over: all is repaired")
        self.faults.heal()
        for head in self.heads:
            head.calm = True
        for clock in self.clocks:
            clock.ahead_s = 0.0
        self.people.uncordon_all()
        if self.offering is not None:
            self._end_service(self.offering, errors)
        self._until(STORM_S + HEAL_S, errors, self._all_ended)
        assert self._all_ended(), f"never ended: {self._left()}"
        self._until(self.course.now + CALM_S, errors)
        self._check_calm()

    def _end_service(self, offering: Offering, errors: Errors) -> None:
        """See that the service has its replicas again, whatever happened; then remove it."""
        offering.finish()
        half_s = STORM_S + HEAL_S / 2
        self._until(half_s, errors, lambda: not self.people.open and whole(self.journal.state))
        assert whole(self.journal.state), f"the service is not whole again: {service_words(self.journal.state)}"
        offering.remove()

    def _until(self, end_s: float, errors: Errors, enough: Callable[[], bool] = lambda: False) -> None:
        course, looked_at = self.course, self.course.now
        while course.step(end_s):
            self.machine_checker.raise_failures()
            leading = [head.name for head in self.heads if head.leads]
            assert len(leading) <= 1, f"{' and '.join(leading)} lead at once"
            if errors.found or self.people.faults:
                self._raise_faults(errors)
            if course.now - looked_at >= 1.0:
                looked_at = course.now
                self._raise_faults(errors)
                if enough():
                    return

    def _raise_faults(self, errors: Errors) -> None:
        found = [*errors.found, *self.people.faults]
        for head in self.heads:
            head.look()
            found += head.faults
        for machine in self.machines.values():
            found += machine.faults
        assert not found, found[0]

    # ---- the end ---------------------------------------------------------------------------------------------------

    def _all_ended(self) -> bool:
        return not self.journal.state.jobs and not self.people.open

    def _left(self) -> str:
        jobs = self.journal.state.jobs.values()
        left = [f"{job.id} ({job.state}, {[str(g.stopping or g.state) for g in job.gangs.values()]})" for job in jobs]
        return ", ".join(left) or f"{self.people.open} requests"

    def _check_calm(self) -> None:
        """Nothing runs, nothing is held, nothing acknowledged is lost, and the journal tells the whole story."""
        going = self.machine_checker.all_going()
        alive = [str(r) for machine in self.machines.values() for r in machine.runs.values() if r.alive]
        assert not going, f"runs and nobody knows: {going}"
        assert not alive, f"lives and nobody knows: {alive}"
        for job in self.people.admitted:
            self.journal.assert_known(job)
        assert self.people.cancelled <= self.journal.cancelled, "a cancellation was acknowledged and is lost"
        leading = [head.shell for head in self.heads if head.shell is not None and head.leads]
        assert len(leading) == 1, f"{len(leading)} heads lead"
        core = leading[0].core
        for held in core.book.state.held.values():
            left = (held.devices, held.gangs, held.ports, held.cpus_milli)
            assert not any(left), f"something is held by nobody: {left}"
        missing = [str(n) for n in NODES if not core.book.observed.contact(NodeId(n)).answering]
        assert not missing, f"healthy and not in contact: {missing}"
        entries = tuple(self.database.entries)
        replayed = ControlCore(Recovered(0, None, entries), self.config, AppMasterCore, core.book.epoch)
        assert _comparable(replayed) == _comparable(core), "the journal makes another state than the leader has"


def _comparable(core: ControlCore) -> object:
    """The shares of the ledger are sampled, not journaled: snapshots keep them, a journal alone does not."""
    image = core.book.image()
    without = msgspec.structs.replace(image, ledger=LedgerImage({}, image.ledger.entries))
    return msgspec.to_builtins(without, order="deterministic")


def _place(error: Exception) -> str:
    """Return where an error comes from that is no checker's."""
    frames = traceback.extract_tb(error.__traceback__)
    return "" if isinstance(error, AssertionError) else f" at {frames[-1].filename}:{frames[-1].lineno}"


def _spec(node: NodeId) -> NodeSpec:
    devices = tuple(
        DeviceSpec(DeviceId(f"{node}-gpu{i}"), "H100", "simulated", 81_559, i) for i in range(NODES[str(node)])
    )
    return NodeSpec(node, str(node), f"10.0.0.{node[1:]}", 64_000, 512_000, devices, incarnation="boot-1")
