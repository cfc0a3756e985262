"""The daemon's clock under wall clocks that jump."""

from __future__ import annotations

import pytest

from corral.runtime.leading.clock import SteadyClock


class Hands:
    def __init__(self) -> None:
        self.wall = 1000.0
        self.boot = 50.0


def clock(hands: Hands, not_before: float = 0.0) -> SteadyClock:
    return SteadyClock(not_before, lambda: hands.wall, lambda: hands.boot)


def test_a_wall_clock_set_back_or_ahead_does_not_move_the_time() -> None:
    hands = Hands()
    steady = clock(hands)
    hands.boot += 10.0
    hands.wall = 400.0
    assert steady.now() == pytest.approx(1010.0)
    assert steady.wall_offset_s() == pytest.approx(-610.0)
    hands.wall = 9000.0
    hands.boot += 1.0
    assert steady.now() == pytest.approx(1011.0)
    assert steady.wall_offset_s() == pytest.approx(7989.0)


def test_after_a_restart_with_the_clock_set_back_time_goes_on_from_the_journal() -> None:
    hands = Hands()
    steady = clock(hands, not_before=5000.0)
    assert steady.now() == pytest.approx(5000.0)
    hands.boot += 2.5
    assert steady.now() == pytest.approx(5002.5)
    assert steady.boottime() == pytest.approx(52.5)
