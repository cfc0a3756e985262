"""The exact answer where all contend for one resource and nobody has a choice: a pool of one model, rigid gangs.

Filling by worth per device gives the value of the relaxed problem and a feasible answer close to it. A contender whose
reduced cost is larger than the distance of the two is settled (Dembo and Hammer, Methods Oper. Res. 36, 1980); the few
that are left are chosen by dynamic programming over devices.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from corral.policy.market.auction import Dual, Verdict
from corral.policy.market.ground import Floats, Ints

Flags = NDArray[np.bool_]

CELLS_MAX = 4_000_000
"""Contenders left times devices left up to which the rest is solved exactly: a few milliseconds, a few megabytes."""


def solve_knapsack(dual: Dual) -> tuple[Ints, Verdict] | None:
    """Return the best choice, and a verdict with its worth as the bound.

    ``None`` when there are more rows, parts of devices or real choices, or when the rest is too large.
    """
    if len(dual.caps) != 1 or not len(dual.starts):
        return None
    uses = dual.coefs[dual.form, 0]
    if uses.min() < 1.0 or (dual.coefs != np.floor(dual.coefs)).any():
        return None
    if (np.minimum.reduceat(uses, dual.starts) != np.maximum.reduceat(uses, dual.starts)).any():
        return None
    ways = _best_ways(dual)
    value, use = dual.value[ways], uses[ways].astype(np.int64)
    cap = int(dual.caps[0] + 1e-9)
    order = np.argsort(-(value / use), kind="stable")
    filled = np.cumsum(use[order])
    if not len(order) or filled[-1] <= cap:
        return _answer(dual, ways, np.ones(len(ways), dtype=bool), 0.0)
    split = int(np.searchsorted(filled, cap, side="right"))
    price = float(value[order[split]] / use[order[split]])
    relaxed = float(value[order[:split]].sum()) + price * (cap - (int(filled[split - 1]) if split else 0))
    chosen = _greedy(order, use, cap)
    distance = relaxed - float(value[chosen].sum())
    margin = value - price * use
    open_ = np.flatnonzero(np.abs(margin) <= distance + 1e-12 * relaxed)
    sure = margin > distance + 1e-12 * relaxed
    left = cap - int(use[sure].sum())
    if not len(open_) or left <= 0:
        return _answer(dual, ways, chosen, price)
    if len(open_) * (left + 1) > CELLS_MAX:
        return None
    best = sure.copy()
    best[open_[_exact(value[open_], use[open_], left)]] = True
    return _answer(dual, ways, best if value[best].sum() >= value[chosen].sum() else chosen, price)


def _best_ways(dual: Dual) -> Ints:
    best = np.maximum.reduceat(dual.value, dual.starts)
    hits = np.flatnonzero(dual.value >= np.repeat(best, dual.sizes))
    return hits[np.searchsorted(hits, dual.starts)]


def _greedy(order: Ints, use: Ints, cap: int) -> Flags:
    """Return what fits in this order; what does not is passed over."""
    chosen = np.zeros(len(order), dtype=bool)
    left = cap
    smallest = int(use.min())
    for item in order.tolist():
        if use[item] <= left:
            chosen[item] = True
            left -= int(use[item])
            if left < smallest:
                break
    return chosen


def _exact(value: Floats, use: Ints, cap: int) -> Ints:
    best = np.zeros(cap + 1)
    taken = np.zeros((len(value), cap + 1), dtype=bool)
    for item, (worth, size) in enumerate(zip(value.tolist(), use.tolist(), strict=True)):
        if size > cap:
            continue
        with_it = best[: cap + 1 - size] + worth
        better = with_it > best[size:]
        taken[item, size:] = better
        best[size:] = np.where(better, with_it, best[size:])
    chosen = []
    left = int(np.argmax(best))
    for item in range(len(value) - 1, -1, -1):
        if taken[item, left]:
            chosen.append(item)
            left -= int(use[item])
    return np.asarray(chosen, dtype=np.int64)


def _answer(dual: Dual, ways: Ints, chosen: Flags, price: float) -> tuple[Ints, Verdict]:
    choice = np.where(chosen, ways, -1)
    reduced = dual.value - price * dual.coefs[dual.form, 0]
    use = np.asarray([float(dual.coefs[dual.form[ways[chosen]], 0].sum())])
    return choice, Verdict(np.asarray([price]), float(dual.value[ways[chosen]].sum()), choice, reduced, use)
