"""Throughput by least squares: against numpy, what is believed when nothing is known, claims, outliers, changes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.model.experience import Measurement, Rate
from corral.policy.estimation import (
    CLAIMED,
    NOISE,
    TRUSTED,
    UNKNOWN,
    WEIGHT_MAX,
    Point,
    Spread,
    Throughput,
    confidence_of,
    devices_of,
    point_of,
    rate_of,
    scale_of,
    taken,
)
from tests.unit.policy.building import shape

MODELS = ("K80", "P100", "V100")
points = st.lists(
    st.builds(
        Point,
        st.sampled_from(MODELS),
        st.sampled_from([1, 2, 4, 8]),
        st.floats(-6.0, 6.0),
        st.floats(1.0, 1_000.0),
    ),
    min_size=1,
    max_size=10,
    unique_by=lambda p: (p.model, p.devices),
)


def full_problem(
    known: Sequence[Point],
    spread: Spread,
    model: str,
    devices: int,
    unsure: Callable[[str, int], float] = lambda _model, _devices: 0.0,
) -> tuple[float, float]:
    """Solve the whole regression, one column for each deviation, by numpy: prediction and its variance."""
    wanted = (model, devices)
    places = list(dict.fromkeys([*((p.model, p.devices) for p in known), wanted]))
    models = sorted({place[0] for place in places})
    size = 2 + len(models) + len(places)

    def row(place: tuple[str, int]) -> np.ndarray:
        x = np.zeros(size)
        x[0], x[1] = 1.0, math.log(place[1])
        x[2 + models.index(place[0])] = 1.0
        x[2 + len(models) + places.index(place)] = 1.0
        return x

    stds = [spread.base, spread.slope] + [spread.model] * len(models)
    stds += [math.sqrt(spread.deviation**2 + unsure(*place)) for place in places]
    design = np.vstack([row((p.model, p.devices)) * math.sqrt(p.weight) for p in known] + [np.diag(1 / np.array(stds))])
    seen = [(p.log_rate - spread.scaling * math.log(p.devices)) * math.sqrt(p.weight) for p in known]
    beta, *_ = np.linalg.lstsq(design, np.array(seen + [0.0] * size), rcond=None)
    x = row(wanted)
    variance = x @ np.linalg.inv(design.T @ design) @ x
    return float(x @ beta) + spread.scaling * math.log(devices), float(variance)


@given(points, st.sampled_from((*MODELS, "A100")), st.sampled_from([1, 2, 4, 8, 16]))
def test_the_estimate_is_that_of_the_whole_least_squares_problem(known: list[Point], model: str, devices: int) -> None:
    mean, variance = full_problem(known, UNKNOWN, model, devices)
    found = Throughput(known).log_rate(model, devices)
    assert found[0] == pytest.approx(mean, abs=1e-6)
    assert found[1] == pytest.approx(variance, rel=1e-6, abs=1e-9)


@given(points, points, st.sampled_from(MODELS), st.sampled_from([1, 2, 4, 8]))
def test_measurements_correct_claims_as_least_squares_on_the_difference(
    claims: list[Point], known: list[Point], model: str, devices: int
) -> None:
    below = Throughput([Point(p.model, p.devices, p.log_rate, 1e12) for p in claims])
    away = [Point(p.model, p.devices, p.log_rate - below.log_rate(p.model, p.devices)[0], p.weight) for p in known]
    mean, variance = full_problem(away, CLAIMED, model, devices, lambda *place: below.log_rate(*place)[1])
    found = Throughput(known, below).log_rate(model, devices)
    assert found[0] == pytest.approx(mean + below.log_rate(model, devices)[0], abs=1e-5)
    assert found[1] == pytest.approx(variance, rel=1e-6, abs=1e-9)


def test_nothing_known_means_equal_models_and_a_little_less_than_linear() -> None:
    nothing = Throughput.of({}, ())
    assert not nothing.known
    assert nothing.predict("V100", 1) == nothing.predict("K80", 1)
    assert nothing.predict("V100", 1).units_per_s == pytest.approx(1.0)
    # 2 ** 0.9
    assert nothing.predict("V100", 2).units_per_s == pytest.approx(1.866066)
    assert nothing.predict("V100", 2).confidence == 0.0


def test_claims_are_exact_where_they_are_made_and_carry_little_confidence() -> None:
    claims = {("V100", 1): 10.0, ("V100", 4): 28.0, ("K80", 1): 1.0}
    job = Throughput.of(claims, ())
    assert job.known
    for (model, devices), rate in claims.items():
        # The confidence in a claim is what the layer of claims says of itself: exact.
        assert job.predict(model, devices).units_per_s == pytest.approx(rate)
    # Elsewhere: between what the slope of the V100 claims and the general one say.
    assert 2.0 < job.predict("K80", 4).units_per_s < 4.0
    assert job.predict("P100", 1).confidence < 0.2


def test_a_measurement_corrects_all_claims_in_its_sense() -> None:
    claims = {("V100", 1): 10.0, ("K80", 1): 1.0}
    long = rate_of(Point("V100", 1, math.log(5.0), 1_000.0))
    job = Throughput.of(claims, (long,))
    assert job.predict("V100", 1).units_per_s == pytest.approx(5.0, rel=0.01)
    # The other claim is thought to be wrong in the same sense, but by less.
    assert 0.6 < job.predict("K80", 1).units_per_s < 0.8
    assert job.predict("V100", 1).confidence > 0.9
    assert job.predict("K80", 1).confidence < job.predict("V100", 1).confidence


def test_what_was_measured_with_other_numbers_of_devices_says_little_against_a_claim() -> None:
    claims = {("V100", 4): 111.0}
    # One device does as much as was claimed of two: the job may just scale badly.
    elsewhere = rate_of(Point("V100", 1, math.log(60.0), 1_000.0))
    assert 111.0 < Throughput.of(claims, (elsewhere,)).predict("V100", 4).units_per_s < 140.0


def measured(units: float, seconds: float = 600.0) -> Measurement:
    return Measurement("f", "V100", 2, units, seconds)


def test_a_claim_moves_a_part_of_the_way_with_other_sizes_and_its_own_measurement_outweighs_both() -> None:
    # One device does 5 a second, which says 17.4 for four of them (5 x 4^0.9); 10 are claimed for four.
    one = Rate("V100", 1, 5.0, 0.8)
    before = Throughput.of({("V100", 4): 10.0}, [one]).predict("V100", 4)
    assert 10.0 < before.units_per_s < math.sqrt(10.0 * 17.4)
    assert before.confidence < 0.3
    after = Throughput.of({("V100", 4): 10.0}, [one, Rate("V100", 4, 11.0, 0.8)]).predict("V100", 4)
    assert after.units_per_s == pytest.approx(11.0, rel=0.02)
    assert after.confidence > 0.75


def test_the_first_measurement_is_taken_as_it_is_and_a_short_one_counts_less() -> None:
    point = taken(None, measured(1_200.0))
    assert point is not None
    assert (point.model, point.devices) == ("V100", 2)
    assert math.exp(point.log_rate) == pytest.approx(2.0)
    # Variance 0.1^2 (1 + 60 / 600).
    assert point.weight == pytest.approx(1 / 0.011)
    assert rate_of(point).confidence == pytest.approx(1 / (1 + 0.011 / 0.04))
    short = taken(None, measured(20.0, 10.0))
    assert short is not None
    assert short.weight == pytest.approx(1 / 0.07)


@pytest.mark.parametrize(
    "units, seconds",
    [(1e300, 1e-300), (1e-300, 1e300), (0.0, 10.0), (-1.0, 10.0), (math.inf, 1.0), (math.nan, 1.0), (1.0, 0.0)],
)
def test_what_says_nothing_changes_nothing(units: float, seconds: float) -> None:
    assert taken(None, measured(units, seconds)) is None
    known = Point("V100", 2, 0.0, 90.0)
    assert taken(known, measured(units, seconds)) is known


@given(st.floats(-3.0, 3.0), st.floats(-3.0, 3.0), st.floats(60.0, 10_000.0))
def test_repeated_measurements_converge_monotonically(start: float, true: float, seconds: float) -> None:
    point = Point("V100", 2, start, 1 / NOISE**2)
    away = [abs(start - true)]
    for _ in range(60):
        following = taken(point, measured(math.exp(true) * seconds, seconds))
        assert following is not None
        point = following
        away.append(abs(point.log_rate - true))
    assert all(later <= earlier + 1e-9 for earlier, later in pairwise(away))
    assert away[-1] < 0.03
    assert point.weight <= WEIGHT_MAX


def test_one_outlier_moves_little_and_a_few_in_a_row_are_a_change() -> None:
    point: Point | None = None
    for _ in range(20):
        point = taken(point, measured(1_200.0))
    assert point is not None
    once = taken(point, measured(12.0))
    assert once is not None
    # The measurement says a hundredth; an unguarded mean over 11 would fall by a third.
    assert math.exp(once.log_rate) > 1.9
    for _ in range(11):
        once = taken(once, measured(12.0))
    assert once is not None
    assert math.exp(once.log_rate) == pytest.approx(0.02, rel=0.1)


@given(st.floats(0.05, 0.96), st.floats(0.001, 1_000.0))
def test_rates_and_points_are_two_ways_to_say_the_same(confidence: float, units_per_s: float) -> None:
    rate = Rate("V100", 4, units_per_s, confidence)
    point = point_of(rate)
    assert point is not None
    again = rate_of(point)
    assert again.units_per_s == pytest.approx(units_per_s)
    assert again.confidence == pytest.approx(confidence)


@pytest.mark.parametrize("rate", [Rate("V", 1, 1.0, 0.0), Rate("V", 1, 0.0, 0.5), Rate("V", 1, math.inf, 0.5)])
def test_rates_that_nobody_believes_say_nothing(rate: Rate) -> None:
    assert point_of(rate) is None


def test_a_rate_that_is_known_to_a_fifth_has_confidence_one_half() -> None:
    assert confidence_of(TRUSTED**2) == pytest.approx(0.5)
    assert confidence_of(0.0) == 1.0


def test_devices_of_a_gang() -> None:
    assert devices_of(shape(4, ranks=2)) == 8
    assert devices_of(shape(0.5, ranks=3)) == 3
    assert devices_of(shape(0, ranks=3)) == 0
    assert scale_of(shape(0, ranks=3)) == 3


@given(
    st.dictionaries(st.tuples(st.sampled_from(MODELS), st.integers(1, 10_000)), st.floats(1e-300, 1e300), max_size=5)
)
def test_claims_of_any_size_give_numbers(claims: dict[tuple[str, int], float]) -> None:
    job = Throughput.of(claims, [Rate("V100", 2, 1.0, 0.9)])
    for model in MODELS:
        speed = job.predict(model, 8)
        assert 0.0 < speed.units_per_s < math.inf
        assert 0.0 <= speed.confidence <= 1.0
