"""The dual bound and what is chosen under it, against brute force and values worked out by hand."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.policy.market.auction import Dual, find_prices
from corral.policy.market.forms import Columns
from corral.policy.market.knapsack import solve_knapsack
from corral.policy.market.linear import best_choice, minimum_of_cuts
from corral.policy.market.repair import choose

Job = list[tuple[float, tuple[int, ...]]]
"""The ways of a contender: worth and use of each row."""


def dual_of(jobs: list[Job], caps: list[float]) -> Dual:
    """Return a dual in which every way is a form of its own."""
    ways = [way for job in jobs for way in job]
    owner = np.asarray([i for i, job in enumerate(jobs) for _ in job])
    columns = Columns(
        owner, np.arange(len(ways)), np.arange(len(ways)), np.asarray([value for value, _ in ways], dtype=float), []
    )
    return Dual(columns, np.asarray([use for _, use in ways], dtype=float), np.asarray(caps, dtype=float))


def optimum(jobs: list[Job], caps: list[float]) -> float:
    """Return the best worth by trying everything."""
    best = 0.0
    for combination in itertools.product(*([None, *job] for job in jobs)):
        taken = [way for way in combination if way is not None]
        used = [sum(use[row] for _, use in taken) for row in range(len(caps))]
        if all(u <= cap for u, cap in zip(used, caps, strict=True)):
            best = max(best, sum(value for value, _ in taken))
    return best


def worth(dual: Dual, choice: np.ndarray) -> float:
    return float(dual.value[choice[choice >= 0]].sum())


def fits(dual: Dual, choice: np.ndarray) -> bool:
    return bool((dual.coefs[dual.form[choice[choice >= 0]]].sum(axis=0) <= dual.caps + 1e-6).all())


def test_the_price_is_what_the_last_device_is_worth() -> None:
    # Three devices, four jobs of one device worth 4, 3, 2, 1: any price between 1 and 2 clears, and the bound is 9.
    found = find_prices(dual_of([[(4, (1,))], [(3, (1,))], [(2, (1,))], [(1, (1,))]], [3]))
    assert found.value == pytest.approx(9, rel=1e-4)
    assert 1 - 1e-6 <= found.prices[0] <= 2 + 1e-6


def test_what_is_not_scarce_costs_nothing() -> None:
    found = find_prices(dual_of([[(4, (1, 1))], [(3, (1, 1))]], [1, 5]))
    assert found.value == pytest.approx(4, rel=1e-4)
    assert found.prices[1] == pytest.approx(0, abs=1e-3)


def test_the_least_of_some_planes_is_found() -> None:
    # max(4 - x, x) is least at 2; the box ends at 3.
    found = minimum_of_cuts(
        [4.0, 0.0], [np.asarray([-1.0]), np.asarray([1.0])], [np.zeros(1), np.zeros(1)], np.zeros(1), np.full(1, 3.0)
    )
    assert found is not None
    assert float(found[0][0]) == pytest.approx(2)
    assert found[1] == pytest.approx(2)


jobs_of = st.lists(
    st.lists(st.tuples(st.floats(0.1, 10), st.tuples(st.integers(0, 3), st.integers(0, 3))), min_size=1, max_size=3),
    min_size=1,
    max_size=6,
)


@settings(max_examples=80, deadline=None)
@given(jobs_of, st.integers(1, 8), st.integers(1, 8))
def test_no_choice_is_worth_more_than_the_bound(jobs: list[Job], first: int, second: int) -> None:
    caps = [float(first), float(second)]
    dual = dual_of(jobs, caps)
    best = optimum(jobs, caps)
    verdict = find_prices(dual)
    assert best <= verdict.value * (1 + 1e-9)
    choice, bounded = choose(dual, verdict)
    assert fits(dual, choice)
    assert best <= bounded.value * (1 + 1e-5)
    # So few contenders all go to the exact solver.
    assert worth(dual, choice) == pytest.approx(best, rel=2e-3)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.1, 10), st.integers(1, 6)), min_size=1, max_size=10),
    st.integers(1, 14),
)
def test_a_pool_of_one_model_is_solved_exactly(items: list[tuple[float, int]], cap: int) -> None:
    jobs: list[Job] = [[(value, (size,))] for value, size in items]
    dual = dual_of(jobs, [float(cap)])
    found = solve_knapsack(dual)
    assert found is not None
    choice, verdict = found
    assert fits(dual, choice)
    assert worth(dual, choice) == pytest.approx(optimum(jobs, [float(cap)]))
    assert verdict.value == pytest.approx(worth(dual, choice))


def test_a_real_choice_or_a_part_of_a_device_is_no_knapsack() -> None:
    assert solve_knapsack(dual_of([[(1, (1,)), (2, (2,))]], [3])) is None
    assert solve_knapsack(dual_of([[(1, (1, 1))]], [3, 3])) is None
    halves = dual_of([[(1, (1,))]], [3])
    halves.coefs = halves.coefs / 2
    assert solve_knapsack(halves) is None


def test_the_exact_solver_takes_one_way_each() -> None:
    # Owner 0: worth 5 for 2 or 4 for 1; owner 1: 3 for 1. On 2 devices 4 + 3 is best.
    found = best_choice(
        np.asarray([5.0, 4.0, 3.0]), np.asarray([0, 0, 1]), np.asarray([[2.0], [1.0], [1.0]]), np.asarray([2.0]), 100
    )
    assert found is not None
    assert found[0].tolist() == [1, 2]
    assert found[1] == pytest.approx(7)


def test_prices_from_a_sample_lead_to_the_same_bound() -> None:
    generator = np.random.default_rng(7)
    values, uses = generator.random(9_000).tolist(), generator.integers(1, 9, 9_000).tolist()
    jobs: list[Job] = [[(value, (use,))] for value, use in zip(values, uses, strict=True)]
    dual = dual_of(jobs, [5_000.0])
    order = np.argsort(-dual.value / dual.coefs[:, 0])
    filled = np.cumsum(dual.coefs[order, 0])
    split = int(np.searchsorted(filled, 5_000.0))
    relaxed = float(dual.value[order[:split]].sum()) + float(dual.value[order[split]]) * (
        (5_000.0 - filled[split - 1]) / dual.coefs[order[split], 0]
    )
    assert find_prices(dual).value == pytest.approx(relaxed, rel=1e-4)


def test_where_nothing_is_scarce_everybody_takes_the_best() -> None:
    dual = dual_of([[(1, ()), (2, ())]] * 3_000, [])
    choice, verdict = choose(dual, find_prices(dual))
    assert worth(dual, choice) == pytest.approx(6_000)
    assert verdict.value == pytest.approx(6_000)


def test_prices_are_found_where_a_hundred_tenants_have_limits() -> None:
    # Each of 3,000 takes one of 400 devices and one of the 6 that its tenant may hold: taking the best that is still
    # allowed, one by one, is right (a laminar matroid).
    rng = random.Random(0)
    values = [(rng.lognormvariate(0.0, 2.0), rng.randrange(100)) for _ in range(3_000)]
    held, best = [0] * 100, 0.0
    for value, owner in sorted(values, reverse=True):
        if held[owner] < 6 and sum(held) < 400:
            held[owner] += 1
            best += value
    jobs: list[Job] = [[(value, (1, *(int(i == owner) for i in range(100))))] for value, owner in values]
    dual = dual_of(jobs, [400.0] + [6.0] * 100)
    choice, verdict = choose(dual, find_prices(dual))
    assert verdict.value == pytest.approx(best, rel=1e-3)
    assert dual.value[choice[choice >= 0]].sum() == pytest.approx(best, rel=1e-3)
