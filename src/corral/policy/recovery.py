"""What an AppMaster decides on the state of its job alone: stop, requeue or end a gang, end the job.

Rules (each has a test):

- A rank that ended other than well while others live stops its gang.
- When all ranks have ended, the *first* failure decides (earliest end, ties by rank), with one exception: a node,
  device or lease that was lost, or a preemption, outweighs the exit codes of the ranks that it broke. A lost peer makes
  the others fail seconds before the loss itself is noticed.
- A gang that was stopped for a reason (device failed, node lost, preempted, cancelled) counts that reason.
- Lost and preempted gangs are requeued without charge. So are failed launches, vanished shims and failed devices, but
  only while the gang has moved fewer than ``LAUNCH_MOVES_MAX`` times other than by preemption: then the job may be the
  cause (one that breaks every GPU would roam for ever) and is charged.
- ``exec-failed`` (the command does not exist or may not be run) and ``max-duration`` end the gang at once: a repetition
  would end the same way. ``setup-failed`` is retried if restarts are left, since setups fetch things over networks.
- Every other failure costs one of ``max_restarts``; with none left the gang has failed.
- A requeued gang avoids the nodes where it failed; a preempted one avoids none.

Deciding again on a state into which the decisions were folded gives nothing new.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from corral.model.events import Decision, GangEnded, GangRequeued, GangStopping, JobEnded
from corral.model.ids import NodeId
from corral.model.job import LOSSES, Cause, Gang, Job, JobState, StopReason, Task, TaskState, blame, cause_of
from corral.policy.config import LAUNCH_MOVES_MAX

_BOUNDED = frozenset({Cause.LAUNCH_FAILED, Cause.SHIM_LOST, Cause.DEVICE_FAILED})
_FINAL = frozenset({Cause.EXEC_FAILED, Cause.MAX_DURATION})
_STOPPED_BY = {
    StopReason.DEVICE_FAILED: Cause.DEVICE_FAILED,
    StopReason.PREEMPTED: Cause.PREEMPTED,
    StopReason.NODE_LOST: Cause.NODE_LOST,
}
_SIGNALS = {1: "SIGHUP", 2: "SIGINT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL",
            11: "SIGSEGV", 13: "SIGPIPE", 15: "SIGTERM"}  # fmt: skip
_WORDS = {
    Cause.MAX_DURATION: "ran into its max_duration",
    Cause.CANCELLED: "was cancelled",
    Cause.PREEMPTED: "was preempted",
    Cause.EXEC_FAILED: "could not start the command",
    Cause.SETUP_FAILED: "failed in setup",
    Cause.LAUNCH_FAILED: "could not be launched",
    Cause.MEMORY: "used more memory than it asked for",
    Cause.LEASE_EXPIRED: "lost contact for longer than its lease",
    Cause.GANG_STOPPED: "was stopped with its gang",
    Cause.DEVICE_FAILED: "lost its device",
    Cause.SHIM_LOST: "vanished with its shim",
    Cause.NODE_LOST: "was lost with its node",
    Cause.NODE_UNFIT: "could not be started by its node",
    Cause.UNHEALTHY: "was unhealthy",
}


def decide(job: Job, now: float) -> tuple[Decision, ...]:
    """Return all decisions that are due. ``now`` (seconds since the epoch) only dates them."""
    return _decide(job, job.gangs, now)


def decide_gang(job: Job, gang: int, now: float) -> tuple[Decision, ...]:
    """Return the decisions that are due on one gang, and the job's end when it was the last: O(1) for large arrays."""
    return _decide(job, (gang,), now)


def _decide(job: Job, gangs: Iterable[int], now: float) -> tuple[Decision, ...]:
    if job.state.ended:
        return ()
    decisions: list[Decision] = []
    ended: dict[int, GangEnded] = {}
    for index in gangs:
        gang = job.gangs.get(index)
        decision = _decide_one(job, gang, now) if gang is not None else None
        if decision is None:
            continue
        decisions.append(decision)
        if isinstance(decision, GangEnded):
            ended[index] = decision
    if job.open_gangs == len(ended):
        decisions.append(_job_end(job, ended, now))
    return tuple(decisions)


def _decide_one(job: Job, gang: Gang, now: float) -> Decision | None:
    if gang.state.ended:
        return None
    if gang.state is JobState.PENDING:
        if job.cancelled_by is None:
            return None
        return _end(job, gang, now, JobState.CANCELLED, f"cancelled by {job.cancelled_by}")
    if not gang.live:
        return _after_run(job, gang, now)
    if gang.stopping is not None:
        return None
    reason = _reason_to_stop(job, gang)
    if reason is None:
        return None
    return GangStopping(at=now, job=job.id, gang=gang.index, incarnation=gang.incarnation, reason=reason)


def _reason_to_stop(job: Job, gang: Gang) -> StopReason | None:
    if job.cancelled_by is not None:
        return StopReason.CANCELLED
    return StopReason.RANK_ENDED if first_failure(gang) is not None else None


