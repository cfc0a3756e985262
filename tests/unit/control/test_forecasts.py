"""Forecasts are made for what waits and compared with the starts that come."""

from __future__ import annotations

from corral.control.forecasts import EVERY_S, Forecasts, Made
from corral.model.ask import JobAsk
from corral.model.ids import GangKey, JobId
from corral.model.report import ForecastQuality
from tests.unit.control.world import World


def ask(name: str, gpus: int, lasts: float) -> JobAsk:
    return JobAsk(name=name, argv=("true",), gpu_milli=gpus * 1_000, max_duration_s=lasts, grace_s=0.0)


def pass_time(world: World, seconds: int) -> None:
    for _ in range(seconds):
        world.advance(1.0)
        world.heartbeat("n0")


def test_nothing_is_said_before_a_forecast_came_to_an_end() -> None:
    assert Forecasts().quality() is None


def test_a_start_is_compared_with_what_was_expected() -> None:
    world = World(n0=4)
    (first,) = world.submit(ask("first", 4, 100.0))
    world.start(first)
    (second,) = world.submit(ask("second", 4, 50.0))
    # All declared their ends: between now and the declared end of the first, which comes 40 s early.
    pass_time(world, 60)
    world.end(first)
    assert world.placed_on(second) == ["n0"]
    quality = world.core.book.forecasts.quality()
    assert quality is not None
    assert quality.forecasts == 1
    assert quality.inside == 1.0
    # The middle of the range lies half way between the first sample (within 5 s of its submission) and second 100.
    assert 60.0 - (EVERY_S + 100.0) / 2 <= quality.off_s <= 60.0 - 100.0 / 2


def test_each_gang_gets_one_forecast_and_loses_it_when_it_ends_unstarted() -> None:
    forecasts = Forecasts()
    world = World(n0=1)
    world.core.book.forecasts = forecasts
    world.submit(ask("holds", 1, 100.0))
    (waiting,) = world.submit(ask("waits", 1, 100.0))
    pass_time(world, 20)
    assert len(forecasts._made) == 1
    forecasts.dropped(GangKey(JobId(waiting), 0))
    forecasts.started(GangKey(JobId(waiting), 0), world.now)
    assert forecasts.quality() is None


def test_the_quality_is_that_of_the_newest_outcomes() -> None:
    forecasts = Forecasts()
    for number, (earliest, latest, start) in enumerate([(0.0, 10.0, 5.0), (0.0, 10.0, 20.0), (10.0, 20.0, 16.0)]):
        key = GangKey(JobId(str(number)), 0)
        forecasts._made[key] = Made(0.0, earliest, latest)
        forecasts.started(key, start)
    # Distances from the middles: 0, 15 and 1.
    assert forecasts.quality() == ForecastQuality(3, 2 / 3, 1.0)
