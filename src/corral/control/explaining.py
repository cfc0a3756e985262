"""``why`` and ``queue``: the controller's view of the pool as a scene for the policy's explanations."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from corral.control.core import ControlCore
from corral.control.notes import gang_notes
from corral.control.scene import scene_of
from corral.model.ids import GangKey, TenantId
from corral.model.job import DependencyKind, Gang, Job, JobState, TaskState
from corral.model.offer import Candidate
from corral.model.plan import Course, PlanReport, Shift
from corral.model.report import QueueLine, WhyReport
from corral.policy.explain import HIDDEN, explain_pending, price_terms, queue_lines
from corral.policy.recovery import describe, first_failure


def why(core: ControlCore, job: Job, gang: int | None, now: float, viewer: TenantId | None) -> WhyReport:
    """Explain a job: a pending gang in full, any other in one line. Without ``gang`` the first one that waits."""
    report = _explained(core, job, gang, now, viewer)
    notes = tuple(_notes(core, job, report.state, now))
    return replace(report, notes=(*_elements(job), *notes) if gang is None else notes)


def _elements(job: Job) -> Iterator[str]:
    """Yield how many elements of an array that has not ended run and wait: the answer is about one of them."""
    if job.spec.is_array and not job.state.ended:
        running = sum(gang.state is JobState.RUNNING for gang in job.gangs.values())
        waiting = sum(gang.state is JobState.PENDING for gang in job.gangs.values())
        yield f"of {len(job.gangs)} elements of the array {running} run and {waiting} wait"


def _explained(core: ControlCore, job: Job, gang: int | None, now: float, viewer: TenantId | None) -> WhyReport:
    if gang is None and job.state.ended:
        return _line(job, None, _end_words(job))
    index = gang if gang is not None else _first_of_interest(job)
    if index is None:
        return _line(job, None, _end_words(job))
    one = job.gangs[index]
    if job.state.ended or one.state is not JobState.PENDING:
        return _line(job, one, _running_words(core, job, one, now))
    if job.cancelled_by is not None:
        return _line(job, one, f"is being cancelled by {job.cancelled_by}")
    if job.waiting_for:
        ahead = ", ".join(job.waiting_for)
        return _line(job, one, f"waits for {_dependency_words(job)}", blocked=(f"after: job {ahead}",))
    if core.cycle.paused:
        return _line(job, one, "the pool is stopping and starts nothing more", blocked=("the pool is stopping",))
    candidate: Candidate | None = core.book.waiting.index.get(GangKey(job.id, index))
    if candidate is None:
        return _line(job, one, "is about to be offered the pool")
    report = explain_pending(scene_of(core.book, core.cycle.reservations, now), candidate, viewer)
    return replace(
        report,
        terms=price_terms(core.rounds.plan, core.rounds.planned_at, candidate),
        quality=core.book.forecasts.quality(),
    )


def _notes(core: ControlCore, job: Job, state: JobState, now: float) -> Iterator[str]:
    """Yield what went wrong beside the answer: bids and plans that are missing, and what stands in for them."""
    failure = core.proposals.failures.get(job.id)
    if failure is not None:
        yield f"its own proposer made no bids, those of the default bidder stand: {failure}"
    rounds = core.rounds
    if rounds.fault and state is JobState.PENDING:
        ago = max(0.0, now - rounds.failed_at)
        yield f"the last global round gave no plan {ago:.0f} s ago, only what is free is given out: {rounds.fault}"


def _dependency_words(job: Job) -> str:
    """Return what has to happen first: ``job 3, 4 to succeed and job 7 to end``."""
    kinds = {dependency.job: dependency.kind for dependency in job.spec.after}
    verbs = {DependencyKind.SUCCEEDED: "succeed", DependencyKind.ENDED: "end", DependencyKind.FAILED: "fail"}
    parts = []
    for kind, verb in verbs.items():
        names = [name for name in job.waiting_for if kinds.get(name, DependencyKind.SUCCEEDED) is kind]
        if names:
            parts.append(f"job {', '.join(names)} to {verb}")
    return " and ".join(parts)


def _first_of_interest(job: Job) -> int | None:
    for wanted in (JobState.PENDING, JobState.RUNNING):
        for index, gang in job.gangs.items():
            if gang.state is wanted:
                return index
    return next(iter(job.gangs), None)


def _line(job: Job, gang: Gang | None, verdict: str, blocked: tuple[str, ...] = ()) -> WhyReport:
    return WhyReport(
        job=job.id,
        gang=gang.index if gang is not None else 0,
        state=gang.state if gang is not None else job.state,
        verdict=verdict,
        shape=job.spec.shape,
        blocked_by=blocked,
        pending_gangs=sum(1 for g in job.gangs.values() if g.state is JobState.PENDING),
    )


def _end_words(job: Job) -> str:
    return job.message or ("all of it ended well" if job.state is JobState.SUCCEEDED else "it has ended")


def _gang_end_words(job: Job, gang: Gang) -> str:
    """Return how one element ended: its own words, which those of the job may not be."""
    if not job.spec.is_array:
        return _end_words(job)
    if gang.state is JobState.SUCCEEDED:
        return f"element {job.spec.indices[gang.index]} ended well"
    failure = first_failure(gang)
    if failure is not None and gang.state is JobState.FAILED:
        return f"element {job.spec.indices[gang.index]}: {describe(failure)}"
    by = f" by {job.cancelled_by}" if job.cancelled_by is not None else ""
    return f"element {job.spec.indices[gang.index]} was {gang.state.value}{by}"


def _running_words(core: ControlCore, job: Job, gang: Gang, now: float) -> str:
    if gang.state.ended:
        return _gang_end_words(job, gang)
    if job.state.ended:
        return _end_words(job)
    if gang.stopping is not None:
        return f"is being stopped ({gang.stopping.value})"
    nodes = ", ".join(dict.fromkeys(p.node for p in gang.placements))
    waiting = [t for t in gang.tasks if t.state is TaskState.PLACED]
    if waiting:
        return f"starts on {nodes}"
    return f"runs on {nodes}" + "".join(f"; {words}" for words in gang_notes(core, job, gang, now))


def queue(core: ControlCore, now: float, limit: int, viewer: TenantId | None) -> tuple[QueueLine, ...]:
    """Return pending gangs in the order in which they are considered."""
    scene = scene_of(core.book, core.cycle.reservations, now)
    names = {job.id: job.spec.name for job in core.book.state.jobs.values()}
    return queue_lines(scene, limit, names, viewer)


def veiled_plan(report: PlanReport, viewer: TenantId) -> PlanReport:
    """Return a report in which the gangs of other tenants have neither number nor name."""
    keys = {s.before.key for s in report.shifts if s.before.tenant == viewer}

    def course(one: Course) -> Course:
        return one if one.tenant == viewer else replace(one, key=GangKey(HIDDEN, 0), name="")

    shifts = tuple(Shift(course(shift.before), course(shift.after)) for shift in report.shifts)
    hurt = tuple(key if key in keys else GangKey(HIDDEN, 0) for key in report.hurt)
    return replace(report, shifts=shifts, hurt=hurt)
