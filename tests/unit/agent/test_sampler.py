from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence

import pytest

from corral.agent import release, sampler
from corral.agent.release import ReleaseCheck, Releases
from corral.agent.sampler import DeviceSampler, Look
from corral.model.errors import DeviceProbeFailed
from corral.model.ids import DeviceId
from corral.model.resources import DeviceSpec, DeviceState, ForeignProcess, Health
from tests.unit.agent.words import GPU, OTHER_GPU
from tests.waiting import wait_until_async

SPEC = DeviceSpec(GPU, "H100", "nvidia", 81559, 0)
HEALTHY = DeviceState(GPU, Health.HEALTHY, memory_used_mib=4)


class Driver:
    """A probe whose answers and delays the test decides: a driver that can hang, refuse and change."""

    vendor = "nvidia"

    def __init__(self, *states: DeviceState) -> None:
        self.states = states
        self.fault: str | None = None
        self.answers = threading.Event()
        self.answers.set()
        self.looks = 0
        self.own: list[Sequence[int]] = []

    def discover(self) -> tuple[DeviceSpec, ...]:
        self._obey()
        return (SPEC,)

    def sample(self, own_pids: Sequence[int]) -> tuple[DeviceState, ...]:
        self._obey()
        self.looks += 1
        self.own.append(own_pids)
        return self.states

    def close(self) -> None:
        pass

    def _obey(self) -> None:
        assert self.answers.wait(30.0)
        if self.fault is not None:
            raise DeviceProbeFailed(self.fault)


class Own:
    def __init__(self, known: Sequence[int] = (), fresh: Sequence[int] = ()) -> None:
        self._known = list(known)
        self._fresh = list(fresh)

    def known(self) -> list[int]:
        return self._known

    def refresh(self) -> list[int]:
        return self._fresh


def play(scenario: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        await asyncio.wait_for(scenario(), 30.0)

    asyncio.run(whole())


def test_a_look_finds_devices_and_states() -> None:
    async def scenario() -> None:
        seen: list[Look] = []
        driver = Driver(HEALTHY)
        looking = DeviceSampler([driver], Own(), seen.append)
        assert looking.states([SPEC]) == (DeviceState(GPU, Health.UNKNOWN, detail="not looked at yet"),)
        looking.start()
        look = await looking.request()
        assert look == Look((SPEC,), (HEALTHY,))
        assert seen == [look]
        assert looking.states([SPEC]) == (HEALTHY,)
        looking.stop()

    play(scenario)


def test_requests_that_wait_share_a_look_that_begins_after_them() -> None:
    async def scenario() -> None:
        driver = Driver(HEALTHY)
        looking = DeviceSampler([driver], Own(), lambda _: None)
        looking.start()
        driver.answers.clear()
        first = looking.request()
        others = [looking.request() for _ in range(5)]
        assert len(set(map(id, others))) == 1
        assert others[0] is not first
        driver.answers.set()
        await asyncio.gather(first, *others)
        assert driver.looks == 2
        looking.stop()

    play(scenario)


def test_a_hanging_driver_makes_devices_unknown_and_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "HANGING_S", 0.05)

    async def scenario() -> None:
        driver = Driver(HEALTHY, DeviceState(OTHER_GPU, Health.FAILED, detail="XID 79"))
        looking = DeviceSampler([driver], Own(), lambda _: None)
        looking.start()
        await looking.request()
        driver.answers.clear()
        hanging = looking.request()
        other = DeviceSpec(OTHER_GPU, "H100", "nvidia", 81559, 1)
        await wait_until_async(lambda: looking.states([SPEC])[0].health is Health.UNKNOWN)
        known, failed = looking.states([SPEC, other])
        assert known.detail is not None
        assert known.detail.startswith("the driver has not answered for")
        # What had failed is not better for that.
        assert (failed.health, failed.detail) == (Health.FAILED, "XID 79")
        driver.answers.set()
        await hanging
        assert looking.states([SPEC]) == (HEALTHY,)
        looking.stop()

    play(scenario)


def test_a_driver_that_refuses_is_asked_again() -> None:
    async def scenario() -> None:
        driver = Driver(HEALTHY)
        driver.fault = "driver and library do not match"
        looking = DeviceSampler([driver], Own(), lambda _: None)
        looking.start()
        look = await looking.request()
        assert look == Look((), (), "nvidia: driver and library do not match")
        assert looking.states([SPEC])[0].detail == look.fault
        driver.fault = None
        assert await looking.request() == Look((SPEC,), (HEALTHY,))
        driver.fault = "the library was replaced"
        broken = await looking.request()
        assert broken.devices == (SPEC,)
        assert [(state.health, state.detail) for state in broken.states] == [
            (Health.UNKNOWN, "nvidia: the library was replaced")
        ]
        looking.stop()

    play(scenario)


