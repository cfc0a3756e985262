"""From the worth of a gang within its tenant to its worth among all: priorities, entitlements and guarantees.

A tenant's scale is set so that at the end of its due share every tenant's next device is worth 1: whatever scale its
own weights have cancels out, so declaring less work, or splitting it, only reorders the tenant's own gangs. What lies
beyond the due share loses worth as 1 / share, so that alike tenants get alike parts, not all or nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from corral.model.ids import TenantId
from corral.model.offer import Holding, Standing
from corral.model.resources import Amount
from corral.model.tenant import Quota, Tenant
from corral.policy.config import SchedulingConfig
from corral.policy.fairness import due_shares
from corral.policy.market.contenders import Contender

PRIORITY_STEP = 4.0
"""A device for a gang of higher priority is worth this many times the best of lower priority in the same tenant: such a
gang wins against any lower ones that it displaces, unless it would waste three quarters of what they use."""

URGENT_STEP = 2.0
"""A device within a guarantee is worth this many times the best one that is not, and so is each rank against a gang:
a guarantee of one device is good even where all others hold eight at a time."""


def assign_worth(
    contenders: Iterable[Contender],
    fixed: Iterable[Holding],
    standings: Mapping[TenantId, Standing],
    capacity: Amount,
    config: SchedulingConfig,
) -> None:
    """Set ``worth`` and ``urgent`` of all contenders."""
    tenants: dict[TenantId, list[Contender]] = {}
    for contender in contenders:
        tenants.setdefault(contender.tenant, []).append(contender)
    held: dict[TenantId, Amount] = {}
    for holding in fixed:
        for placement in holding.placements:
            held[holding.tenant] = held.get(holding.tenant, Amount()) + Amount.of(placement)
    for name, mine in tenants.items():
        if _plain(name, mine, standings, others=len(tenants) + len(held) > 1):
            continue
        mine.sort(key=lambda c: (-c.priority, -c.raw / c.size, c.order, c.key))
        _lift_priorities(mine)
    alone = len(tenants.keys() | held.keys()) < 2
    due = {} if alone else _dues(tenants, held, standings, capacity)
    for tenant, mine in tenants.items():
        before = held.get(tenant, Amount())
        if alone:
            for contender in mine:
                contender.worth = contender.raw
        else:
            _scale(mine, due.get(tenant, 0.0), before.dominant_share(capacity))
        if tenant in standings:
            _mark_guaranteed(mine, standings[tenant].tenant, before)
    _lift_urgent(tenants, config)


def _plain(name: TenantId, mine: list[Contender], standings: Mapping[TenantId, Standing], *, others: bool) -> bool:
    """Return whether the order within a tenant does not matter: alone, without priorities and guarantees."""
    standing = standings.get(name)
    guaranteed = standing is not None and standing.tenant.guaranteed != Quota()
    return not others and not guaranteed and all(c.priority == mine[0].priority for c in mine)


def _dues(
    tenants: Mapping[TenantId, list[Contender]],
    held: Mapping[TenantId, Amount],
    standings: Mapping[TenantId, Standing],
    capacity: Amount,
) -> dict[TenantId, float]:
    """Return the share that each tenant is due in this round, after the credit of what it received before."""
    wanting = {*tenants, *held}
    known = {name: standings.get(name) or Standing(Tenant(name)) for name in wanting}
    wants = {
        name: held.get(name, Amount()).dominant_share(capacity) + sum(c.size for c in tenants.get(name, ()))
        for name in wanting
    }
    due = due_shares(known, wanting, capacity=capacity, wants=wants)
    # Twice its due for who received nothing, its due for who received it, less for who received more.
    owed = {name: share * share / max(1e-12, share + known[name].decayed_share) for name, share in due.items()}
    total = sum(owed.values())
    return {name: share * sum(due.values()) / total for name, share in owed.items()} if total > 0 else due


def _lift_priorities(mine: list[Contender]) -> None:
    """Raise ``raw`` so that every priority stands a step above all lower ones; ``mine`` is sorted, best first."""
    levels: list[list[Contender]] = []
    for contender in mine:
        if not levels or levels[-1][0].priority != contender.priority:
            levels.append([])
        levels[-1].append(contender)
    above = 0.0
    for level in reversed(levels):
        least = min(c.raw / c.size for c in level)
        if above and least < PRIORITY_STEP * above:
            factor = PRIORITY_STEP * above / least
            for contender in level:
                contender.raw *= factor
        above = max(c.raw / c.size for c in level)


def _scale(mine: list[Contender], due: float, before: float) -> None:
    """Scale by what a device is worth at the end of the due share, and discount what lies beyond it."""
    due = max(due, 1e-9)
    marginal = mine[-1].raw / mine[-1].size
    share = before
    for contender in mine:
        share += contender.size
        if share >= due:
            marginal = contender.raw / contender.size
            break
    share = before
    for contender in mine:
        middle = share + contender.size / 2
        contender.worth = contender.raw / marginal * min(1.0, due / middle)
        share += contender.size


def _mark_guaranteed(mine: list[Contender], tenant: Tenant, before: Amount) -> None:
    """Mark what fits the tenant's guarantee: what runs first, then by the tenant's own order."""
    floor = tenant.guaranteed
    if floor.gpu_milli is None and floor.cpus_milli is None:
        return
    taken = before
    for contender in sorted(mine, key=lambda c: c.holding is None):
        need = need_of(contender)
        gpus = floor.gpu_milli is not None and need.gpu_milli > 0
        cpus = floor.cpus_milli is not None and need.gpu_milli == 0
        if not (gpus or cpus):
            continue
        then = taken + need
        if gpus and then.gpu_milli > (floor.gpu_milli or 0):
            continue
        if floor.cpus_milli is not None and then.cpus_milli > floor.cpus_milli:
            continue
        taken = then
        contender.urgent = True


def _lift_urgent(tenants: Mapping[TenantId, list[Contender]], config: SchedulingConfig) -> None:
    urgent = [c for mine in tenants.values() for c in mine if c.urgent]
    if not urgent:
        return
    others = [c for mine in tenants.values() for c in mine if not c.urgent]
    device = max((c.worth / c.size for c in others), default=0.0)
    # Nor may unsaved work keep what was lent: who borrows it has had its tenure to save.
    gang = max((c.worth + (c.lost_value(config) if c.holding is not None else 0.0) for c in others), default=0.0)
    for contender in urgent:
        ranks = max((bid.shape.ranks for bid in contender.bids), default=1)
        contender.worth = max(contender.worth, URGENT_STEP * max(device * contender.size, gang * ranks))


def need_of(contender: Contender) -> Amount:
    """Return what a running gang holds, or what the first bid of a pending one asks."""
    if contender.holding is not None:
        total = Amount()
        for placement in contender.holding.placements:
            total = total + Amount.of(placement)
        return total
    shape = contender.bids[0].shape
    return Amount.of(shape.demand).times(shape.ranks)
