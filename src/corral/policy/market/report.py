"""From a seating to the plan that control reads: awards, evictions with their reasons, losses, prices; verified."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from corral.model.ids import DeviceId, GangKey, JobId, NodeId, TenantId
from corral.model.market import Award, Eviction, Loss, Market, Preemption, PreemptionKind, RoundPlan
from corral.model.offer import Holding
from corral.model.resources import GangShape
from corral.policy.config import SchedulingConfig
from corral.policy.feasibility import empty_fit
from corral.policy.market.auction import Dual, Verdict
from corral.policy.market.audit import audit
from corral.policy.market.contenders import Contender, Field
from corral.policy.market.forms import KEEP, Columns, Seated
from corral.policy.market.ground import Floats
from corral.policy.market.rows import Rows
from corral.policy.market.seating import Seating


def plan_of(
    market: Market,
    field: Field,
    seating: Seating,
    dual: Dual,
    verdict: Verdict,
    rows: Rows,
    config: SchedulingConfig,
) -> RoundPlan:
    """Return the plan of a seated round. Raises ``AssertionError`` when it would take more than there is."""
    contenders = field.contenders
    awards = tuple(
        Award(contenders[i].key, contenders[i].tenant, contenders[i].bids[won.bid], won.placements)
        for i, won in sorted(seating.awards.items())
    )
    evicted = [i for i, c in enumerate(contenders) if c.holding is not None and i not in seating.kept]
    evictions = _evictions(contenders, evicted, seating)
    lost = sum(c.lost_value(config) for c in contenders if c.holding is not None)
    value = (
        sum(contenders[i].kept_value + contenders[i].lost_value(config) for i in sorted(seating.kept))
        + sum(won.value for _, won in sorted(seating.awards.items()))
        - lost
        # The gap is that of the choice by worth: what comes first in a tenant is not chosen here.
        + max(0.0, seating.conceded)
    )
    plan = RoundPlan(
        market.snapshot.version,
        awards,
        tuple(evictions),
        _prices(verdict, rows, seating.ground.models),
        value,
        max(value, verdict.value - lost),
        _losses(market, field, seating, dual, verdict),
    )
    audit(market, plan)
    return plan


def _prices(verdict: Verdict, rows: Rows, models: list[str]) -> dict[str, float]:
    """Return what a device of each model costs: the sum over the rows that count its devices."""
    found = dict.fromkeys(models, 0.0)
    for row, model in enumerate(rows.models):
        if rows.whole[row]:
            found[models[model]] += float(verdict.prices[row])
    return found


class _Comers:
    """Who starts on which devices and nodes."""

    def __init__(self, seating: Seating) -> None:
        self._devices: dict[DeviceId, int] = {}
        self._nodes: dict[NodeId, set[int]] = {}
        for index, won in sorted(seating.awards.items()):
            for placement in won.placements:
                self._nodes.setdefault(placement.node, set()).add(index)
                self._devices.update(dict.fromkeys((share.uuid for share in placement.devices), index))

    def to(self, holding: Holding) -> set[int]:
        """Return who comes to a gang's devices, or else to the CPUs and memory of its nodes."""
        shares = (share.uuid for placement in holding.placements for share in placement.devices)
        devices = {self._devices[uuid] for uuid in shares if uuid in self._devices}
        return devices or set().union(*(self._nodes.get(p.node, set()) for p in holding.placements))


def _evictions(contenders: list[Contender], evicted: list[int], seating: Seating) -> list[Eviction]:
    comers = _Comers(seating)
    found = []
    for index in evicted:
        contender = contenders[index]
        holding = contender.holding
        assert holding is not None
        preemption = _preemption(index, holding, contenders, comers, seating)
        found.append(Eviction(contender.key, holding.incarnation, preemption))
    return found