def test_a_process_that_a_task_just_started_is_no_stranger() -> None:
    async def scenario() -> None:
        driver = Driver(DeviceState(GPU, Health.HEALTHY, foreign=(ForeignProcess(77, 10),)))
        looking = DeviceSampler([driver], Own(known=[5], fresh=[5, 77]), lambda _: None)
        looking.start()
        await looking.request()
        await looking.request()
        assert driver.own[-2:] == [[5], [5, 77]]
        looking.stop()

    play(scenario)


def test_a_node_without_probes_has_no_devices() -> None:
    looking = DeviceSampler([], Own(), lambda _: None)
    assert looking.last == Look((), ())
    assert looking.states([]) == ()


# ---- release ---------------------------------------------------------------------------------------------------------


def state(used: int | None = None, *pids: int, foreign: int | None = None) -> DeviceState:
    strangers = () if foreign is None else (ForeignProcess(foreign, 10),)
    return DeviceState(GPU, Health.HEALTHY, memory_used_mib=used, pids=pids, foreign=strangers)


def unreleased(
    now: DeviceState, *, idle: int | None = 3, held: dict[DeviceId, int] | None = None, pids: Sequence[int] = (77,)
) -> str | None:
    check = ReleaseCheck()
    if idle is not None:
        check.observe([state(idle)], {})
    return check.unreleased([now], [GPU], held or {}, frozenset(pids))


def test_a_free_device_is_released() -> None:
    assert unreleased(state(3)) is None
    assert unreleased(state(3 + release.SLACK_MIB)) is None
    assert unreleased(state(None)) is None
    assert unreleased(DeviceState(GPU, Health.FAILED)) is None


def test_memory_that_is_not_given_back_is_told() -> None:
    assert unreleased(state(500)) == "device GPU-0 still uses 500 MiB, 3 MiB when idle"
    # Without a comparison nothing can be said, nor on a device that others use.
    assert unreleased(state(500), idle=None) is None
    assert unreleased(state(500), held={GPU: 1}) is None
    assert unreleased(state(500, foreign=9)) is None


def test_processes_of_the_task_that_the_driver_still_lists_are_told() -> None:
    assert unreleased(state(3, foreign=77)) == "device GPU-0 still lists process 77 of the task"
    assert unreleased(state(3, 77), held={GPU: 1}) == "device GPU-0 still lists process 77 of the task"


def test_a_device_that_nobody_knows_anything_of_is_not_released() -> None:
    assert unreleased(DeviceState(GPU, Health.UNKNOWN)) == "the state of device GPU-0 is unknown"
    assert unreleased(DeviceState(OTHER_GPU, Health.HEALTHY)) == "the state of device GPU-0 is unknown"


def test_a_held_device_teaches_nothing() -> None:
    check = ReleaseCheck()
    check.observe([state(3)], {})
    check.observe([state(40_000)], {GPU: 1})
    check.observe([state(40_000, 77)], {})
    assert check.unreleased([state(500)], [GPU], {}, frozenset()) is not None


def waits(driver: Driver, limit_s: float) -> tuple[DeviceSampler, Releases]:
    def observe(look: Look) -> None:
        releases.observe(look)

    looking = DeviceSampler([driver], Own(), observe)
    releases = Releases(looking, {}, limit_s)
    return looking, releases


def test_an_end_waits_for_the_driver() -> None:
    async def scenario() -> None:
        driver = Driver(state(3))
        looking, releases = waits(driver, 30.0)
        looking.start()
        await looking.request()
        driver.states = (state(9000, 77),)
        done: list[str | None] = []
        releases.verify((), frozenset(), done.append)
        assert done == [None]
        releases.verify((GPU,), frozenset({77}), done.append)
        looks = driver.looks
        await wait_until_async(lambda: driver.looks >= looks + 3)
        assert done == [None]
        driver.states = (state(4),)
        await wait_until_async(lambda: len(done) == 2)
        assert done == [None, None]
        looking.stop()

    play(scenario)


@pytest.mark.parametrize(
    "hangs, expected",
    [
        (False, "device GPU-0 still uses 9000 MiB, 3 MiB when idle 0.05 s after the end"),
        (True, "the device driver did not answer 0.05 s after the end"),
    ],
)
def test_an_end_does_not_wait_for_ever(hangs: bool, expected: str) -> None:
    async def scenario() -> None:
        driver = Driver(state(3))
        looking, releases = waits(driver, 0.05)
        looking.start()
        await looking.request()
        driver.states = (state(9000),)
        if hangs:
            driver.answers.clear()
        done: list[str | None] = []
        releases.verify((GPU,), frozenset(), done.append)

        def given_up() -> bool:
            # A look has to come back first where one can.
            if hangs or driver.looks >= 2:
                releases.give_up()
            return bool(done)

        await wait_until_async(given_up)
        assert done == [expected]
        driver.answers.set()
        looking.stop()

    play(scenario)
