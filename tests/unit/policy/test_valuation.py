"""The worth of gangs, with values worked out by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from corral.policy.config import SchedulingConfig
from corral.policy.valuation import (
    PATIENCE_MAX,
    bid_value,
    critical_worth,
    finish_time_ratio,
    hedged,
    hurry_value,
    patience,
    weight,
)

BLAND = replace(SchedulingConfig(), fairness=0.0, remaining_exponent=0.5)
sizes = st.integers(1, 512).map(float)
times = st.floats(1.0, 1e7)


def test_the_ratio_is_time_in_the_pool_over_service() -> None:
    # Waited 300 s, 200 s of service in all: 500 s.
    assert finish_time_ratio(300.0, 1 / 200) == pytest.approx(2.5)


def test_a_gang_that_never_waited_has_ratio_one() -> None:
    assert finish_time_ratio(0.0, 1 / 100) == 1.0
    assert finish_time_ratio(-5.0, 1 / 100) == 1.0


def test_a_service_below_a_second_counts_as_one() -> None:
    assert finish_time_ratio(10.0, 1e6) == 11.0


def test_worth_by_hand() -> None:
    # (4 / 100)^1/2 = 0.2; a ratio of 16 with a dial of 1/2 counts as 16^1/4 and doubles it.
    assert weight(100.0, 4.0, 1.0, BLAND) == pytest.approx(0.2)
    assert weight(100.0, 4.0, 16.0, replace(BLAND, fairness=0.5)) == pytest.approx(0.4)


def test_a_guess_is_hedged_by_what_was_attained() -> None:
    # 300 s attained and 100 s of tenure: 400 s. Half way between 100 and 400, as factors: 200.
    config = replace(BLAND, fairness=0.5, tenure_s=100.0)
    assert hedged(100.0, 300.0, config) == pytest.approx(200.0)
    assert hedged(100.0, 300.0, replace(config, fairness=0.0)) == pytest.approx(100.0)
    assert hedged(100.0, 300.0, replace(config, fairness=1.0)) == pytest.approx(400.0)
    assert hedged(100.0, 300.0, replace(config, fairness=7.0)) == pytest.approx(400.0)
    assert hedged(100.0, 0.0, replace(config, fairness=1.0, tenure_s=0.0)) == 1.0


@given(times, times, times, st.floats(0.0, 1.0))
def test_hedging_lies_between_the_guess_and_the_age(guess_s: float, one_s: float, more_s: float, dial: float) -> None:
    config = replace(BLAND, fairness=dial)
    found = hedged(guess_s, one_s, config)
    low, high = sorted((guess_s, one_s + config.tenure_s))
    assert low * (1 - 1e-9) <= found <= high * (1 + 1e-9)
    assert hedged(guess_s, one_s + more_s, config) >= found


@given(times, times, sizes, sizes)
def test_with_the_dial_at_one_the_least_attained_service_comes_first(
    one_s: float, other_s: float, one: float, other: float
) -> None:
    config = replace(BLAND, fairness=1.0, tenure_s=0.0)
    if math.isclose(one_s * one, other_s * other, rel_tol=1e-9):
        return
    first = weight(hedged(5.0, one_s, config), one, 1.0, config) / one
    second = weight(hedged(9e5, other_s, config), other, 1.0, config) / other
    assert (first > second) == (one_s * one < other_s * other)


@given(times, sizes, times, sizes)
def test_worth_per_device_orders_by_remaining_service(one_s: float, one: float, other_s: float, other: float) -> None:
    if math.isclose(one_s * one, other_s * other, rel_tol=1e-9):
        return
    first = weight(one_s, one, 1.0, BLAND) / one
    second = weight(other_s, other, 1.0, BLAND) / other
    assert (first > second) == (one_s * one < other_s * other)


@given(times, sizes, st.floats(1.0, 1e4), st.floats(1.0, 1e4))
def test_with_the_dial_at_zero_waiting_is_worth_nothing(remaining_s: float, size: float, a: float, b: float) -> None:
    assert weight(remaining_s, size, a, BLAND) == weight(remaining_s, size, b, BLAND)


@given(times, sizes, st.floats(1.0, 1e4), st.floats(1.1, 10.0), st.floats(0.1, 1.0))
def test_the_dial_makes_waiting_worth_more(
    remaining_s: float, size: float, ratio: float, more: float, dial: float
) -> None:
    config = replace(BLAND, fairness=dial)
    assert weight(remaining_s, size, ratio * more, config) > weight(remaining_s, size, ratio, config)


def test_a_bid_at_a_quarter_of_the_best_rate_is_worth_half() -> None:
    assert bid_value(8.0, 25.0, 100.0) == pytest.approx(4.0)
    assert bid_value(8.0, 100.0, 100.0) == 8.0


def test_no_bid_is_worth_more_than_the_gang() -> None:
    assert bid_value(8.0, 200.0, 100.0) == 8.0


def test_only_who_is_near_the_end_is_in_a_hurry() -> None:
    config = replace(BLAND, critical_weight=2.0, critical_exponent=3.0)
    assert critical_worth(100.0, 100.0, config) == 2.0
    # Half of the way: 2 x (1/2)^3.
    assert critical_worth(50.0, 100.0, config) == pytest.approx(0.25)
    assert critical_worth(300.0, 100.0, config) == 2.0


def test_hurry_counts_from_the_slowest_bid() -> None:
    # sqrt(36/100) - sqrt(4/100) = 0.6 - 0.2.
    assert hurry_value(36.0, 100.0, 4.0) == pytest.approx(0.4)
    assert hurry_value(4.0, 100.0, 4.0) == 0.0
    assert hurry_value(1.0, 100.0, 4.0) == 0.0


@given(st.floats(0.01, 1e6), sizes)
def test_where_all_devices_are_alike_nobody_hurries(rate: float, factor: float) -> None:
    assert hurry_value(rate, rate, rate) == 0.0
    assert hurry_value(rate * factor, rate, rate) == 0.0


def test_patience_ends_after_its_time_and_grows_by_a_power() -> None:
    config = replace(SchedulingConfig(), patience_s=1_000.0, patience_exponent=8.0)
    assert [patience(waited_s, config) for waited_s in (-1.0, 0.0, 999.0, 1_000.0)] == [1.0] * 4
    assert patience(2_000.0, config) == pytest.approx(256.0)
    assert patience(1e9, config) == PATIENCE_MAX
