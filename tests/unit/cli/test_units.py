"""Quantities as people read them."""

from __future__ import annotations

from datetime import UTC, timedelta, timezone

import pytest

from corral.cli.render import units
from corral.model.resources import Amount

NOON = 1_764_504_000.0  # 2025-11-30 12:00:00 UTC, a Sunday


@pytest.mark.parametrize(
    "seconds,text",
    [
        (None, "-"),
        (-3.0, "0s"),
        (0.0, "0s"),
        (0.004, "0s"),
        (0.04, "0.04s"),
        (0.42, "0.42s"),
        (0.996, "1.0s"),
        (9.94, "9.9s"),
        (9.96, "10s"),
        (59.4, "59s"),
        (59.6, "1m00s"),
        (192.0, "3m12s"),
        (3599.4, "59m59s"),
        (3599.6, "1h00m"),
        (7500.0, "2h05m"),
        (86_399.0, "1d00h"),
        (3 * 86_400 + 4 * 3600 + 60, "3d04h"),
        (400 * 86_400.0, "400d00h"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert units.duration(seconds) == text


def test_moments_are_local_and_say_the_day_only_when_it_is_another() -> None:
    assert units.moment(NOON, NOON + 60, UTC) == "12:00:00"
    assert units.moment(NOON, NOON + 60, timezone(timedelta(hours=8))) == "20:00:00"
    assert units.moment(NOON, NOON + 86_400, UTC) == "Nov 30 12:00"
    assert units.moment(NOON, NOON + 86_400 * 40, UTC) == "2025-11-30 12:00"
    assert units.moment(None, NOON, UTC) == "-"
    assert units.stamp(NOON, UTC) == "2025-11-30 12:00:00"


@pytest.mark.parametrize(
    "earliest,latest,text",
    [
        (NOON + 600, NOON + 1800, "12:10 to 12:30"),
        (NOON + 600, NOON + 610, "12:10"),
        (NOON + 600, None, "not before 12:10, maybe much later"),
        (NOON - 1, None, "at any moment, or much later"),
        (NOON - 5, NOON - 5, "now"),
        (NOON - 5, NOON + 300, "by 12:05"),
        (NOON + 30, NOON + 40, "12:00:30 to 12:00:40"),
        (NOON + 82_800, NOON + 90_000, "Dec 01 11:00 to Dec 01 13:00"),
    ],
)
def test_expected_times_are_ranges(earliest: float, latest: float | None, text: str) -> None:
    assert units.span(earliest, latest, NOON, UTC) == text


def test_amounts() -> None:
    assert units.milli(2500) == "2.5"
    assert units.milli(125) == "0.125"
    assert units.milli(8000) == "8"
    assert units.milli(0) == "0"
    assert units.milli(None) == "-"
    assert units.memory(512) == "512 MiB"
    assert units.memory(81_559) == "79.6 GiB"
    assert units.memory(1024 * 1536) == "1.5 TiB"
    assert units.memory(None) == "-"
    assert units.of_memory(2970, 81_920) == "2.9/80 GiB"
    assert units.of_memory(None, 512) == "-/512 MiB"
    assert units.percent(1 / 3) == "33.3%"
    assert units.percent(None) == "-"
    assert units.gpu_hours(0.0) == "0.00"
    assert units.gpu_hours(0.0012) == "0.0012"
    assert units.gpu_hours(0.00001) == "<0.0001"
    assert units.gpu_hours(12.345) == "12.35"
    assert units.gpu_hours(1234.5) == "1234"
    assert units.counted(1, "node") == "1 node"
    assert units.counted(0, "node") == "0 nodes"
    assert units.amount_words(Amount(1000, 1000, 1024)) == "1 GPU, 1 CPU, 1 GiB"
    assert units.amount_words(Amount(500, 250, 0)) == "0.5 GPUs, 0.25 CPUs"
    assert units.amount_words(Amount()) == "nothing"
    assert units.gang_name("12", 0) == "12"
    assert units.gang_name("12", 3) == "12.3"
