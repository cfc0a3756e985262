"""The exact optimum of a round's constraints, by HiGHS on all bids at once: what the prices are checked against."""

from __future__ import annotations

import numpy as np

from corral.model.market import Market
from corral.policy.config import SchedulingConfig
from corral.policy.market.contenders import Gatherer
from corral.policy.market.entitlement import assign_worth
from corral.policy.market.forms import columns_of
from corral.policy.market.ground import Ground
from corral.policy.market.limits import Limits
from corral.policy.market.linear import Quiet
from corral.policy.market.rows import Rows

GAP = 1e-5
"""The relative gap at which HiGHS may stop: a fiftieth of what a round may leave."""


def exact_value(one: Market, config: SchedulingConfig) -> float:
    """Return the worth that no placement of this round can exceed, to within ``GAP``: its constraints, whole bids."""
    field = Gatherer(config).gather(one)
    contenders = field.contenders
    assign_worth(contenders, field.fixed, one.standings, one.snapshot.capacity, config)
    ground = Ground(one.snapshot, contenders, one.reservations)
    limits = Limits(contenders, one.standings, one.queues, ground.kept)
    columns = columns_of(contenders, limits.groups, ground, config, limits.reserved_group.values())
    rows = Rows(columns, ground, limits)
    use = rows.coefs[columns.form]
    highs = Quiet()
    for option, value in (("output_flag", False), ("threads", 1), ("mip_rel_gap", GAP)):
        highs.setOptionValue(option, value)
    top = float(columns.value.max())
    takes = [highs.addBinary(obj=float(worth) / top) for worth in columns.value]
    for first, size in zip(columns.starts.tolist(), columns.sizes.tolist(), strict=True):
        highs.addConstr(sum(takes[first : first + size]) <= 1)
    for row, cap in enumerate(rows.caps.tolist()):
        uses = np.flatnonzero(use[:, row])
        highs.addConstr(sum(float(use[i, row]) * takes[i] for i in uses.tolist()) <= cap)
    highs.maximize()
    lost = sum(c.lost_value(config) for c in contenders if c.holding is not None)
    return float(highs.getInfo().mip_dual_bound) * top - lost