def _after_run(job: Job, gang: Gang, now: float) -> Decision:
    if all(task.state is TaskState.SUCCEEDED for task in gang.tasks):
        return _end(job, gang, now, JobState.SUCCEEDED, "")
    if job.cancelled_by is not None or gang.stopping is StopReason.CANCELLED:
        return _end(job, gang, now, JobState.CANCELLED, f"cancelled by {job.cancelled_by or 'its tenant'}")
    failure = first_failure(gang)
    assert failure is not None
    cause = _STOPPED_BY.get(gang.stopping) if gang.stopping is not None else None
    if cause is None:
        cause = cause_of(failure)
    if cause is Cause.CANCELLED:
        return _end(job, gang, now, JobState.CANCELLED, describe(failure))
    words = describe(failure) if cause is cause_of(failure) else f"the gang was stopped: {gang.stopping}"
    moved = gang.moves - gang.preemptions
    suspect = cause in _BOUNDED and moved >= LAUNCH_MOVES_MAX
    free = not suspect and cause in LOSSES | _BOUNDED
    if suspect:
        words += f"; it moved {moved} times before, the job may be the cause"
    if not free and (cause in _FINAL or gang.restarts >= job.spec.max_restarts):
        spent = f" (after {gang.restarts} of {job.spec.max_restarts} restarts)" if gang.restarts else ""
        return _end(job, gang, now, JobState.FAILED, words + spent)
    return GangRequeued(
        at=now,
        job=job.id,
        gang=gang.index,
        incarnation=gang.incarnation,
        counted=not free,
        reason=words,
        avoid=_nodes_to_avoid(gang, failure, cause),
    )


def _nodes_to_avoid(gang: Gang, failure: Task, cause: Cause) -> tuple[NodeId, ...]:
    if cause is Cause.PREEMPTED:
        return ()
    guilty: Sequence[Task] = [] if failure.exit is not None and failure.exit.blameless else [failure]
    if cause in LOSSES:
        guilty = [t for t in gang.tasks if cause_of(t) is cause and not (t.exit is not None and t.exit.blameless)]
    nodes = tuple(dict.fromkeys(task.placement.node for task in guilty if task.placement is not None))
    # A failed device stops all ranks with the same words and is itself not offered again: only a sure node is avoided.
    return nodes if cause is not Cause.DEVICE_FAILED or len(nodes) == 1 else ()


def first_failure(gang: Gang) -> Task | None:
    """Return the rank that broke the gang, ``None`` when no rank ended other than well.

    Ranks that were killed because the gang was being stopped count only when there is no other (see ``blame``).
    """
    failed = [task for task in gang.tasks if task.state.ended and task.state is not TaskState.SUCCEEDED]
    if not failed:
        return None
    return min(failed, key=blame)


def describe(task: Task) -> str:
    """Return how a rank ended in one line: rank, node, cause, code and the message of the agent or shim."""
    where = f" on {task.placement.node}" if task.placement is not None else ""
    cause, end = cause_of(task), task.exit
    if end is not None and cause in (Cause.EXITED, Cause.SIGNAL):
        if end.signal is not None:
            name = _SIGNALS.get(end.signal)
            what = f"was killed by signal {end.signal}" + (f" ({name})" if name else "")
        else:
            what = f"exited with code {end.exit_code}"
    else:
        what = _WORDS.get(cause, str(cause))
    message = " ".join(end.message.split()) if end is not None else ""
    return f"rank {task.rank}{where} {what}" + (f": {message}" if message else "")


def _end(job: Job, gang: Gang, now: float, state: JobState, reason: str) -> GangEnded:
    return GangEnded(at=now, job=job.id, gang=gang.index, incarnation=gang.incarnation, state=state, reason=reason)


def _job_end(job: Job, ended: dict[int, GangEnded], now: float) -> JobEnded:
    states = {i: ended[i].state if i in ended else gang.state for i, gang in job.gangs.items()}
    failed = [i for i, state in states.items() if state is JobState.FAILED]
    if failed:
        return JobEnded(at=now, job=job.id, state=JobState.FAILED, reason=_failed_words(job, failed, ended))
    if JobState.CANCELLED in states.values():
        by = f"cancelled by {job.cancelled_by}" if job.cancelled_by is not None else "cancelled"
        return JobEnded(at=now, job=job.id, state=JobState.CANCELLED, reason=by)
    return JobEnded(at=now, job=job.id, state=JobState.SUCCEEDED)


def _failed_words(job: Job, failed: list[int], ended: dict[int, GangEnded]) -> str:
    first = failed[0]
    failure = first_failure(job.gangs[first])
    words = ended[first].reason if first in ended else describe(failure) if failure is not None else ""
    if not job.spec.is_array:
        return words
    shown = ", ".join(str(job.spec.indices[i]) for i in failed[:5]) + (", ..." if len(failed) > 5 else "")
    return f"{len(failed)} of {len(job.gangs)} elements failed ({shown}); element {job.spec.indices[first]}: {words}"
