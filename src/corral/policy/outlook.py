"""The order in which pending gangs are considered, and when they are expected to start.

The order is what progressive filling would take next if everything fitted; it moves with every start and end. Estimates
come from declared ends where all declared one, else from a forecast over how long jobs really run.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from corral.model.experience import ServiceHistory
from corral.model.ids import NodeId, QueueName, TenantId
from corral.model.offer import Candidate, QueueStanding, Reservation, Snapshot, Standing
from corral.model.report import StartEstimate
from corral.model.resources import Amount
from corral.model.tenant import Queue, Tenant
from corral.policy.config import SchedulingConfig
from corral.policy.fairness import claim, weight_sum, within
from corral.policy.forecast import Forecast
from corral.policy.inventory import NodeKind
from corral.policy.pending import Kind, PendingIndex, kind_of
from corral.policy.reservation import constraints_of, expected_start, plan
from corral.policy.trial import Trial


class Absence(msgspec.Struct, frozen=True):
    """A node that is not offered, and why: ``cordoned: new disk``, ``silent for 12 s``, ``lost``.

    ``models`` are (device model, devices of it that work); ``cordoned`` when nothing but that keeps it away.
    """

    node: NodeId
    total: Amount
    reason: str
    models: tuple[tuple[str, int], ...] = ()
    cordoned: bool = False

    @property
    def kind(self) -> NodeKind:
        """Return what it has in all."""
        return NodeKind(self.total.cpus_milli, self.total.memory_mib, self.models, 1)


class Scene(msgspec.Struct, frozen=True):
    """Everything that an explanation looks at: the same things that a round is given, and the nodes that it is not."""

    snapshot: Snapshot
    pending: PendingIndex
    standings: Mapping[TenantId, Standing]
    queues: Mapping[QueueName, QueueStanding]
    reservations: Sequence[Reservation]
    absent: Sequence[Absence]
    config: SchedulingConfig
    history: ServiceHistory = ServiceHistory()

    def standing(self, tenant: TenantId) -> Standing:
        """Return where a tenant stands."""
        return self.standings.get(tenant) or Standing(Tenant(tenant))

    def queue(self, name: QueueName) -> QueueStanding:
        """Return a queue with what its jobs hold."""
        return self.queues.get(name) or QueueStanding(Queue(name))

    def priority(self, candidate: Candidate) -> int:
        """Return the priority of a candidate with that of its queue."""
        return self.queue(candidate.queue).queue.priority + candidate.priority

    def weights(self) -> float:
        """Return the sum of the weights of all tenants that hold or want something."""
        return weight_sum(self.standings, self.pending.tenants())


def need_of(candidate: Candidate) -> Amount:
    """Return what all ranks of a candidate's first bid need together."""
    shape = candidate.bids[0].shape
    return Amount.of(shape.demand).times(shape.ranks)


def limit_words(scene: Scene, candidate: Candidate) -> str | None:
    """Return the limit or pause that keeps a candidate from starting, whatever is free; ``None`` when there is none."""
    standing, queue = scene.standing(candidate.tenant), scene.queue(candidate.queue)
    if queue.queue.paused:
        return f"queue {queue.queue.name} is paused"
    need = need_of(candidate)
    what = within(standing.tenant.limit, standing.held, need)
    if what is not None:
        return f"the limit of tenant {candidate.tenant}: " + _limit(standing.tenant.limit, standing.held, need, what)
    what = within(queue.queue.limit, queue.held, need)
    if what is not None:
        return f"the limit of queue {queue.queue.name}: " + _limit(queue.queue.limit, queue.held, need, what)
    return None


def _limit(limit: object, held: Amount, need: Amount, what: str) -> str:
    field = "gpu_milli" if what == "GPUs" else "cpus_milli"
    values = (getattr(held, field), getattr(need, field), getattr(limit, field))
    has, more, most = (f"{value / 1000:g}" for value in values)
    return f"{has} {what} are held, {more} more would exceed {most}"


def in_order(scene: Scene) -> Iterator[Candidate]:
    """Yield pending gangs in the order in which they are considered now."""
    weights, capacity = scene.weights(), scene.snapshot.capacity
    lines = {tenant: _of_tenant(scene, tenant) for tenant in scene.pending.tenants()}
    held = {tenant: scene.standing(tenant) for tenant in lines}
    heap: list[tuple[tuple[int, float], int, TenantId, Candidate]] = []

    def push(tenant: TenantId) -> None:
        head = next(lines[tenant], None)
        if head is not None:
            rank = claim(held[tenant], need_of(head), capacity, weights, scene.config)
            heapq.heappush(heap, (rank, head.order, tenant, head))

    for tenant in lines:
        push(tenant)
    while heap:
        _, _, tenant, head = heapq.heappop(heap)
        yield head
        standing = held[tenant]
        held[tenant] = Standing(standing.tenant, standing.held + need_of(head), standing.decayed_share)
        push(tenant)


