"""Quantities as people write them; the right values are worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.wire import units


@pytest.mark.parametrize(
    "text,seconds",
    [
        ("90", 90.0),
        ("0.5", 0.5),
        ("90s", 90.0),
        ("2h30m", 9_000.0),
        ("2h 30m", 9_000.0),
        ("1d2h", 93_600.0),
        ("1w", 604_800.0),
        ("1.5h", 5_400.0),
        ("500ms", 0.5),
        ("5minutes", 300.0),
        ("1hr", 3_600.0),
        ("2 weeks", 1_209_600.0),
        ("2H", 7_200.0),
        ("01:30:00", 5_400.0),
        ("1-00:00:00", 86_400.0),
        ("2-03:04:05", 183_845.0),
    ],
)
def test_a_duration_is_read_in_seconds(text: str, seconds: float) -> None:
    assert units.read_duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    ["", "  ", "h", "2x", "-5", "2h-3m", "1:2:3:4", "inf", "nan", "1e3", "99999999999", "11000d", "9" * 400, "½h"],
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(units.Unreadable):
        units.read_duration_s(text)


def test_a_clock_of_two_parts_is_ambiguous_and_both_meanings_are_offered() -> None:
    with pytest.raises(units.Unreadable) as caught:
        units.read_duration_s("1:30")
    assert (caught.value.message, caught.value.hint) == ("is ambiguous", "write 1h30m or 1m30s")


@pytest.mark.parametrize(
    "text,mib",
    [
        ("16", 16_384),  # a bare number is GiB, as in SkyPilot
        ("1GiB", 1_024),
        ("1G", 1_024),
        ("1Gi", 1_024),
        ("512MiB", 512),
        ("512m", 512),
        ("1GB", 954),  # 10^9 / 2^20 = 953.67, rounded up
        ("32 gb", 30_518),  # 32 * 953.674 = 30517.6
        ("1T", 1_048_576),
        ("1k", 1),
        ("0.5", 512),
    ],
)
def test_memory_is_read_in_mib_rounded_up(text: str, mib: int) -> None:
    assert units.read_memory_mib(text) == mib


@pytest.mark.parametrize("text", ["", "0", "0GB", "-1", "lots", "1PB", "1e9", "9999999T", "16+", "1 G B"])
def test_what_is_no_memory_is_refused(text: str) -> None:
    with pytest.raises(units.Unreadable):
        units.read_memory_mib(text)


@pytest.mark.parametrize("text,milli", [("4", 4_000), ("0.5", 500), ("500m", 500), ("1m", 1), ("2.25", 2_250)])
def test_cpus_are_read_in_milli(text: str, milli: int) -> None:
    assert units.read_cpus_milli(text) == milli


def test_every_thousandth_of_a_cpu_is_read() -> None:
    """1.001 * 1000 is 1000.9999999999999 in binary; the digits say 1001."""
    for whole in (0, 1, 7, 1_023):
        for milli in range(1, 1_000):
            assert units.read_cpus_milli(f"{whole}.{milli:03}") == whole * 1_000 + milli


@pytest.mark.parametrize("read", [units.read_memory_mib, units.read_cpus_milli, units.read_gpus_milli])
def test_a_long_text_is_refused_whole_and_not_cut(read: Callable[[str], int]) -> None:
    for text in ("1" + " " * 80 + "GB", "1." + "0" * 80 + "1", "9" * 80):
        with pytest.raises(units.Unreadable):
            read(text)


@pytest.mark.parametrize("text", ["", "0", "0.0001", "0.5m", "-1", "many", "2000000", "1e2"])
def test_what_is_no_number_of_cpus_is_refused(text: str) -> None:
    with pytest.raises(units.Unreadable):
        units.read_cpus_milli(text)


def test_more_or_equal_is_not_offered_and_the_number_is() -> None:
    with pytest.raises(units.Unreadable) as caught:
        units.read_cpus_milli("4+")
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("write 4:")


@pytest.mark.parametrize(
    "text,indices",
    [
        ("0-3", (0, 1, 2, 3)),
        ("0-7:3", (0, 3, 6)),
        ("1,3,5-7", (1, 3, 5, 6, 7)),
        ("5", (5,)),
        (" 2 , 1 ", (2, 1)),
    ],
)
def test_indices_are_read_in_the_order_written(text: str, indices: tuple[int, ...]) -> None:
    assert units.read_indices(text) == indices


@pytest.mark.parametrize("text", ["", "a", "3-1", "0-3:0", "1,1", "0-99999999", "-1", "0-3%2", "0..3", "1,", "0-9,5"])
def test_what_are_no_indices_is_refused(text: str) -> None:
    with pytest.raises(units.Unreadable):
        units.read_indices(text)


@given(st.integers(1, units.CPUS_MAX * 1000))
def test_written_cpus_read_back(milli: int) -> None:
    assert units.read_cpus_milli(units.written_cpus(milli)) == milli


@given(st.integers(1, units.MEMORY_MIB_MAX))
def test_written_memory_reads_back(mib: int) -> None:
    assert units.read_memory_mib(units.written_memory(mib)) == mib


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    for read in (
        units.read_duration_s,
        units.read_memory_mib,
        units.read_cpus_milli,
        units.read_gpus_milli,
        units.read_indices,
    ):
        with suppress(units.Unreadable):
            read(text)


@given(st.floats())
def test_seconds_are_finite_and_not_negative(number: float) -> None:
    try:
        assert 0 <= units.bounded_s(number) < math.inf
    except units.Unreadable:
        assert not 0 <= number <= units.DURATION_S_MAX
