"""A global round from market to plan. Pure: the same market gives the same plan, on any machine, at any time."""

from __future__ import annotations

from corral.model.market import Market, RoundPlan
from corral.policy.config import SchedulingConfig
from corral.policy.market.auction import Dual, find_prices
from corral.policy.market.contenders import gather
from corral.policy.market.entitlement import assign_worth
from corral.policy.market.forms import columns_of
from corral.policy.market.ground import Ground
from corral.policy.market.repair import choose
from corral.policy.market.report import plan_of
from corral.policy.market.rows import Limits, Rows
from corral.policy.market.seating import Seating


def solve(market: Market, config: SchedulingConfig) -> RoundPlan:
    """Return the plan of one round on ``market.snapshot``."""
    field = gather(market, config)
    contenders = field.contenders
    assign_worth(contenders, field.fixed, market.standings, market.snapshot.capacity)
    ground = Ground(market.snapshot, contenders, market.reservations)
    limits = Limits(contenders, market.standings, market.queues, ground.kept)
    columns = columns_of(contenders, limits.groups, ground, config)
    rows = Rows(columns, ground, limits)
    dual = Dual(columns, rows.coefs, rows.caps)
    verdict = find_prices(dual)
    seating = Seating(ground, contenders, columns, limits, market.snapshot.at, config)
    seating.seat(choose(dual, verdict).tolist())
    return plan_of(market, field, seating, dual, verdict, rows, config)