def _of_tenant(scene: Scene, tenant: TenantId) -> Iterator[Candidate]:
    """Yield a tenant's candidates, best first; its lines are sorted already."""

    def keyed(entries: Sequence[Candidate]) -> Iterator[tuple[int, float, int, tuple[int, str], Candidate]]:
        for c in entries:
            yield (-scene.priority(c), c.urgency, c.order, (c.key.gang, c.key.job), c)

    lines = [keyed([entry[4] for entry in line.entries]) for line in scene.pending.lines(tenant)]
    for item in heapq.merge(*lines, key=lambda entry: entry[:4]):
        yield item[4]


def _last_end(snapshot: Snapshot) -> float | None:
    """Return when the last holder ends, ``None`` when one of them declared no end."""
    last = snapshot.at
    for holding in snapshot.holdings:
        if holding.ends_at is None:
            return None
        last = max(last, holding.ends_at)
    return last


class Ahead:
    """What goes before a candidate: how many, their work in pool-seconds, the longest, and whether all declared it."""

    __slots__ = ("_capacity", "count", "declared", "forecast", "longest_s", "work_s")

    def __init__(self, scene: Scene) -> None:
        self._capacity = scene.snapshot.capacity
        self.forecast = Forecast(scene.snapshot, scene.history, scene.config)
        self.count = 0
        self.work_s = 0.0
        self.longest_s = 0.0
        self.declared = True

    def add(self, candidate: Candidate) -> None:
        """Add one that goes before."""
        self.count += 1
        self.forecast.add(candidate)
        duration_s = candidate.max_duration_s
        if duration_s is None:
            self.declared = False
        else:
            self.work_s += need_of(candidate).dominant_share(self._capacity) * duration_s
            self.longest_s = max(self.longest_s, duration_s)


class Estimates:
    """Expected starts. Candidates of one kind share the work."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._kinds: dict[Kind, float | None] = {}
        self._reserved = {kept.key: kept for kept in scene.reservations}
        self._trial = Trial(scene.snapshot.nodes)
        self._trial.constrain(constraints_of(scene.reservations, self._trial, scene.snapshot.holdings))
        self._last_end = _last_end(scene.snapshot)

    def of(self, candidate: Candidate, ahead: Ahead) -> StartEstimate | None:
        """Return when a candidate is expected to start; ``None`` when a limit or a pause leaves it open."""
        scene, now = self._scene, self._scene.snapshot.at
        own = self._reserved.get(candidate.key)
        if own is not None:
            start = expected_start(own, scene.snapshot.holdings, now, scene.config)
            if own.start_at is not None:
                return StartEstimate(now, start, "its reservation; holders may end earlier")
            found = ahead.forecast.of(candidate)
            if found is None:
                return StartEstimate(start, None, "its reservation; some holders declared no end")
            return StartEstimate(found.earliest, found.latest, f"its reservation, {found.basis}")
        if limit_words(scene, candidate) is not None:
            return None
        earliest = self._earliest(candidate)
        if earliest is None:
            return None
        latest = self._latest(earliest, ahead)
        if latest is not None:
            return StartEstimate(earliest, latest, "declared ends of all holders and of all ahead")
        found = ahead.forecast.of(candidate)
        if found is None:
            return StartEstimate(earliest, None, "some declared no end")
        return StartEstimate(found.earliest, found.latest, found.basis)

    def _earliest(self, candidate: Candidate) -> float | None:
        kind = kind_of(candidate)
        if kind not in self._kinds:
            scene = self._scene
            found = plan(
                candidate,
                candidate.bids,
                self._trial,
                scene.snapshot.holdings,
                scene.reservations,
                scene.snapshot.at,
                scene.config,
            )
            self._kinds[kind] = found.expected_at if found is not None else self._after_reservations(candidate)
        return self._kinds[kind]

    def _after_reservations(self, candidate: Candidate) -> float | None:
        """Return when the last reservation is expected to start: what takes the whole pool goes first."""
        scene = self._scene
        holdings, now = scene.snapshot.holdings, scene.snapshot.at
        if (
            not scene.reservations
            or plan(candidate, candidate.bids, self._trial, holdings, (), now, scene.config) is None
        ):
            return None
        return max(expected_start(kept, holdings, now, scene.config) for kept in scene.reservations)

    def _latest(self, earliest: float, ahead: Ahead) -> float | None:
        """Return the time by which all ahead have run on the whole pool (list scheduling: Graham, 1966)."""
        if self._last_end is None or not ahead.declared:
            return None
        return max(earliest, self._last_end) + ahead.work_s + ahead.longest_s
