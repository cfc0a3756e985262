"""Short ways to write markets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from corral.model.ids import JobId, QueueName, TenantId
from corral.model.market import Market, RoundPlan
from corral.model.offer import Bid, Candidate, Holding, QueueStanding, Reservation
from corral.model.resources import NodeSpec, Placement
from corral.model.tenant import Tenant
from corral.policy.config import SchedulingConfig
from corral.policy.market.solve import solve
from tests.unit.policy.building import NOW, candidate, holding, snapshot, standings

PLAIN = SchedulingConfig(fairness=0.0, remaining_exponent=1.0, critical_weight=0.0)
"""Worth is the share of the pool over the remaining seconds: numbers that can be worked out by hand."""


def waits(
    job: int, *bids: Bid, remaining: float = 1_000.0, tenant: str = "a", priority: int = 0, **more: object
) -> Candidate:
    """Return a pending gang that was submitted just now and has ``remaining`` seconds left on its first bid."""
    made = candidate(job, tenant=tenant, priority=priority, bids=bids, **more)  # type: ignore[arg-type]
    return replace(made, remaining_s=remaining, submitted_at=NOW)


def runs(
    job: int,
    bid: Bid,
    *placements: Placement,
    remaining: float = 1_000.0,
    tenant: str = "a",
    ran: float = 700.0,
    unsaved: float = 0.0,
    bids: tuple[Bid, ...] = (),
    priority: int = 0,
    tenure_until: float = 0.0,
) -> Holding:
    """Return a gang that has run ``ran`` seconds since its submission, the last ``unsaved`` of them not saved."""
    return replace(
        holding(job, *placements, tenant=tenant, started_at=NOW - ran),
        order=job,
        submitted_at=NOW - ran,
        bids=bids or (bid,),
        won=bid,
        saved_at=NOW - unsaved,
        remaining_s=remaining,
        known_at=NOW,
        priority=priority,
        tenure_until=tenure_until,
        incarnation=3,
    )


def market(
    specs: Sequence[NodeSpec],
    pending: Iterable[Candidate] = (),
    *,
    running: Sequence[Holding] = (),
    tenants: Sequence[Tenant] = (),
    past: dict[str, float] | None = None,
    queues: Iterable[tuple[QueueName, QueueStanding]] = (),
    reservations: tuple[Reservation, ...] = (),
    trust: dict[str, float] | None = None,
) -> Market:
    """Return a market; tenants that are not given have weight 1."""
    waiting = tuple(pending)
    known = {t.id: t for t in tenants}
    names = sorted({*known, *(c.tenant for c in waiting), *(h.tenant for h in running)})
    everybody = [known.get(name) or Tenant(name) for name in names]
    return Market(
        snapshot(specs, running),
        waiting,
        standings(*everybody, holdings=running, past=past),
        dict(queues),
        reservations,
        trust={TenantId(name): ratio for name, ratio in (trust or {}).items()},
    )


def plan(*arguments: object, config: SchedulingConfig = PLAIN, **more: object) -> RoundPlan:
    """Return the plan of a market."""
    return solve(market(*arguments, **more), config)  # type: ignore[arg-type]


def winners(of: RoundPlan) -> list[int]:
    """Return the numbers of the jobs that were awarded something, sorted."""
    return sorted(int(award.key.job) for award in of.awards)


def evicted(of: RoundPlan) -> list[int]:
    """Return the numbers of the jobs that give way, sorted."""
    return sorted(int(eviction.key.job) for eviction in of.evictions)


def nodes_of(of: RoundPlan, job: int) -> list[str]:
    """Return the nodes of a job's ranks."""
    return [p.node for award in of.awards if award.key.job == JobId(str(job)) for p in award.placements]


def devices_of(of: RoundPlan, job: int) -> list[str]:
    """Return the devices of a job in order of rank."""
    return [
        s.uuid for award in of.awards if award.key.job == JobId(str(job)) for p in award.placements for s in p.devices
    ]


def reason_of(of: RoundPlan, job: int) -> str:
    """Return why a job did not win."""
    return next(loss.reason for key, loss in of.losses.items() if key.job == JobId(str(job)))
