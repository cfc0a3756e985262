"""The price auction: the Lagrangian dual of choosing one way per contender under shared constraints.

D(p) = p . caps + sum over contenders of max(0, best (value - p . use)) is an upper bound on the worth of any choice,
for every p >= 0; its subgradient is caps - use. It is minimised by cutting planes in a trust region (Kelley, J. SIAM 8,
1960; Marsten, Hogan and Blankenship, Oper. Res. 23, 1975), which needs few evaluations because there are few prices.
"""

from __future__ import annotations

import numpy as np

from corral.policy.market.forms import Columns
from corral.policy.market.ground import Floats, Ints
from corral.policy.market.linear import minimum_of_cuts, relaxed_prices

EVALUATIONS_MAX = 60
"""Full evaluations of the dual at most."""

TOLERANCE = 1e-5
"""The promised relative decrease below which prices are taken as found: far below the gap that matters (0.5 %)."""

SAMPLE_MIN = 4_000
"""Contenders above which first prices come from a sample of about this many: they cost a fraction and are near."""


PROGRAM_WAYS_MAX = 2_000
"""Ways up to which prices come from one linear program: below, it costs less than a handful of evaluations with it."""

ROWS_FEW = 40
"""Constraints up to which cuts find the prices. With more than there are cuts, as where many tenants have limits, they
stop short."""

PROGRAM_WAYS_MANY_MAX = 100_000
"""Ways up to which the linear program finds the prices of more constraints: it takes seconds there, and is exact."""


class Verdict:
    """The dual at some prices: its value, what each contender takes (-1: nothing), and the use of each row."""

    __slots__ = ("choice", "prices", "reduced", "use", "value")

    def __init__(self, prices: Floats, value: float, choice: Ints, reduced: Floats, use: Floats) -> None:
        self.prices = prices
        self.value = value
        self.choice = choice
        self.reduced = reduced
        self.use = use


class Dual:
    """The dual function of one round. ``coefs`` are by form and row."""

    def __init__(self, columns: Columns, coefs: Floats, caps: Floats) -> None:
        self.value = columns.value
        self.form = columns.form
        self.starts = columns.starts
        self.sizes = columns.sizes
        self.coefs = coefs
        self.caps = caps

    def at(self, prices: Floats) -> Verdict:
        """Evaluate at ``prices``."""
        reduced = self.value - (self.coefs @ prices)[self.form]
        if not len(self.starts):
            return Verdict(prices, float(self.caps @ prices), np.zeros(0, dtype=np.int64), reduced, self.caps * 0.0)
        best = np.maximum.reduceat(reduced, self.starts)
        hits = np.flatnonzero(reduced >= np.repeat(best, self.sizes))
        choice = hits[np.searchsorted(hits, self.starts)]
        wins = best > 0.0
        counts = np.bincount(self.form[choice[wins]], minlength=len(self.coefs)).astype(np.float64)
        value = float(self.caps @ prices + best[wins].sum())
        return Verdict(prices, value, np.where(wins, choice, -1), reduced, counts @ self.coefs)

    def sample(self, step: int) -> Dual:
        """Return the dual of every ``step``-th contender with as much less capacity."""
        pick = np.zeros(len(self.starts), dtype=bool)
        pick[::step] = True
        ways = np.repeat(pick, self.sizes)
        part = object.__new__(Dual)
        part.value, part.form = self.value[ways], self.form[ways]
        part.sizes = self.sizes[pick]
        part.starts = np.cumsum(part.sizes) - part.sizes
        part.coefs, part.caps = self.coefs, self.caps * (pick.sum() / len(pick))
        return part


def find_prices(dual: Dual, warm: Floats | None = None) -> Verdict:
    """Return the dual near its minimum; ``warm`` are prices to begin with."""
    contenders = len(dual.starts)
    if not len(dual.caps):
        return dual.at(np.zeros(0))
    if 0 < len(dual.value) <= (PROGRAM_WAYS_MAX if len(dual.caps) <= ROWS_FEW else PROGRAM_WAYS_MANY_MAX):
        owner = np.repeat(np.arange(contenders), dual.sizes)
        exact = relaxed_prices(dual.value, owner, dual.coefs[dual.form], dual.caps)
        if exact is not None:
            return dual.at(exact)
    start = warm
    if contenders > 2 * SAMPLE_MIN:
        start = find_prices(dual.sample(contenders // SAMPLE_MIN), warm).prices
    if start is None:
        start = _first_prices(dual)
    best = dual.at(start)
    cuts = [best]
    # Prices from a sample are near: a small region finds the rest.
    scale = np.maximum(start, 0.1 * best.value / (np.maximum(dual.caps, 1e-9) * max(1, len(start))))
    radius = 0.05 if contenders > 2 * SAMPLE_MIN else 0.5
    for _ in range(EVALUATIONS_MAX):
        low = np.maximum(0.0, best.prices - radius * scale)
        high = best.prices + radius * scale
        found = minimum_of_cuts(
            [cut.value for cut in cuts], [dual.caps - cut.use for cut in cuts], [cut.prices for cut in cuts], low, high
        )
        if found is None:
            break
        prices, floor = found
        promised = best.value - floor
        if promised <= TOLERANCE * abs(best.value):
            break
        new = dual.at(prices)
        cuts.append(new)
        gained = best.value - new.value
        if gained > 0.1 * promised:
            best = new
            scale = np.maximum(scale, best.prices)
            radius = min(4.0, 2.0 * radius) if gained > 0.5 * promised else radius
        else:
            if gained > 0.0:
                best = new
            radius *= 0.5
        if radius < 1e-6:
            break
    return best


def _first_prices(dual: Dual) -> Floats:
    """Return prices at which one unit of every capacity together costs what its marginal buyer pays."""
    if not len(dual.starts) or not len(dual.caps):
        return np.zeros(len(dual.caps))
    part = dual.coefs @ (1.0 / np.maximum(dual.caps, 1e-9))
    share = part[dual.form]
    density = dual.value / np.maximum(share, 1e-12)
    best = np.maximum.reduceat(density, dual.starts)
    hits = np.flatnonzero(density >= np.repeat(best, dual.sizes))
    choice = hits[np.searchsorted(hits, dual.starts)]
    order = np.argsort(-best, kind="stable")
    filled = np.cumsum(share[choice][order])
    rows = max(1, int((dual.coefs > 0).any(axis=0).sum()))
    at = int(np.searchsorted(filled, float(rows)))
    at = min(at, len(order) // 2)
    prices: Floats = best[order[at]] / np.maximum(dual.caps, 1e-9)
    return prices
