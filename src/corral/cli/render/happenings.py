"""Journaled facts as sentences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from corral.cli.render.ledger import why
from corral.cli.render.units import counted, duration, gang_name, milli
from corral.model import events
from corral.model.files import ReturnKind
from corral.model.job import Cause, StopReason, TaskExit


def told(fact: events.Event) -> str:
    """Return one fact as a sentence; a kind that this version does not know by its name."""
    teller = _TELLERS.get(type(fact))
    return teller(fact) if teller else type(fact).__name__


def exit_words(exit_: TaskExit) -> str:
    """Return how a task ended: ``exit code 3``, ``signal 9``, ``ran into max_duration``."""
    parts = [cause_words(exit_.cause)] if cause_words(exit_.cause) else []
    if exit_.exit_code is not None:
        parts.append(f"exit code {exit_.exit_code}")
    if exit_.signal is not None:
        parts.append(f"signal {exit_.signal}")
    if exit_.message:
        # The shim's own words may hold the others already.
        parts = [*(part for part in parts if part not in exit_.message), exit_.message]
    return ", ".join(parts) or exit_.cause.value


def cause_words(cause: Cause) -> str:
    """Return a cause in words; nothing for the usual ones, which an exit code or a signal tells."""
    return _CAUSES.get(cause, "")


_CAUSES = {
    Cause.MAX_DURATION: "ran into max_duration",
    Cause.CANCELLED: "cancelled",
    Cause.PREEMPTED: "preempted",
    Cause.EXEC_FAILED: "the command could not be started",
    Cause.SETUP_FAILED: "setup failed",
    Cause.LAUNCH_FAILED: "could not be launched",
    Cause.MEMORY: "used more memory than it asked for",
    Cause.LEASE_EXPIRED: "its lease ran out",
    Cause.GANG_STOPPED: "stopped with its gang",
    Cause.DEVICE_FAILED: "a device failed",
    Cause.SHIM_LOST: "its shim was lost",
    Cause.NODE_LOST: "its node was lost",
    Cause.NODE_UNFIT: "its node could not start it",
    Cause.UNHEALTHY: "it was unhealthy",
}

_STOPS = {
    StopReason.CANCELLED: "it was cancelled",
    StopReason.RANK_ENDED: "one of its ranks ended",
    StopReason.DEVICE_FAILED: "a device failed",
    StopReason.PREEMPTED: "it was preempted",
    StopReason.NODE_LOST: "a node was lost",
}


def _submitted(fact: events.JobSubmitted) -> str:
    spec = fact.spec
    by = f" by {fact.user}" if fact.user else ""
    size = f", {counted(spec.gangs, 'element')}" if spec.is_array else ""
    return f"submitted{by}: {spec.name}, tenant {spec.tenant}, queue {spec.queue}{size}"


def _placed(fact: events.GangPlaced) -> str:
    places: dict[str, int] = {}
    for placement in fact.placements:
        places[placement.node] = places.get(placement.node, 0) + placement.gpu_milli
    where = ", ".join(f"{node} ({milli(gpu)} GPUs)" if gpu else node for node, gpu in places.items())
    return f"{_whom(fact)} placed on {where} (incarnation {fact.incarnation})"


def _stopping(fact: events.GangStopping) -> str:
    reason = _STOPS.get(fact.reason, fact.reason.value)
    if fact.drained is not None:
        return f"{_whom(fact)} gives way: node {fact.drained} is emptied"
    if fact.preemption is None:
        return f"{_whom(fact)} is being stopped: {reason}"
    again = f"; {duration(fact.preemption.lost_s)} of work to be done again" if fact.preemption.lost_s else ""
    return f"{_whom(fact)} {why(fact.preemption)}{again}"


def _whom(fact: Any) -> str:
    return f"gang {fact.gang}"


def _task(fact: Any) -> str:
    return f"task {gang_name(fact.job, fact.gang) if fact.gang else f'{fact.job}.0'}.{fact.rank}"


def _requeued(fact: events.GangRequeued) -> str:
    price = "counted as a restart" if fact.counted else "not counted as a restart"
    avoid = f", avoids {', '.join(fact.avoid)}" if fact.avoid else ""
    return f"{_whom(fact)} waits again: {fact.reason} ({price}{avoid})"


def _returned(fact: events.FilesReturned) -> str:
    what = "outputs" if fact.what is ReturnKind.OUTPUTS else "checkpoint"
    return f"{what} of {_task(fact)} came back: {fact.size_bytes / 2**20:.1f} MiB"


def _with(text: str, reason: str) -> str:
    return f"{text}: {reason}" if reason else text


def _ended(fact: events.TaskEnded) -> str:
    took = ""
    if fact.exit.started_at is not None and fact.exit.ended_at is not None:
        took = f" after {duration(fact.exit.ended_at - fact.exit.started_at)}"
    return f"{_task(fact)} {fact.state.value}{took}: {exit_words(fact.exit)}"


_TELLERS: dict[type, Callable[[Any], str]] = {
    events.JobSubmitted: _submitted,
    events.JobCancelRequested: lambda fact: f"cancel asked for by {fact.by}",
    events.GangPlaced: _placed,
    events.TaskStarted: lambda fact: f"{_task(fact)} started" + ("" if fact.pid is None else f", pid {fact.pid}"),
    events.TaskEnded: _ended,
    events.GangStopping: _stopping,
    events.GangRequeued: _requeued,
    events.FilesReturned: _returned,
    events.GangEnded: lambda fact: _with(f"{_whom(fact)} {fact.state.value}", fact.reason),
    events.JobEnded: lambda fact: _with(f"job {fact.state.value}", fact.reason),
}
