from __future__ import annotations

import pytest

from corral.sim.clock import VirtualClock
from corral.sim.timeline import Timeline


def test_what_is_planned_comes_out_by_time_and_then_in_the_order_of_planning() -> None:
    line: Timeline[str] = Timeline()
    for at, what in ((2.0, "c"), (1.0, "a"), (2.0, "d"), (1.0, "b")):
        line.plan(at, what)
    assert (line.next_at, len(line)) == (1.0, 4)
    assert line.due(1.0) == ["a", "b"]
    assert line.due(5.0) == ["c", "d"]
    assert line.next_at is None


def test_a_virtual_clock_never_goes_back() -> None:
    clock = VirtualClock()
    clock.advance(3.0)
    assert (clock.now(), clock.boottime(), clock.wall_offset_s()) == (3.0, 3.0, 0.0)
    with pytest.raises(ValueError, match="cannot go back"):
        clock.advance(2.0)
