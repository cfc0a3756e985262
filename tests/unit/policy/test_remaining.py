"""Remaining service against formulas worked out by hand and a slow search that shares no code."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.model.experience import ServiceClass, ServiceHistory
from corral.model.ids import TenantId
from corral.policy.config import SchedulingConfig
from corral.policy.remaining import Lifetimes, RemainingService

ADA = TenantId("ada")
BOB = TenantId("bob")
POOL = ServiceClass(None, None)

times = st.integers(1, 40).map(float)
weights = st.sampled_from([0.25, 1.0, 3.0])
samples = st.lists(st.tuples(times, weights), min_size=1, max_size=12)


def history(**classes: tuple[float, ...]) -> ServiceHistory:
    names = {"pool": POOL, "ada": ServiceClass(ADA, 4), "bob": ServiceClass(BOB, 1)}
    return ServiceHistory({names[name]: tuple(sorted(durations)) for name, durations in classes.items()})


def expected_remaining_s(past: ServiceHistory, tenant: TenantId, devices: int, attained_s: float) -> float:
    return RemainingService(past, SchedulingConfig()).remaining_s(tenant, devices, attained_s)


def survival(ended: list[tuple[float, float]], going: list[tuple[float, float]], at: float) -> float:
    """Return Kaplan and Meier's product, one factor for each time of an end up to ``at``."""
    alive = 1.0
    for time in {t for t, _ in ended if t <= at}:
        risk = sum(w for t, w in itertools.chain(ended, going) if t >= time)
        alive *= 1.0 - sum(w for t, w in ended if t == time) / risk
    return alive


def searched(ended: list[tuple[float, float]], going: list[tuple[float, float]], attained: int) -> float:
    """Return the least service per completion over every whole second at which one could give up."""
    best = math.inf
    served, alive = 0.0, survival(ended, going, attained)
    for second in range(attained, 40):
        served += survival(ended, going, second)
        done = alive - survival(ended, going, second + 1.0)
        best = min(best, served / done) if done > 1e-12 else best
    return best


def test_gangs_that_all_take_as_long_need_what_is_left_of_it() -> None:
    lifetimes = Lifetimes([(100.0, 7.0)])
    assert lifetimes.remaining_s(0.0) == pytest.approx(100.0)
    assert lifetimes.remaining_s(40.0) == pytest.approx(60.0)
    assert lifetimes.remaining_s(100.0) is None


def test_the_best_moment_to_give_up_decides_and_not_the_mean() -> None:
    # Half take 10 s, half 1,000 s. To stop at 10 s costs 10 s for half a completion: 20 s. The mean is 505 s.
    lifetimes = Lifetimes([(10.0, 1.0), (1000.0, 1.0)])
    assert lifetimes.remaining_s(0.0) == pytest.approx(20.0)
    # At 9 s one second gives half a completion; at 10 s only the long ones are left.
    assert lifetimes.remaining_s(9.0) == pytest.approx(2.0)
    assert lifetimes.remaining_s(10.0) == pytest.approx(990.0)


def test_gangs_still_going_make_the_long_ones_likely() -> None:
    # Ended: 10 and 100 s; two still going at 50 s. S(10) = 3/4, and of the three left at 50 only one is known at 100.
    lifetimes = Lifetimes([(10.0, 1.0), (100.0, 1.0)], [(50.0, 2.0)])
    # Stop at 10: 10 s for 1/4, 40 s. Go on to 100: 10 + 3/4 x 90 = 77.5 s for a whole one.
    assert lifetimes.remaining_s(0.0) == pytest.approx(40.0)
    assert Lifetimes([(10.0, 1.0), (100.0, 1.0)]).remaining_s(0.0) == pytest.approx(20.0)


@given(samples, st.lists(st.tuples(times, weights), max_size=8), st.integers(0, 41))
def test_the_index_is_what_a_search_over_all_moments_finds(
    ended: list[tuple[float, float]], going: list[tuple[float, float]], attained: int
) -> None:
    expected = searched(ended, going, attained)
    found = Lifetimes(ended, going).remaining_s(float(attained))
    if found is None:
        assert expected == math.inf
    else:
        assert found == pytest.approx(expected, rel=1e-9)


@given(samples, st.floats(0.0, 39.0), st.floats(0.1, 10.0))
def test_the_index_scales_with_time(ended: list[tuple[float, float]], attained: float, scale: float) -> None:
    whole = Lifetimes(ended).remaining_s(attained)
    scaled = Lifetimes([(time * scale, weight) for time, weight in ended]).remaining_s(attained * scale)
    if whole is not None and scaled is not None and all(abs(time - attained) > 1e-6 for time, _ in ended):
        assert scaled == pytest.approx(whole * scale, rel=1e-6)


