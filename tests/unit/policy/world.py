"""A small event-driven world that runs real rounds. Checks capacity and atomicity of gangs at each step."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from corral.model.ids import QueueName, TenantId
from corral.model.offer import Arbitration, Candidate, Holding, QueueStanding, Reservation, Standing
from corral.model.resources import MILLI, Amount, NodeSpec
from corral.model.tenant import Tenant
from corral.policy.arbitration import PendingIndex, arbitrate
from corral.policy.config import SchedulingConfig
from corral.policy.fairness import decay
from tests.unit.policy.building import CONFIG, DEFAULT, candidate, queue, snapshot


class World:
    """Time, what runs and what waits. ``refill`` is asked after every event for more work."""

    def __init__(self, specs: Sequence[NodeSpec], tenants: Sequence[Tenant], config: SchedulingConfig = CONFIG) -> None:
        self.specs = specs
        self.tenants = {t.id: t for t in tenants}
        self.config = config
        self.now = 0.0
        self.pending = PendingIndex()
        self.running: dict[str, Holding] = {}
        self.reservations: tuple[Reservation, ...] = ()
        self.decayed: dict[TenantId, float] = dict.fromkeys(self.tenants, 0.0)
        self.integral: dict[TenantId, float] = dict.fromkeys(self.tenants, 0.0)
        self.started: dict[int, float] = {}
        self.refill: Callable[[World], None] | None = None
        self.check: Callable[[World, Arbitration], None] | None = None
        self._lengths: dict[str, float] = {}
        self._ends: list[tuple[float, str]] = []
        self._next = 0
        self.queues: dict[QueueName, QueueStanding] = dict([queue()])

    def submit(self, like: Candidate, lasts: float, *, declared: bool) -> int:
        """Add a job that will run for ``lasts`` seconds; return its number."""
        self._next += 1
        number = self._next
        key = candidate(number).key
        self.pending.add(
            replace(
                like,
                key=key,
                order=number,
                queue=DEFAULT,
                queued_at=self.now,
                max_duration_s=lasts if declared else None,
            )
        )
        self._lengths[key.job] = lasts
        return number

    def waiting(self, tenant: str) -> int:
        """Return how many jobs of a tenant wait."""
        return self.pending.count(TenantId(tenant))

    def held(self, tenant: TenantId) -> Amount:
        """Return what a tenant holds."""
        total = Amount()
        for holding in self.running.values():
            if holding.tenant == tenant:
                for placement in holding.placements:
                    total = total + Amount.of(placement)
        return total

    @property
    def free_gpus(self) -> float:
        """Return how many GPUs nobody holds."""
        used = sum(p.gpu_milli for h in self.running.values() for p in h.placements)
        return sum(len(s.devices) for s in self.specs) - used / MILLI

    def run_until(self, until: float) -> None:
        """Go from event to event; a round follows each."""
        self._round()
        while self._ends and self._ends[0][0] <= until:
            at, first = heapq.heappop(self._ends)
            self._advance(at)
            del self.running[first]
            self._round()
        self._advance(until)

    def _advance(self, at: float) -> None:
        capacity = snapshot(self.specs).capacity
        for name in self.tenants:
            share = self.held(name).dominant_share(capacity)
            self.integral[name] += share * (at - self.now)
            self.decayed[name] = decay(self.decayed[name], share, at - self.now, self.config.usage_half_life_s)
        self.now = at

    def _round(self) -> None:
        if self.refill is not None:
            self.refill(self)
        snap = snapshot(self.specs, list(self.running.values()), self.now)
        stand = {n: Standing(t, self.held(n), self.decayed[n]) for n, t in self.tenants.items()}
        verdict = arbitrate(snap, self.pending, stand, self.queues, self.reservations, self.config)
        for allocation in verdict.allocations:
            won = self.pending.remove(allocation.key)
            assert won is not None
            assert [p.rank for p in allocation.placements] == list(range(won.shape.ranks))
            name = allocation.key.job
            end = None if won.max_duration_s is None else self.now + won.max_duration_s
            self.running[name] = Holding(allocation.key, won.tenant, allocation.placements, self.now, end)
            self.started[int(name)] = self.now
            heapq.heappush(self._ends, (self.now + self._lengths[name], name))
        for offered in snapshot(self.specs, list(self.running.values()), self.now).nodes:
            assert min([offered.cpus_milli, offered.memory_mib, *(d.free_milli for d in offered.devices)]) >= 0
        self.reservations = verdict.reservations
        if self.check is not None:
            self.check(self, verdict)
