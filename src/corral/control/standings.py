"""Who received how much: the time-decayed dominant share of every tenant, moved on whenever its holdings change."""

from __future__ import annotations

import msgspec

from corral.model.ids import QueueName, TenantId
from corral.model.offer import QueueStanding, Standing
from corral.model.resources import Amount
from corral.model.state import PoolState
from corral.model.tenant import Queue, Tenant
from corral.policy.fairness import decay


class Average(msgspec.Struct, frozen=True):
    """A decayed average share (0..1) as of ``at``."""

    share: float
    at: float


class Standings:
    """The averages of all tenants. ``averages`` is part of the snapshot that the store keeps."""

    def __init__(self, half_life_s: float, averages: dict[TenantId, Average] | None = None) -> None:
        self._half_life_s = half_life_s
        self.averages: dict[TenantId, Average] = dict(averages or {})

    def advance(self, tenant: TenantId, held: Amount, capacity: Amount, now: float) -> None:
        """Account for what was held until now; call before the holding changes."""
        self.averages[tenant] = Average(self._share(tenant, held, capacity, now), now)

    def forget(self, tenant: TenantId) -> None:
        """Drop the history of a tenant that was removed."""
        self.averages.pop(tenant, None)

    def _share(self, tenant: TenantId, held: Amount, capacity: Amount, now: float) -> float:
        known = self.averages.get(tenant)
        if known is None:
            return 0.0
        return decay(known.share, held.dominant_share(capacity), max(0.0, now - known.at), self._half_life_s)

    def of_tenants(self, state: PoolState, capacity: Amount, now: float) -> dict[TenantId, Standing]:
        """Return the standing of every tenant now."""
        found: dict[TenantId, Standing] = {}
        for name in dict.fromkeys((*state.tenants, *state.tenant_held)):
            tenant = state.tenants.get(name) or Tenant(name)
            held = state.tenant_held.get(name, Amount())
            found[name] = Standing(tenant, held, self._share(name, held, capacity, now))
        return found

    @staticmethod
    def of_queues(state: PoolState) -> dict[QueueName, QueueStanding]:
        """Return every queue with what its jobs hold."""
        names = dict.fromkeys((*state.queues, *state.queue_held))
        return {
            name: QueueStanding(state.queues.get(name) or Queue(name), state.queue_held.get(name, Amount()))
            for name in names
        }