def test_the_mean_of_one_over_service_by_hand() -> None:
    # Half take 10 s, half 1,000 s: (1/10 + 1/1000) / 2. From 10 s on only the long ones are left.
    lifetimes = Lifetimes([(10.0, 1.0), (1000.0, 1.0)])
    assert lifetimes.inverse(0.0) == pytest.approx(0.0505)
    assert lifetimes.inverse(10.0) == pytest.approx(0.001)
    assert lifetimes.inverse(1000.0) is None
    # Two still going at 50 s: S(10) = 3/4 and the rest ends at 100.
    assert Lifetimes([(10.0, 1.0), (100.0, 1.0)], [(50.0, 2.0)]).inverse(0.0) == pytest.approx(0.025 + 0.0075)
    # Who still goes at 200 s is never seen to end: half of all.
    assert Lifetimes([(100.0, 1.0)], [(200.0, 1.0)]).inverse(0.0) == pytest.approx(0.005)


@given(samples, st.lists(st.tuples(times, weights), max_size=8), st.integers(0, 41))
def test_the_mean_of_one_over_service_is_that_of_the_survival_curve(
    ended: list[tuple[float, float]], going: list[tuple[float, float]], attained: int
) -> None:
    alive = survival(ended, going, attained)
    found = Lifetimes(ended, going).inverse(float(attained))
    if alive < 1e-12 or attained >= max(t for t, _ in ended):
        assert found is None or alive < 1e-12
        return
    drops = ((survival(ended, going, t - 1.0) - survival(ended, going, t)) / t for t in range(attained + 1, 41))
    assert found == pytest.approx(sum(drops) / alive, rel=1e-9)


def test_who_outlasted_everything_is_expected_to_have_had_twice_its_age_in_the_end() -> None:
    a_year = 365 * 86_400.0
    found = RemainingService(history(pool=(60.0,) * 50), SchedulingConfig()).of(ADA, 4, a_year)
    assert found == (a_year, 1.0 / (2 * a_year))


@given(st.lists(st.floats(0.0, 1e6), max_size=40), st.floats(0.0, 1e7), st.floats(1.0, 1e6))
def test_the_mean_of_one_over_service_falls_as_service_is_attained(
    durations: list[float], attained: float, more: float
) -> None:
    seen = ServiceHistory({ServiceClass(ADA, 4): tuple(sorted(durations))})
    expect = RemainingService(seen, SchedulingConfig())
    less, later = expect.of(ADA, 4, attained).inverse, expect.of(ADA, 4, attained + more).inverse
    assert 0.0 < later <= less * (1 + 1e-6)
    assert less <= 1.0 / max(1.0, attained) + 1e-12


def test_without_any_history_who_ran_longer_is_expected_to_run_longer() -> None:
    nothing = ServiceHistory()
    found = [expected_remaining_s(nothing, ADA, 4, attained) for attained in (0.0, 600.0, 6_000.0, 60_000.0)]
    assert found == sorted(found)
    assert found[-1] > 10 * found[0]


def test_who_outlasted_everything_known_goes_on_for_its_age() -> None:
    a_year = 365 * 86_400.0
    assert expected_remaining_s(history(pool=(60.0,) * 50), ADA, 4, a_year) == a_year


def test_a_class_is_believed_the_more_it_has_seen() -> None:
    pool = (60.0,) * 5_00
    alone = expected_remaining_s(history(pool=pool), ADA, 4, 0.0)
    few = expected_remaining_s(history(pool=pool, ada=(5_000.0,) * 5), ADA, 4, 0.0)
    many = expected_remaining_s(history(pool=pool, ada=(5_000.0,) * 2_000), ADA, 4, 0.0)
    assert alone < few < many
    assert alone == pytest.approx(60.0, rel=0.5)
    assert many > 500.0


def test_another_tenants_gangs_count_only_through_the_pool() -> None:
    one = history(pool=(600.0,) * 20, ada=(600.0,) * 20)
    other = history(pool=(600.0,) * 20, ada=(600.0,) * 20, bob=(9.0,) * 90)
    assert expected_remaining_s(one, ADA, 4, 30.0) == expected_remaining_s(other, ADA, 4, 30.0)


def test_those_still_going_count_in_a_round() -> None:
    config = SchedulingConfig()
    seen = history(pool=(60.0,) * 200, ada=(60.0,) * 200)
    going = {ServiceClass(ADA, 4): [86_400.0] * 400}
    fresh = RemainingService(seen, config).remaining_s(ADA, 4, 0.0)
    wary = RemainingService(seen, config, going).remaining_s(ADA, 4, 0.0)
    assert wary > 1.5 * fresh


@given(st.lists(st.floats(1.0, 1e6), max_size=40), st.floats(0.0, 1e7))
def test_remaining_service_is_finite_and_at_least_a_second(durations: list[float], attained: float) -> None:
    ordered = tuple(sorted(durations))
    seen = ServiceHistory({POOL: ordered, ServiceClass(ADA, 4): ordered})
    found = RemainingService(seen, SchedulingConfig(), {ServiceClass(ADA, 4): durations}).remaining_s(ADA, 4, attained)
    assert 1.0 <= found < math.inf
