"""A virtual process: asyncio on its host's clock, stopped and killed at will."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from corral.model.errors import SimulationStuck
from corral.sim.storm.clocks import HostClock, SteadyClock
from corral.sim.storm.course import Course
from corral.sim.storm.process import Process


class Ground:
    """A course with one process on a clock of some rate; blocking calls take a second of true time."""

    def __init__(self, rate: float = 1.0) -> None:
        self.course = Course(1)
        self.clock = HostClock(self.course, rate=rate, boot_s=500.0, ahead_s=0.0)
        self.process = Process(self.course, self.clock, self.call)
        self.said: list[tuple[float, object]] = []

    def call(self, work: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        self.course.after(1.0, lambda: None if future.done() else future.set_result(work()))

    def say(self, what: object) -> None:
        self.said.append((round(self.course.now, 3), what))

    def run(self, until: float) -> None:
        while self.course.step(until):
            pass


def test_coroutines_sleep_wait_and_time_out_on_the_clock_of_their_host() -> None:
    ground = Ground(rate=2.0)
    bell = asyncio.Event()

    async def main() -> None:
        await asyncio.sleep(3.0)
        ground.say("slept")
        try:
            await asyncio.wait_for(bell.wait(), 4.0)
        except TimeoutError:
            ground.say("nobody rang")
        ground.say(await ground.process.run_in_executor(None, lambda: "answer"))

    ground.process.create_task(main())
    ground.run(60.0)
    # The clock counts twice as fast as true time: 3 s are over after 1.5 s, 4 s after 2 s more.
    assert ground.said == [(1.5, "slept"), (3.5, "nobody rang"), (4.5, "answer")]


def test_a_stopped_process_does_nothing_and_then_all_at_once() -> None:
    ground = Ground()

    async def main() -> None:
        for number in range(4):
            ground.say(number)
            await asyncio.sleep(1.0)

    ground.process.create_task(main())
    ground.course.after(1.5, ground.process.stop_running)
    ground.course.after(7.0, ground.process.go_on)
    ground.run(60.0)
    assert ground.said == [(0.0, 0), (1.0, 1), (7.0, 2), (8.0, 3)]


def test_a_killed_process_unwinds_and_calls_nobody() -> None:
    ground = Ground()

    async def main() -> None:
        try:
            await asyncio.sleep(10.0)
        finally:
            ground.say("unwound")
            await ground.process.run_in_executor(None, lambda: ground.say("called"))
            ground.say("answered")

    ground.process.create_task(main())
    ground.course.after(2.0, ground.process.kill)
    ground.run(60.0)
    assert ground.said == [(2.0, "unwound")]


def test_what_nobody_caught_is_kept() -> None:
    ground = Ground()
    ground.process.call_soon(lambda: 1 / 0)
    ground.run(1.0)
    [fault] = ground.process.faults
    assert "ZeroDivisionError" in fault


def test_a_process_that_never_rests_is_an_error() -> None:
    ground = Ground()

    def again() -> None:
        ground.process.call_soon(again)

    ground.process.call_soon(again)
    with pytest.raises(SimulationStuck, match="never comes to rest"):
        ground.run(1.0)


def test_events_of_one_instant_that_never_end_are_an_error() -> None:
    course = Course(1)

    def again() -> None:
        course.after(0.0, again)

    def pass_by() -> None:
        while course.step(1.0):
            pass

    course.after(0.0, again)
    with pytest.raises(SimulationStuck, match="there is no end of it"):
        pass_by()


def test_a_clock_of_the_pool_goes_on_from_the_newest_fact_whatever_the_wall_clock_says() -> None:
    course = Course(1)
    host = HostClock(course, rate=1.01, boot_s=50.0, ahead_s=-100.0)
    clock = SteadyClock(host, not_before=host.wall() + 40.0)
    begin = clock.now()
    course.after(100.0, lambda: None)
    assert course.step(200.0)
    host.ahead_s += 5_000.0
    assert clock.now() - begin == pytest.approx(101.0)
    assert clock.boottime() == pytest.approx(50.0 + 101.0)
    # The wall clock was 40 s behind at the beginning, ran right (100 s), and was set 5,000 s ahead.
    assert clock.wall_offset_s() == pytest.approx(-40.0 + 100.0 + 5_000.0 - 101.0)


def test_the_digest_tells_courses_apart() -> None:
    one, same, other = Course(1), Course(1), Course(2)
    for course, words in ((one, "a"), (same, "a"), (other, "b")):
        course.note("me", words)
    assert one.digest == same.digest != other.digest
    one.absorb(b"x")
    assert one.digest != same.digest
