from __future__ import annotations

import threading

import pytest

from bench.parallel import in_threads


def test_every_number_comes_once() -> None:
    seen: list[int] = []
    in_threads(1_000, 7, seen.append)
    assert sorted(seen) == list(range(1_000))


def test_so_many_calls_are_under_way_at_a_time() -> None:
    meet = threading.Barrier(3, timeout=20)
    in_threads(3, 3, lambda _: meet.wait())
    assert not meet.broken


def test_the_first_failure_stops_the_others_and_is_raised() -> None:
    seen: list[int] = []
    failed = threading.Event()

    def act(number: int) -> None:
        if number == 0:
            failed.set()
            raise ValueError("the first")
        failed.wait(20)
        seen.append(number)

    with pytest.raises(ValueError, match="the first"):
        in_threads(100_000_000, 2, act)
    assert len(seen) < 100_000_000
