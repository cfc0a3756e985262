"""A global round from market to plan. Pure: the same market gives the same plan, on any machine, at any time."""

from __future__ import annotations

from corral.model.market import Market, RoundPlan
from corral.policy.config import SchedulingConfig
from corral.policy.market.auction import Dual, Verdict, find_prices
from corral.policy.market.contenders import Gatherer
from corral.policy.market.entitlement import assign_worth
from corral.policy.market.forms import columns_of
from corral.policy.market.ground import Ground, Ints
from corral.policy.market.knapsack import solve_knapsack
from corral.policy.market.limits import Limits
from corral.policy.market.repair import choose
from corral.policy.market.report import plan_of
from corral.policy.market.rows import Rows
from corral.policy.market.seating import Seating


class RoundSolver:
    """Solves rounds one after the other. What it remembers saves work and changes no plan."""

    def __init__(self, config: SchedulingConfig) -> None:
        self._config = config
        self._gatherer = Gatherer(config)

    def __call__(self, market: Market) -> RoundPlan:
        """Return the plan of one round on ``market.snapshot``."""
        config = self._config
        field = self._gatherer.gather(market)
        contenders = field.contenders
        assign_worth(contenders, field.fixed, market.standings, market.snapshot.capacity, config)
        ground = Ground(market.snapshot, contenders, market.reservations)
        limits = Limits(contenders, market.standings, market.queues, ground.kept)
        columns = columns_of(contenders, limits.groups, ground, config, limits.reserved_group.values())
        rows = Rows(columns, ground, limits)
        dual = Dual(columns, rows.coefs, rows.caps)
        choice, verdict = _choice(dual)
        seating = Seating(ground, contenders, columns, limits, market.snapshot.at, config)
        seating.seat(choice.tolist())
        return plan_of(market, field, seating, dual, verdict, rows, config)


def solve(market: Market, config: SchedulingConfig) -> RoundPlan:
    """Return the plan of one round on ``market.snapshot``."""
    return RoundSolver(config)(market)


def _choice(dual: Dual) -> tuple[Ints, Verdict]:
    """Return a choice within all constraints, with prices and a bound on any."""
    found = solve_knapsack(dual)
    return found if found is not None else choose(dual, find_prices(dual))
