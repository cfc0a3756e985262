"""How one revision follows another: how many replicas each has now, and when the new one is done or given up."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from corral.model.service import ReplicaPhase, Rollout, Service
from corral.policy.serving.replicas import Seen

FAILURES_MAX = 3
"""After so many replicas in a row that ended by themselves a revision is given up: a fourth would end like them."""


class Answers(msgspec.Struct, frozen=True):
    """How the replicas of a revision have answered: requests, and those of them that failed."""

    requests: int = 0
    errors: int = 0


class Ruling(msgspec.Struct, frozen=True):
    """The end of a rollout: done, or undone with a reason."""

    undone: bool
    reason: str = ""


def targets(service: Service, now: float) -> dict[int, int]:
    """Return how many replicas of which revision there should be.

    A canary keeps its part. Otherwise the first replicas of a new revision are watched before others follow: until then
    none of the old ones leaves that it does not need the place of.
    """
    wanted, rollout = service.wanted, service.rollout
    if rollout is None or rollout.revision == service.stable:
        return {service.stable: wanted}
    if wanted == 0:
        return {rollout.revision: 0}
    if rollout.canary_percent is not None and rollout.canary_percent < 100:
        part = min(wanted, max(1, math.ceil(wanted * rollout.canary_percent / 100)))
        return {rollout.revision: part, service.stable: max(1, wanted - part)}
    renewal = service.spec(rollout.revision).renewal
    if not watched(service, rollout, now):
        first = min(wanted, max(1, renewal.surge, renewal.max_unavailable))
        surge = renewal.surge if renewal.surge or renewal.max_unavailable else 1
        return {rollout.revision: first, service.stable: min(wanted, wanted - first + surge)}
    return {rollout.revision: wanted, service.stable: 0}


def watched(service: Service, rollout: Rollout, now: float) -> bool:
    """Return whether the first replicas of a revision have served for long enough that others may follow."""
    since = rollout.began_to_serve_at
    return since is not None and now >= since + service.spec(rollout.revision).renewal.watch_s


def judge(service: Service, seen: Sequence[Seen], answers: Answers, now: float) -> Ruling | None:
    """Return whether a rollout is over, ``None`` while it goes on."""
    rollout = service.rollout
    if rollout is None or service.removed_by is not None:
        return None
    new = [one for one in seen if one.revision == rollout.revision]
    reason = _fault(service, rollout, new, answers, now)
    if reason is not None:
        return Ruling(undone=True, reason=f"revision {rollout.revision} was given up: {reason}")
    others = any(one.revision != rollout.revision and not one.leaving for one in seen)
    ready = sum(one.ready and not one.leaving for one in new)
    held = rollout.canary_percent is not None and rollout.canary_percent < 100
    if held or others or ready < service.wanted:
        return None
    if service.wanted and not watched(service, rollout, now):
        return None
    return Ruling(undone=False)


def _fault(service: Service, rollout: Rollout, new: Sequence[Seen], answers: Answers, now: float) -> str | None:
    renewal = service.spec(rollout.revision).renewal
    if service.failed_revision == rollout.revision and service.failures >= FAILURES_MAX:
        return f"{service.failures} replicas in a row ended by themselves, the last one: {service.message}"
    for one in new:
        if one.leaving or one.placed_at is None:
            continue
        if one.phase is ReplicaPhase.STARTING and now - one.placed_at > renewal.ready_within_s:
            return f"replica {one.ordinal} was not ready in {renewal.ready_within_s:g} s"
        if one.unready_s > renewal.ready_within_s:
            return f"replica {one.ordinal} has not been ready for {one.unready_s:.0f} s"
    if answers.requests >= renewal.requests_min and answers.errors > renewal.errors_max_share * answers.requests:
        return f"{answers.errors} of {answers.requests} requests failed"
    return None
