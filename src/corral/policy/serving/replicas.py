"""What becomes of the replicas of a service now: which to start, to drain, to end. Pure: asked again, it says the same.

Whoever is not of a revision that is wanted, is one too many, or stands on a node that is being emptied, leaves: first
it gets no new requests (it drains), then it ends. It may leave only while as many as wanted are ready, less
``max_unavailable``; those that never served leave at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from corral.model.ids import JobId
from corral.model.service import Renewal, ReplicaPhase, Service
from corral.policy.serving.backoff import pause_s

NO_ROOM_S = 60.0
"""So long a replica on a node that is emptied waits for room elsewhere; then the node is emptied all the same."""


class Seen(msgspec.Struct, frozen=True):
    """A replica as it is seen now.

    ``placed_at`` is ``None`` while it waits for room. ``ready``: it was ready in this incarnation, and its node says
    nothing else; ``unready_s`` is for how long it has said so. ``condemned``: its node is being emptied, for
    ``condemned_s`` now. ``leaving``: it drains or stops. ``idle``: no request is under way there any more. ``siblings``
    stand on the same node.
    """

    job: JobId
    revision: int
    ordinal: int
    phase: ReplicaPhase
    placed_at: float | None = None
    ready: bool = False
    unready_s: float = 0.0
    condemned: bool = False
    condemned_s: float = 0.0
    leaving: bool = False
    idle: bool = False
    siblings: int = 0


class Start(msgspec.Struct, frozen=True):
    """Start so many replicas of a revision."""

    revision: int
    count: int


class Drain(msgspec.Struct, frozen=True):
    """Give a replica no new requests."""

    job: JobId
    reason: str


class End(msgspec.Struct, frozen=True):
    """End a replica that nobody uses."""

    job: JobId


Act = Start | Drain | End


def acts(service: Service, seen: Sequence[Seen], targets: Mapping[int, int], now: float) -> tuple[Act, ...]:
    """Return what is to be done. ``targets`` are the replicas wanted of each revision (see ``renewal.targets``)."""
    done: list[Act] = [End(one.job) for one in seen if one.phase is ReplicaPhase.DRAINING and one.idle]
    staying = [one for one in seen if not one.leaving]
    if service.removed_by is not None:
        return (*done, *_dismissed(staying, "the service is being removed"))
    renewal = service.spec(max(targets, default=service.stable)).renewal
    excess = list(_excess(staying, targets))
    done.extend(_starts(service, staying, targets, renewal, now))
    done.extend(_leaves(service, staying, excess, renewal))
    return tuple(done)


def _dismissed(those: Iterable[Seen], reason: str) -> Iterable[Act]:
    for one in those:
        yield End(one.job) if one.phase is ReplicaPhase.STARTING else Drain(one.job, reason)


def best_first(one: Seen) -> tuple[bool, bool, bool, int, int]:
    """Order replicas by how much would be lost with them: ready ones, alone on their node, long there."""
    return (not one.ready, one.phase is not ReplicaPhase.SERVING, one.placed_at is None, one.siblings, one.ordinal)


def _excess(staying: Sequence[Seen], targets: Mapping[int, int]) -> Iterable[Seen]:
    by_revision: dict[int, list[Seen]] = {}
    for one in staying:
        if one.condemned:
            yield one
        else:
            by_revision.setdefault(one.revision, []).append(one)
    for revision, those in by_revision.items():
        yield from sorted(those, key=best_first)[targets.get(revision, 0) :]


def _starts(
    service: Service, staying: Sequence[Seen], targets: Mapping[int, int], renewal: Renewal, now: float
) -> Iterable[Act]:
    surge = renewal.surge if renewal.surge or renewal.max_unavailable else 1
    room = max(service.wanted + surge, sum(targets.values())) - len(staying)
    for revision, count in sorted(targets.items(), reverse=True):
        there = sum(one.revision == revision and not one.condemned for one in staying)
        missing = min(count - there, room)
        if missing <= 0 or now < start_at(service, revision):
            continue
        room -= missing
        yield Start(revision, missing)


def start_at(service: Service, revision: int) -> float:
    """Return from when on replicas of a revision are started (s since the epoch): after failures there is a pause."""
    if service.failed_at is None or service.failed_revision != revision:
        return float("-inf")
    return service.failed_at + pause_s(service.failures, service.wanted)


def _leaves(service: Service, staying: Sequence[Seen], excess: Sequence[Seen], renewal: Renewal) -> Iterable[Act]:
    ready = sum(one.ready for one in staying)
    needed = service.wanted - renewal.max_unavailable
    gone = {one.job for one in excess}
    replaced = any(one.ready and one.job not in gone for one in staying)
    coming = any(one.placed_at is not None and one.phase is ReplicaPhase.STARTING for one in staying)
    # Those whose loss hurts least go first: never ready, then not ready now, then crowded and new ones.
    for one in sorted(excess, key=best_first, reverse=True):
        if one.phase is ReplicaPhase.STARTING:
            yield End(one.job)
        elif not one.ready:
            # Nobody is sure that the new ones will serve until one of them does: what failed may come back.
            if replaced or ready >= needed:
                yield Drain(one.job, _why(service, one))
        elif ready - 1 >= needed or _overdue(one, renewal, coming=coming):
            ready -= 1
            yield Drain(one.job, _why(service, one))


def _overdue(one: Seen, renewal: Renewal, *, coming: bool) -> bool:
    """Return whether a node that is emptied has waited for long enough for what takes a replica's place."""
    return one.condemned and one.condemned_s > (max(NO_ROOM_S, renewal.ready_within_s) if coming else NO_ROOM_S)


def _why(service: Service, one: Seen) -> str:
    if one.condemned:
        return "its node is being emptied"
    following = service.rollout.revision if service.rollout is not None else service.stable
    return "fewer are wanted" if one.revision == following else f"revision {following} takes its place"
