"""What must hold at every step, in the journal and on the machines. Only the fold is shared with what is checked.

A violation is an ``AssertionError`` with one line that says what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable

from corral.model.events import (
    Fact,
    GangEnded,
    GangPlaced,
    JobCancelRequested,
    JobEnded,
    JobSubmitted,
    TaskEnded,
    TaskStarted,
)
from corral.model.ids import DEFAULT_QUEUE, DEFAULT_TENANT, GangKey, JobId, TaskKey
from corral.model.job import Cause, Job, JobState
from corral.model.resources import MILLI
from corral.model.state import PoolState
from corral.model.tenant import Queue, Tenant
from corral.model.transitions import fold
from corral.ports.store import Batch
from corral.sim.storm.course import Course
from corral.sim.storm.machine import Machine
from corral.sim.storm.offering import check_service
from corral.sim.storm.run import Run

PAUSE_GRACE_S = 1.05
"""A second, on the slowest clock, in which a task may go on after its whole machine was stopped for a while."""


class JournalChecker:
    """Folds the journal as it is written, and looks at every fact."""

    def __init__(self, runs: dict[tuple[TaskKey, int], Run]) -> None:
        """``runs`` are all runs that ever began, on whatever machine."""
        self.state = PoolState()
        self.state.tenants[DEFAULT_TENANT] = Tenant(DEFAULT_TENANT)
        self.state.queues[DEFAULT_QUEUE] = Queue(DEFAULT_QUEUE)
        self.cancelled: set[JobId] = set()
        self.ended: dict[JobId, Job] = {}
        self.placed = 0
        self._keys: dict[str, JobId] = {}
        self._runs = runs
        self._at = 0.0
        self._incarnations: dict[GangKey, int] = {}

    def appended(self, epoch: int, batch: Batch) -> None:
        """Check a batch that is durable from now on."""
        for fact in batch.facts:
            assert fact.at >= self._at, f"time runs back in the journal: {fact}"
            self._at = fact.at
            self._before(fact)
            job = self.state.jobs.get(fact.job) if isinstance(fact, JobEnded) else None
            fold(self.state, fact)
            check_service(self.state, fact)
            if isinstance(fact, JobEnded) and job is not None:
                self._ended(job)
            if isinstance(fact, GangPlaced):
                self._after_placement(fact)

    def _before(self, fact: Fact) -> None:
        match fact:
            case JobSubmitted():
                key = fact.idempotency_key
                assert key is None or key not in self._keys, f"{key} was submitted twice: job {fact.job}"
                if key is not None:
                    self._keys[key] = fact.job
            case JobCancelRequested():
                self.cancelled.add(fact.job)
            case TaskStarted():
                self._has_run(TaskKey(fact.job, fact.gang, fact.rank), fact.incarnation, "started")
            case TaskEnded():
                self._check_exit(fact)
            case GangPlaced():
                key_of = GangKey(fact.job, fact.gang)
                before = self._incarnations.get(key_of, 0)
                assert fact.incarnation == before + 1, f"incarnation {fact.incarnation} of {key_of} after {before}"
                self._incarnations[key_of] = fact.incarnation
            case GangEnded():
                if fact.state is JobState.CANCELLED and not self.state.jobs[fact.job].spec.after:
                    assert fact.job in self.cancelled, f"{fact.job}.{fact.gang} is cancelled and nobody asked for it"
            case _:
                pass

    def _has_run(self, task: TaskKey, incarnation: int, what: str) -> Run:
        run = self._runs.get((task, incarnation))
        assert run is not None, f"{task}#{incarnation} {what}, says the journal, and never ran"
        return run

    def _check_exit(self, fact: TaskEnded) -> None:
        task = TaskKey(fact.job, fact.gang, fact.rank)
        gang = self.state.jobs[fact.job].gangs[fact.gang]
        assert fact.incarnation == gang.incarnation, f"a result of {task}#{fact.incarnation} counts: it is old"
        if fact.exit.cause is Cause.EXITED:
            run = self._has_run(task, fact.incarnation, "ended")
            assert run.exit is not None, f"{run} ended, says the journal, and has no record"
            assert run.exit.exit_code == fact.exit.exit_code, f"{run} ended with {run.exit}, not with {fact.exit}"

    def _after_placement(self, fact: GangPlaced) -> None:
        job = self.state.jobs[fact.job]
        gang = job.gangs[fact.gang]
        assert all(task.placement is not None for task in gang.tasks), f"{fact.job}.{fact.gang} is placed in part"
        self.placed += 1
        self.check_held()

    def check_held(self) -> None:
        """No device, port or CPU is given out twice, and nobody holds more than its limit."""
        devices: dict[str, int] = {}
        cpus: dict[str, int] = {}
        ports: set[tuple[str, int]] = set()
        tenants: dict[str, int] = {}
        for job in self.state.jobs.values():
            for gang in job.gangs.values():
                for placement in gang.placements:
                    cpus[placement.node] = cpus.get(placement.node, 0) + placement.cpus_milli
                    tenants[job.spec.tenant] = tenants.get(job.spec.tenant, 0) + placement.gpu_milli
                    if placement.port is not None:
                        leased = (self.state.nodes[placement.node].spec.address, placement.port)
                        assert leased not in ports, f"port {leased} is leased twice"
                        ports.add(leased)
                    for share in placement.devices:
                        devices[share.uuid] = devices.get(share.uuid, 0) + share.milli
        assert all(milli <= MILLI for milli in devices.values()), f"a device is leased twice: {devices}"
        for name, milli in cpus.items():
            node = self.state.nodes.get(name)  # type: ignore[call-overload]  # the key is its text
            assert node is None or milli <= node.spec.cpus_milli, f"{name} gave out {milli} of its CPUs"
        for name, milli in tenants.items():
            limit = self.state.tenants[name].limit.gpu_milli  # type: ignore[index]  # the same
            assert limit is None or milli <= limit, f"{name} holds {milli} milli-GPUs of {limit}"

    def _ended(self, job: Job) -> None:
        for gang in job.gangs.values():
            if gang.state is JobState.SUCCEEDED:
                for task in gang.tasks:
                    run = self._has_run(job.task_key(gang.index, task.rank), gang.incarnation, "succeeded")
                    assert run.exit is not None, f"{run} succeeded, says the journal, and has no record"
                    assert run.exit.ok, f"{run} succeeded, says the journal, and ended with {run.exit}"
        self.ended[job.id] = job

    def check_stopped(self, run: Run) -> None:
        """No task is stopped for good while the journal has nothing against it: whoever stops it leads no longer."""
        job = self.state.jobs.get(run.task.job)
        if run.stopping is not Cause.CANCELLED or job is None or job.id in self.cancelled:
            return
        gang = job.gangs[run.task.gang]
        wanted = gang.incarnation == run.incarnation and gang.tasks[run.task.rank].state.holds
        assert not wanted or gang.stopping is not None, f"{run} is stopped and nobody asked for it"

    def assert_known(self, job: JobId) -> None:
        """No job that was acknowledged is lost."""
        assert job in self.state.jobs or job in self.ended, f"job {job} was acknowledged and is lost"


class MachineChecker:
    """Follows what makes progress where, from the outside."""

    def __init__(self, course: Course) -> None:
        self.runs: dict[tuple[TaskKey, int], Run] = {}
        self.overlaps = 0
        self._course = course
        self._going: dict[GangKey, dict[Run, Machine]] = {}
        self._failures: list[str] = []

    def moved(self, machine: Machine, run: Run) -> None:
        """Hear that a run is there, or began or ceased to make progress."""
        key = run.task.gang_key
        known = self.runs.setdefault((run.task, run.incarnation), run)
        if known is not run:
            self._failures.append(f"{run} runs on {machine.name} and has run elsewhere")
        if not run.going:
            self._going.get(key, {}).pop(run, None)
            return
        self._going.setdefault(key, {})[run] = machine
        self._check_gang(key)
        self._check_devices(machine)

    def raise_failures(self) -> None:
        """Raise the first thing that was seen to be wrong."""
        assert not self._failures, self._failures[0]

    def _check_gang(self, key: GangKey) -> None:
        going = list(self._going.get(key, ()))
        for i, one in enumerate(going):
            for other in going[i + 1 :]:
                if one.incarnation == other.incarnation or not (one.exclusive or other.exclusive):
                    continue
                old = min(one, other, key=lambda run: run.incarnation)
                left_s = old.resumed_at + PAUSE_GRACE_S - self._course.now
                if left_s > 0:
                    self.overlaps += 1
                    self._course.after(left_s + 1e-3, lambda: self._check_gang(key))
                else:
                    where = [self._going[key][run].name for run in (one, other)]
                    self._failures.append(f"{one} and {other} run at once, on {where[0]} and {where[1]}")

    def _check_devices(self, machine: Machine) -> None:
        used: dict[str, int] = {}
        for run in machine.runs.values():
            for share in run.command.placement.devices if run.alive else ():
                used[share.uuid] = used.get(share.uuid, 0) + share.milli
        over = [uuid for uuid, milli in used.items() if milli > MILLI]
        if over:
            runs = [str(r) for r in machine.runs.values() if r.alive]
            self._failures.append(f"{over[0]} carries more than it has: {', '.join(runs)}")

    def all_going(self) -> list[str]:
        """Return all runs that make progress."""
        return [str(run) for runs in self._going.values() for run in runs]


Check = Callable[[], None]
