"""The awards of global rounds: what is kept for which gang until all of it is free.

An award stands until its gang starts on it, or cannot any more, or those who give way take too long. Awards are
observations, they are not journaled: after a restart nothing is kept, and the next round decides anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from corral.control.holdings import stop_s
from corral.control.waiting import may_start
from corral.model.ids import DeviceId, GangKey, NodeId, QueueName, TenantId
from corral.model.job import Job
from corral.model.market import Award
from corral.model.offer import Allocation, Holding, Snapshot, VerdictKind
from corral.model.resources import Amount, Placement
from corral.model.state import PoolState
from corral.policy.fairness import within
from corral.policy.verification import verify_all

AWARD_MARGIN_S = 30.0
"""How much longer than their graces those who give way may take: the words of three machines and a full disk."""


class Kept(msgspec.Struct, frozen=True):
    """An award and the time (s since the epoch) until which those who give way should be gone."""

    award: Award
    until: float


class Awards:
    """What is kept for whom, by gang."""

    def __init__(self) -> None:
        self._kept: dict[GangKey, Kept] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: GangKey) -> bool:
        return key in self._kept

    def all(self) -> tuple[Award, ...]:
        """Return all awards, in the order of their plan."""
        return tuple(kept.award for kept in self._kept.values())

    def keep(self, now: float, awards: Iterable[Award], state: PoolState, holdings: Iterable[Holding]) -> None:
        """Keep the awards of a new plan."""
        stopping = Holders(holding for holding in holdings if holding.stopping)
        for award in awards:
            jobs = [state.jobs.get(holding.key.job) for holding in stopping.in_the_way(award)]
            waits = [stop_s(job) for job in jobs if job is not None]
            self._kept[award.key] = Kept(award, now + max(waits, default=0.0) + AWARD_MARGIN_S)

    def drop(self, key: GangKey) -> None:
        """Forget an award: its gang started on it."""
        self._kept.pop(key, None)

    def prune(self, snapshot: Snapshot, state: PoolState) -> list[str]:
        """Drop the awards that cannot be taken up any more; return what is worth telling."""
        told = []
        late = any(snapshot.at > kept.until for kept in self._kept.values())
        holders = Holders(snapshot.holdings if late else ())
        there: dict[NodeId, set[DeviceId]] = {}
        wanted = {placement.node for kept in self._kept.values() for placement in kept.award.placements}
        for offer in snapshot.nodes:
            if offer.node in wanted:
                there[offer.node] = {device.uuid for device in offer.devices}
        for key, kept in list(self._kept.items()):
            if not _wanted(state.jobs.get(key.job), key):
                del self._kept[key]
                continue
            gone = _gone(kept.award.placements, there)
            if gone is not None:
                del self._kept[key]
                told.append(f"the award of gang {key.job}.{key.gang} is dropped: {gone} is not there any more")
            elif snapshot.at > kept.until:
                del self._kept[key]
                held = [f"{h.key.job}.{h.key.gang}" for h in holders.in_the_way(kept.award)]
                still = f"still held by {', '.join(held)}" if held else "not to be had"
                told.append(f"the award of gang {key.job}.{key.gang} is dropped: its devices are {still}")
        return told

    def ready(self, snapshot: Snapshot, state: PoolState) -> list[Allocation]:
        """Return the awards whose gangs can start on all of their devices now and, together, within the limits."""
        waiting = []
        for key, kept in self._kept.items():
            job = state.jobs.get(key.job)
            gang = job.gangs.get(key.gang) if job is not None else None
            if job is not None and gang is not None and may_start(job, gang):
                waiting.append((Allocation(key, kept.award.placements, kept.award.bid), job, kept.award))
        verdicts = verify_all([allocation for allocation, _, _ in waiting], snapshot)
        limits = _Limits(state)
        return [
            allocation
            for (allocation, job, award), verdict in zip(waiting, verdicts, strict=True)
            if verdict.kind is VerdictKind.COMMITTED and limits.take(job, award)
        ]


class Holders:
    """Holdings by the nodes that they are on: thousands of awards each look at a few of them, not at all."""

    def __init__(self, holdings: Iterable[Holding]) -> None:
        self._of: dict[GangKey, Holding] = {}
        self._on: dict[NodeId, dict[GangKey, Holding]] = {}
        for holding in holdings:
            self._of[holding.key] = holding
            for placement in holding.placements:
                self._on.setdefault(placement.node, {})[holding.key] = holding

    def in_the_way(self, award: Award) -> list[Holding]:
        """Return who has to go before an award can be taken up: its own gang, and who is on its devices."""
        near = {key: holding for p in award.placements for key, holding in self._on.get(p.node, {}).items()}
        own = self._of.get(award.key)
        if own is not None:
            near[own.key] = own
        return [holding for holding in near.values() if holding is own or overlaps(award.placements, holding)]


def overlaps(placements: Sequence[Placement], holding: Holding) -> bool:
    """Return whether a holder is on one of the devices of placements, or on a node that they need CPUs alone of."""
    devices = {share.uuid for placement in placements for share in placement.devices}
    nodes = {placement.node for placement in placements if not placement.devices}
    return any(
        placement.node in nodes or any(share.uuid in devices for share in placement.devices)
        for placement in holding.placements
    )


def _wanted(job: Job | None, key: GangKey) -> bool:
    gang = job.gangs.get(key.gang) if job is not None else None
    if job is None or gang is None or job.cancelled_by is not None:
        return False
    return may_start(job, gang) or gang.stopping is not None


def _gone(placements: Iterable[Placement], there: dict[NodeId, set[DeviceId]]) -> str | None:
    for placement in placements:
        devices = there.get(placement.node)
        if devices is None:
            return f"node {placement.node}"
        for share in placement.devices:
            if share.uuid not in devices:
                return f"device {share.uuid}"
    return None


class _Limits:
    """What tenants and queues hold now, and what the awards that start together add to it."""

    def __init__(self, state: PoolState) -> None:
        self._state = state
        self._tenants: dict[TenantId, Amount] = {}
        self._queues: dict[QueueName, Amount] = {}

    def take(self, job: Job, award: Award) -> bool:
        """Count an award if it breaks no limit; return whether it was counted."""
        state, spec = self._state, job.spec
        need = Amount.of(award.bid.shape.demand).times(award.bid.shape.ranks)
        of_tenant = self._tenants.get(spec.tenant) or state.tenant_held.get(spec.tenant, Amount())
        of_queue = self._queues.get(spec.queue) or state.queue_held.get(spec.queue, Amount())
        tenant, queue = state.tenants.get(spec.tenant), state.queues.get(spec.queue)
        if tenant is not None and within(tenant.limit, of_tenant, need) is not None:
            return False
        if queue is not None and (queue.paused or within(queue.limit, of_queue, need) is not None):
            return False
        self._tenants[spec.tenant], self._queues[spec.queue] = of_tenant + need, of_queue + need
        return True
