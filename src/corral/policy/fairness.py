"""Weighted fair shares of the dominant resource, now and in the past.

Progressive filling after Dominant Resource Fairness (Ghodsi et al., NSDI'11): whoever has the smallest weighted share
takes next. History enters as an exponentially decayed average, so that who used more than due stands behind until it
is forgotten, and who was idle is ahead but never takes everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

from corral.model.ids import TenantId
from corral.model.offer import Standing
from corral.model.resources import Amount
from corral.model.tenant import Quota
from corral.policy.config import SchedulingConfig

WEIGHT_MIN = 1e-6
"""A weight of 0 or less is taken as this: such a tenant gets what nobody else wants, instead of dividing by zero."""


def decay(share_avg: float, held_share: float, dt_s: float, half_life_s: float) -> float:
    """Return the decayed average after holding ``held_share`` for ``dt_s``: U' = U f + h (1 - f), f = 2^(-dt/H)."""
    if half_life_s <= 0:
        return held_share
    kept: float = 2.0 ** (-max(0.0, dt_s) / half_life_s)
    return share_avg * kept + held_share * (1.0 - kept)


def quota_share(quota: Quota, capacity: Amount) -> float | None:
    """Return a quota as a part of the pool (its largest resource), ``None`` when nothing is set."""
    if quota.gpu_milli is None and quota.cpus_milli is None:
        return None
    return Amount(quota.gpu_milli or 0, quota.cpus_milli or 0).dominant_share(capacity)


def limit_share(quota: Quota, capacity: Amount) -> float:
    """Return the part of the pool at which a limit binds in some resource (1 when it never does)."""
    parts = [1.0]
    if quota.gpu_milli is not None and capacity.gpu_milli:
        parts.append(quota.gpu_milli / capacity.gpu_milli)
    if quota.cpus_milli is not None and capacity.cpus_milli:
        parts.append(quota.cpus_milli / capacity.cpus_milli)
    return max(0.0, min(parts))


def due_shares(
    standings: Mapping[TenantId, Standing],
    wanting: AbstractSet[TenantId],
    *,
    capacity: Amount | None = None,
    wants: Mapping[TenantId, float] | None = None,
) -> dict[TenantId, float]:
    """Return each tenant's due part of the pool (0..1, together at most 1). Who wants nothing is due nothing.

    With a common level ``l``, a tenant is due ``weight * l``, raised to its guaranteed share and cut to its limit and
    to what it wants (``wants``: the dominant share that it could use; not named: everything). ``l`` is where the sum is
    the whole pool (water-filling). Guarantees and limits need ``capacity``; guarantees that exceed the pool together
    are scaled down.
    """
    bounds: list[tuple[TenantId, float, float, float]] = []
    for name in sorted(wanting):
        standing = standings.get(name)
        if standing is None:
            continue
        tenant = standing.tenant
        cap = min(1.0, wants.get(name, 1.0)) if wants is not None else 1.0
        floor = 0.0
        if capacity is not None:
            cap = min(cap, limit_share(tenant.limit, capacity))
            floor = quota_share(tenant.guaranteed, capacity) or 0.0
        cap = max(0.0, cap)
        bounds.append((name, max(tenant.weight, WEIGHT_MIN), min(floor, cap), cap))
    floors = sum(floor for _, _, floor, _ in bounds)
    if floors > 1.0:
        bounds = [(name, weight, floor / floors, cap) for name, weight, floor, cap in bounds]
    level = _water_level(bounds)
    due = {name: min(cap, max(floor, weight * level)) for name, weight, floor, cap in bounds}
    return {name: due.get(name, 0.0) for name in standings}


def _water_level(bounds: list[tuple[TenantId, float, float, float]]) -> float:
    """Return the level at which the clamped shares sum to 1 (or to all that may be given)."""
    if not bounds:
        return 0.0
    marks = sorted({mark for _, weight, floor, cap in bounds for mark in (floor / weight, cap / weight)})

    def filled(level: float) -> float:
        return sum(min(cap, max(floor, weight * level)) for _, weight, floor, cap in bounds)

    goal = min(1.0, sum(cap for _, _, _, cap in bounds))
    below = 0.0
    for mark in marks:
        if filled(mark) >= goal:
            low, high = filled(below), filled(mark)
            if high <= low:
                return mark
            return below + (mark - below) * (goal - low) / (high - low)
        below = mark
    return marks[-1]


def credit(standing: Standing, due: float) -> float:
    """Return what a tenant is owed: its due share less its decayed share. Above 0 it received too little."""
    return due - standing.decayed_share


def weight_sum(standings: Mapping[TenantId, Standing], waiting: Iterable[TenantId]) -> float:
    """Return the sum of the weights of all tenants that hold something or wait (1 each where nothing is known)."""
    playing = {name for name, standing in standings.items() if standing.held != Amount()}.union(waiting)
    return sum(standings[name].tenant.weight if name in standings else 1.0 for name in sorted(playing))


def below_guarantee(standing: Standing, need: Amount) -> bool:
    """Return whether a tenant holds less than it is guaranteed of something that ``need`` uses."""
    floor, held = standing.tenant.guaranteed, standing.held
    gpus = floor.gpu_milli is not None and need.gpu_milli > 0 and held.gpu_milli < floor.gpu_milli
    cpus = floor.cpus_milli is not None and need.cpus_milli > 0 and held.cpus_milli < floor.cpus_milli
    return gpus or cpus


def claim(
    standing: Standing, need: Amount, capacity: Amount, weights: float, config: SchedulingConfig
) -> tuple[int, float]:
    """Return a tenant's place in the order of filling: the smallest serves first.

    Tenants below a guarantee come before all others; then (held + half of ``need`` + history) / weight. The half is
    Sainte-Lague's rounding: ordering by the bare share would favour small weights and large jobs by up to a job. It is
    cut to half of what the tenant is due (``weights`` is the sum over all that hold or want something): a gang that is
    larger than that comes to its turn as soon as its tenant holds less than half of its due.
    """
    weight = max(standing.tenant.weight, WEIGHT_MIN)
    due = weight / max(weights, weight)
    taken = standing.held.dominant_share(capacity) + min(due, need.dominant_share(capacity)) / 2
    total = taken + config.history_weight * standing.decayed_share
    return (0 if below_guarantee(standing, need) else 1, total / weight)


def within(limit: Quota, held: Amount, need: Amount) -> str | None:
    """Return what a limit would be broken in by taking ``need`` more (``GPUs``, ``CPUs``), ``None`` when nothing."""
    if limit.gpu_milli is not None and need.gpu_milli > 0 and held.gpu_milli + need.gpu_milli > limit.gpu_milli:
        return "GPUs"
    if limit.cpus_milli is not None and need.cpus_milli > 0 and held.cpus_milli + need.cpus_milli > limit.cpus_milli:
        return "CPUs"
    return None
