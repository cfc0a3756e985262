"""HiGHS as this room uses it: one thread, fixed seed, iteration and node limits, never a time limit."""

from __future__ import annotations

from collections.abc import Sequence

import highspy
import numpy as np

from corral.policy.market.ground import Floats, Ints

SIMPLEX_ITERATIONS_MAX = 20_000


class Quiet(highspy.Highs):
    """Highs without its callbacks: enabling them writes a banner to standard output, whatever the options say."""

    def __init__(self) -> None:
        super(highspy.Highs, self).__init__()


def _solver(nodes: int = 1) -> Quiet:
    options = highspy.HighsOptions()
    options.output_flag = False
    options.threads = 1
    options.parallel = "off"
    options.random_seed = 0
    options.simplex_iteration_limit = SIMPLEX_ITERATIONS_MAX
    options.mip_max_nodes = nodes
    options.mip_rel_gap = 1e-5
    solver = Quiet()
    solver.passOptions(options)
    return solver


def minimum_of_cuts(
    values: Sequence[float], slopes: Sequence[Floats], points: Sequence[Floats], low: Floats, high: Floats
) -> tuple[Floats, float] | None:
    """Return where the largest of the planes ``value + slope . (p - point)`` is least within a box, and its value."""
    size, count = len(low), len(values)
    matrix = np.column_stack((-np.asarray(slopes), np.ones(count)))
    offsets = np.asarray([v - s @ p for v, s, p in zip(values, slopes, points, strict=True)])
    # Rows and prices of very different size trouble a simplex: prices are counted in the size of their box.
    unit = np.maximum(high - low, 1e-300)
    factor = max(1e-300, float(np.abs(np.asarray(values)).max()))
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = size + 1, count
    lp.col_cost_ = np.append(np.zeros(size), 1.0)
    lp.col_lower_ = np.append(np.zeros(size), -highspy.kHighsInf)
    lp.col_upper_ = np.append(np.ones(size), highspy.kHighsInf)
    scaled = matrix.copy()
    scaled[:, :size] *= unit / factor
    lp.row_lower_ = (offsets - matrix[:, :size] @ low) / factor
    lp.row_upper_ = np.full(count, highspy.kHighsInf)
    _fill(lp, scaled)
    solver = _solver()
    solver.passModel(lp)
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    found = np.asarray(solver.getSolution().col_value)
    return low + unit * np.clip(found[:size], 0.0, 1.0), float(found[size]) * factor


def _fill(lp: highspy.HighsLp, matrix: Floats) -> None:
    rows, columns = np.nonzero(matrix)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.append(np.searchsorted(rows, np.arange(len(matrix))), len(rows)).astype(np.int32)
    lp.a_matrix_.index_ = columns.astype(np.int32)
    lp.a_matrix_.value_ = matrix[rows, columns]


def relaxed_prices(value: Floats, owner: Ints, use: Floats, caps: Floats) -> Floats | None:
    """Return the prices of ``caps`` in the linear relaxation of ``best_choice``, ``None`` when HiGHS found none."""
    if not len(caps):
        return np.zeros(0)
    top = float(value.max())
    solver = _solver()
    solver.passModel(_program(value / top, owner, use, caps))
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    prices: Floats = np.maximum(0.0, -np.asarray(solver.getSolution().row_dual)[-len(caps) :]) * top
    return prices


def best_choice(value: Floats, owner: Ints, use: Floats, caps: Floats, nodes: int) -> tuple[Ints, float] | None:
    """Choose at most one way per owner so that the use stays within ``caps``; return the ways and the bound.

    ``value`` by way, ``owner`` by way (0..n-1, sorted), ``use`` by way and row; at most ``nodes`` nodes are searched.
    ``None`` when HiGHS found nothing.
    """
    top = float(value.max())
    lp = _program(value / top, owner, use, caps)
    lp.integrality_ = [highspy.HighsVarType.kInteger] * len(value)
    solver = _solver(nodes)
    solver.passModel(lp)
    solver.run()
    info = solver.getInfo()
    if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return None
    chosen = np.flatnonzero(np.asarray(solver.getSolution().col_value) > 0.5)
    return chosen, -float(info.mip_dual_bound) * top


def _program(worth: Floats, owner: Ints, use: Floats, caps: Floats) -> highspy.HighsLp:
    """Return the program: one row per owner, then one per cap; one column per way."""
    ways, owners = len(worth), int(owner[-1]) + 1
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = ways, owners + len(caps)
    lp.col_cost_ = -worth
    lp.col_lower_, lp.col_upper_ = np.zeros(ways), np.ones(ways)
    lp.row_lower_ = np.full(owners + len(caps), -highspy.kHighsInf)
    lp.row_upper_ = np.append(np.ones(owners), caps)
    of_way, of_row = np.nonzero(use)
    way = np.append(np.arange(ways), of_way)
    order = np.argsort(way, kind="stable")
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = np.searchsorted(way[order], np.arange(ways + 1)).astype(np.int32)
    lp.a_matrix_.index_ = np.append(owner, of_row + owners)[order].astype(np.int32)
    lp.a_matrix_.value_ = np.append(np.ones(ways), use[of_way, of_row])[order]
    return lp