def _preemption(
    index: int, holding: Holding, contenders: list[Contender], comers: _Comers, seating: Seating
) -> Preemption:
    """Say why a gang gives way: for the most valuable of those who come to where it was."""
    own = contenders[index]
    award = seating.awards.get(index)
    others = {seating.cleared_for[index]} if index in seating.cleared_for else comers.to(holding) - {index}
    others &= seating.awards.keys()
    if award is not None and (index in seating.movers or not others):
        return Preemption(_own_kind(award, holding), None, None, own.lost_s)
    if not others:
        # It holds what a limit of its tenant or queue gives to another.
        others = {i for i in seating.awards if own.tenant == contenders[i].tenant or own.queue == contenders[i].queue}
    winner = min(others, key=lambda i: (-contenders[i].worth, contenders[i].order), default=None)
    beneficiary = None if winner is None else contenders[winner]
    kind = PreemptionKind.ROOM
    if award is not None:
        kind = PreemptionKind.DEFRAGMENT
    elif beneficiary is not None and beneficiary.tenant == own.tenant and beneficiary.priority > own.priority:
        kind = PreemptionKind.PRIORITY
    elif beneficiary is not None and beneficiary.tenant != own.tenant and beneficiary.urgent:
        kind = PreemptionKind.RECLAIM
    job: JobId | None = beneficiary.key.job if beneficiary is not None else None
    tenant: TenantId | None = beneficiary.tenant if beneficiary is not None else None
    return Preemption(kind, job, tenant, own.lost_s)


def _own_kind(award: Seated, holding: Holding) -> PreemptionKind:
    before = sum(p.gpu_milli for p in holding.placements)
    after = sum(p.gpu_milli for p in award.placements)
    return PreemptionKind.MOVE if before == after else PreemptionKind.RESIZE


def _losses(market: Market, field: Field, seating: Seating, dual: Dual, verdict: Verdict) -> dict[GangKey, Loss]:
    """Say of everyone who does not run after the round why not."""
    found = {candidate.key: Loss(0.0, 0.0, "limit") for candidate in field.paused}
    columns = seating.columns
    cost = dual.coefs @ verdict.prices
    ways = _best_ways(columns, columns.value - cost[columns.form])
    for job, way in ways.items():
        if job in seating.kept or job in seating.awards:
            continue
        form = columns.forms[columns.form[way]]
        value, price = float(columns.value[way]), float(cost[columns.form[way]])
        if seating.limits.of[job] and not seating.limits.allow(job, form.shape):
            reason = "limit"
        elif value > price * (1 + 1e-9):
            reason = "placement"
        else:
            reason = "price"
        found[field.contenders[job].key] = Loss(value, price, reason)
    hopeless = [c for i, c in enumerate(field.contenders) if i not in ways and c.holding is None]
    found.update(_hopeless(market, field, hopeless))
    return found


def _best_ways(columns: Columns, net: Floats) -> dict[int, int]:
    """Return the way of each contender that nets most at the prices, going on as it runs aside."""
    if not len(columns.owner):
        return {}
    net = np.where(columns.bid == KEEP, -np.inf, net)
    best = np.maximum.reduceat(net, columns.starts)
    hits = np.flatnonzero(net >= np.repeat(best, columns.sizes))
    first = hits[np.searchsorted(hits, columns.starts)]
    return dict(zip(columns.owner.tolist(), first.tolist(), strict=True))


def _hopeless(market: Market, field: Field, contenders: Sequence[Contender]) -> dict[GangKey, Loss]:
    """Say of those who could not be placed if all others gave way: for now, or whatever happens."""
    now = market.snapshot.at
    until = min((h.tenure_until for h in field.fixed if h.tenure_until > now), default=None)
    found: dict[GangKey, Loss] = {}
    known: dict[GangShape, bool] = {}
    for contender in contenders:
        value = max(map(contender.value_of, contender.rates))
        ever = False
        for shape in dict.fromkeys(bid.shape for bid in contender.bids):
            if shape not in known:
                known[shape] = sum(empty_fit(o, shape.demand) for o in market.snapshot.nodes) >= shape.ranks
            ever = ever or known[shape]
        reason = ("tenure" if until is not None else "placement") if ever else "unplaceable"
        found[contender.key] = Loss(value, 0.0, reason, until if ever else None)
    return found
