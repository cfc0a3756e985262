"""Shares of Gavel's policies on small pools, worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from corral.model.ids import GangKey, JobId
from corral.sim.policies.shares import Arrivals, FinishTimeFairness, MaxMin, Situation, fairest


def key(number: int) -> GangKey:
    return GangKey(JobId(str(number)), 0)


def situation(
    rates: list[list[float]],
    devices: list[float],
    capacity: list[float],
    waited_s: list[float] | None = None,
    remaining: list[float] | None = None,
    numbers: list[int] | None = None,
) -> Situation:
    gangs = len(rates)
    return Situation(
        keys=tuple(key(n) for n in numbers or range(1, gangs + 1)),
        models=tuple("ABC"[: len(capacity)]),
        rates=np.array(rates),
        devices=np.array(devices),
        capacity=np.array(capacity),
        waited_s=np.array(waited_s or [0.0] * gangs),
        remaining=np.array(remaining or [float("nan")] * gangs),
    )


def test_max_min_gives_a_gang_of_two_half_of_the_time() -> None:
    # Two devices: x1 <= 1, x1 + 2 x2 <= 2, and min(x1, 2 x2) is largest at x1 = 1, x2 = 1/2.
    found = MaxMin(heterogeneous=False).shares(situation([[1.0], [1.0]], [1.0, 2.0], [2.0]))
    assert found[key(1)]["A"] == pytest.approx(1.0, abs=1e-5)
    assert found[key(2)]["A"] == pytest.approx(0.5, abs=1e-5)


def test_max_min_aware_of_models_equalises_normalised_throughput() -> None:
    # One device each of A and B. Normalised by (4+2)/2 = 3 and (3+1)/2 = 2. With a of A for the first and 1-a for the
    # second, (2+2a)/3 = (3-2a)/2 at a = 1/2: both have their proportional throughput, 1.
    found = MaxMin(heterogeneous=True).shares(situation([[4.0, 2.0], [3.0, 1.0]], [1.0, 1.0], [1.0, 1.0]))
    for number in (1, 2):
        assert found[key(number)]["A"] == pytest.approx(0.5, abs=1e-4)
        assert found[key(number)]["B"] == pytest.approx(0.5, abs=1e-4)


def test_max_min_unaware_of_models_looks_at_time_alone() -> None:
    rates = [[100.0], [1.0], [1.0]]
    found = MaxMin(heterogeneous=False).shares(situation(rates, [1.0] * 3, [1.0]))
    assert [found[key(n)]["A"] for n in (1, 2, 3)] == pytest.approx([1 / 3] * 3, abs=1e-5)


def test_shares_never_exceed_a_gang_s_time_nor_a_model_s_devices() -> None:
    rng = np.random.default_rng(7)
    devices, capacity = rng.choice([1.0, 2.0, 4.0], 25), np.array([5.0, 7.0, 4.0])
    shares = fairest(rng.uniform(0.1, 5.0, (25, 3)) * devices[:, None], devices, capacity)
    assert shares.min() >= 0.0
    assert (shares.sum(axis=1) <= 1.0 + 1e-6).all()
    assert (devices @ shares <= capacity + 1e-6).all()


def test_finish_time_fairness_favours_who_has_waited() -> None:
    # One device, 100 units left for both at 1 unit/s; half of it takes 200 s. The second came 100 s earlier:
    # 100/x = 100 + 100/(1-x), so x^2 - 3x + 1 = 0.
    policy = FinishTimeFairness()
    found = policy.shares(situation([[1.0], [1.0]], [1.0, 1.0], [1.0], [0.0, 100.0], [100.0, 100.0]))
    assert found[key(1)]["A"] == pytest.approx((3 - math.sqrt(5)) / 2, abs=1e-4)
    assert found[key(2)]["A"] == pytest.approx((math.sqrt(5) - 1) / 2, abs=1e-4)


def test_finish_time_fairness_counts_what_was_done_at_the_isolated_rate() -> None:
    policy = FinishTimeFairness()
    policy.shares(situation([[1.0], [1.0]], [1.0, 1.0], [1.0], [0.0, 100.0], [100.0, 100.0]))
    # 50 units at the isolated 1/2 unit/s are 100 s, 50 more another 100 s: both are due 200 s after their submission.
    # 100 + 50/x = 200 + 100/(1-x), so 2 x^2 - 5x + 1 = 0.
    found = policy.shares(situation([[1.0], [1.0]], [1.0, 1.0], [1.0], [100.0, 200.0], [50.0, 100.0]))
    assert found[key(1)]["A"] == pytest.approx((5 - math.sqrt(17)) / 4, abs=1e-4)


def test_finish_time_fairness_halves_the_isolated_rate_when_twice_as_many_contend() -> None:
    policy = FinishTimeFairness()
    policy.shares(situation([[1.0]], [1.0], [1.0], [0.0], [100.0]))
    # Alone the first did 50 units in 50 s, on half of the device it needs 100 s for the rest: due after 150 s. The new
    # one is due after 200 s. (50 + 50/x) / 150 = 100/(1-x) / 200, so x^2 + 3 x/2 - 1 = 0.
    found = policy.shares(situation([[1.0], [1.0]], [1.0, 1.0], [1.0], [50.0, 0.0], [50.0, 100.0]))
    assert found[key(1)]["A"] == pytest.approx(0.5, abs=1e-4)


def test_arrivals_go_to_the_last_model_that_has_devices_left() -> None:
    found = Arrivals().shares(situation([[1.0, 1.0]] * 2, [1.0, 2.0], [2.0, 2.0]))
    # A has two for the second, but it is promised B, where one is left: they take turns.
    assert found == {key(1): {"A": 0.0, "B": 1.0}, key(2): {"A": 0.0, "B": 1.0}}


def test_arrivals_block_behind_the_first_that_fits_nowhere() -> None:
    found = Arrivals().shares(situation([[1.0, 1.0]] * 3, [1.0, 2.0, 1.0], [1.0, 2.0]))
    # One of B is left and one of A: the second needs two, and the third waits behind it.
    assert found[key(2)] == found[key(3)] == {"A": 0.0, "B": 0.0}


def test_arrivals_keep_their_model_and_hand_it_on() -> None:
    policy = Arrivals()
    policy.shares(situation([[1.0]] * 3, [1.0, 1.0, 1.0], [2.0]))
    # The first ended: the third takes its place, the second stays.
    found = policy.shares(situation([[1.0]] * 2, [1.0, 1.0], [2.0], numbers=[2, 3]))
    assert found == {key(2): {"A": 1.0}, key(3): {"A": 1.0}}


def test_arrivals_pass_over_who_cannot_run_on_the_promised_model() -> None:
    found = Arrivals().shares(situation([[1.0, 0.0], [1.0, 1.0]], [1.0, 1.0], [1.0, 1.0]))
    assert found == {key(1): {"A": 0.0, "B": 0.0}, key(2): {"A": 0.0, "B": 1.0}}
