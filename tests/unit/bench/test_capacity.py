"""The parts of the capacity benchmark that need no pool."""

from __future__ import annotations

import os

import pytest

from bench import capacity


def test_memory_is_that_of_the_process_and_its_peak_is_no_less() -> None:
    figures = capacity.memory(os.getpid(), "now", "peak")
    assert 1.0 < float(figures["now"]) <= float(figures["peak"])
    assert capacity.memory(os.getpid(), "now").keys() == {"now"}


@pytest.mark.parametrize("make", [capacity._noop, capacity._waiter])
def test_a_submission_is_of_one_tenant_and_all_tenants_have_their_turn(make: object) -> None:
    assert callable(make)
    asks = [make(number) for number in range(6 * capacity.CHUNK)]
    chunks = [asks[start : start + capacity.CHUNK] for start in range(0, len(asks), capacity.CHUNK)]
    tenants = [{ask.tenant for ask in chunk} for chunk in chunks]
    assert tenants == [{name} for name in capacity.TENANTS] * 2
    assert len({ask.name for ask in asks}) == len(asks)


def test_times_have_a_median_and_a_percentile_by_name() -> None:
    calls: list[int] = []
    figures = capacity._times("what_ms", 5, calls.append)
    assert calls == [0, 1, 2, 3, 4]
    assert figures.keys() == {"what_ms_median", "what_ms_p99"}
    assert 0.0 <= float(figures["what_ms_median"]) <= float(figures["what_ms_p99"])
