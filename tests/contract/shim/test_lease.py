"""The lease of an exclusive task: warned, frozen, thawed, given up. With the freezer and without."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from corral.agent.cgroup import probe
from corral.agent.shim.handle import TaskHandle, write_lease
from corral.agent.shim.linux import boottime_s
from tests import needs
from tests.contract.shim.shimworld import ShimWorld, child_of, gone, log_of, pid_in, shim_of, state_of
from tests.waiting import wait_until

COUNTER = "import sys, time\ni = 0\nwhile True:\n    i += 1; print(i, flush=True); time.sleep(0.01)\n"


@pytest.fixture(params=["freezer", "signals"])
def freezing(request: pytest.FixtureRequest) -> bool:
    if request.param == "freezer":
        needs.root()
        if "freezer" not in probe().controllers:
            needs.unmet(f"needs a freezer cgroup: {probe().missing['freezer']}")
    return request.param == "freezer"


def lease(world: ShimWorld, seconds: float, **fields: float) -> dict[str, Any]:
    path = world.directory / "lease"
    write_lease(path, boottime_s() + seconds)
    return {"path": str(path), "checkpoint_before_s": 0.0, "freeze_max_s": 600.0, **fields}


def renew(world: ShimWorld, seconds: float) -> None:
    write_lease(world.directory / "lease", boottime_s() + seconds)


def groups(world: ShimWorld, freezing: bool, number: int = 0) -> dict[str, Any] | None:
    if not freezing:
        return None
    name = f"{number}.0.0.1"
    return probe().for_task(name, str(world.directory / "tasks" / name), freezer=True)


def lines(handle: TaskHandle) -> int:
    return log_of(handle).count(b"\n")


def test_a_lease_that_is_renewed_changes_nothing(world: ShimWorld, freezing: bool) -> None:
    handle = world.python(code=COUNTER, lease=lease(world, 0.5), cgroup=groups(world, freezing))
    child_of(handle)
    renew(world, 3600)
    seen = lines(handle)
    wait_until(lambda: lines(handle) > seen + 150, what="the task to go on beyond its first lease")
    assert world.event()["event"] == "started"
    assert handle.stop("cancelled", 5)
    assert world.event()["event"] == "exited"


def test_it_is_frozen_at_the_deadline_and_thawed_by_contact(world: ShimWorld, freezing: bool) -> None:
    handle = world.python(code=COUNTER, lease=lease(world, 0.4), cgroup=groups(world, freezing))
    world.wait_event("frozen")
    frozen_at = lines(handle)
    if not freezing:
        assert state_of(child_of(handle)) == "T"
    assert frozen_at > 0
    # Nothing is written by a frozen task, however long one looks: here until the shim has looked at the lease twice.
    renew(world, -1.0)
    before = boottime_s()
    wait_until(lambda: boottime_s() > before + 2.2)
    assert lines(handle) == frozen_at
    renew(world, 3600)
    world.wait_event("thawed")
    wait_until(lambda: lines(handle) > frozen_at + 5, what="the task to go on")
    assert handle.stop("cancelled", 20)
    status = world.end(handle)
    assert status["cause"] == "cancelled"
    assert status["paused_s"] >= 2


def test_the_whole_tree_is_frozen(world: ShimWorld, freezing: bool) -> None:
    loop = 'while :; do echo . >> "$1"; sleep 0.01; done'
    script = f"setsid bash -c '{loop}' a one & (bash -c '{loop}' b two & wait) & wait"
    handle = world.launch(script=script, lease=lease(world, 0.6), cgroup=groups(world, freezing))
    world.wait_event("frozen")

    def sizes() -> list[int]:
        return [(world.directory / name).stat().st_size for name in ("one", "two")]

    frozen_at, before = sizes(), boottime_s()
    wait_until(lambda: boottime_s() > before + 0.3)
    assert sizes() == frozen_at
    renew(world, 3600)
    wait_until(lambda: all(now > then for now, then in zip(sizes(), frozen_at, strict=True)), what="both to go on")
    assert handle.stop("cancelled", 20)
    world.end(handle)


def test_the_checkpoint_signal_comes_once_before(world: ShimWorld, freezing: bool) -> None:
    script = "trap 'echo saving' USR1; echo up; while :; do sleep 0.02; done"
    handle = world.launch(
        script=script,
        checkpoint_signal="USR1",
        lease=lease(world, 2.5, checkpoint_before_s=1.2),
        cgroup=groups(world, freezing),
    )
    assert world.wait_event("checkpoint")["processes"] == 1
    world.wait_event("frozen")
    assert log_of(handle) == b"up\nsaving\n"
    assert handle.stop("cancelled", 20)
    world.end(handle)


def test_it_is_killed_after_the_longest_freeze(world: ShimWorld, freezing: bool) -> None:
    handle = world.launch(
        script="trap 'echo no; exit' TERM; while :; do sleep 0.02; done",
        lease=lease(world, 0.3, freeze_max_s=0.5),
        cgroup=groups(world, freezing),
    )
    status = world.end(handle)
    assert (status["cause"], status["signal"]) == ("lease-expired", 9)
    # It never ran again, not even to end itself.
    assert log_of(handle) == b"corral: no contact for 0.5 s after the lease had run out\n"


def test_a_stop_does_not_wake_a_frozen_task(world: ShimWorld, freezing: bool) -> None:
    handle = world.launch(
        script="trap 'echo woken; exit' TERM; echo up; while :; do sleep 0.02; done",
        lease=lease(world, 0.5),
        cgroup=groups(world, freezing),
    )
    world.wait_event("frozen")
    assert handle.stop("cancelled", 600)
    status = world.end(handle)
    assert (status["cause"], status["signal"]) == ("cancelled", 9)
    assert b"woken" not in log_of(handle)


def test_without_a_lease_file_nothing_runs(world: ShimWorld) -> None:
    spec = lease(world, 3600)
    (world.directory / "lease").unlink()
    handle = world.launch(script="echo ran", lease=spec)
    world.wait_event("frozen")
    assert (handle.shim() or {}).get("child_pid") is None
    renew(world, 3600)
    assert world.end(handle)["exit_code"] == 0
    assert log_of(handle) == b"ran\n"


def test_a_task_that_waits_for_its_lease_can_be_stopped_and_has_not_even_set_up(world: ShimWorld) -> None:
    spec = lease(world, -1.0)
    setup = {"script": "echo set up", "marker": str(world.directory / "setup")}
    handle = world.launch(script="echo ran", setup=setup, lease=spec)
    world.wait_event("frozen")
    wait_until(handle.shim, what="the shim to say who it is")
    assert handle.stop("cancelled", 600)
    status = world.end(handle)
    assert status["cause"] == "cancelled"
    assert status["started_at"] is None
    assert log_of(handle) == b"corral: stopped: cancelled\n"


def test_contact_does_not_thaw_a_task_that_is_to_end(world: ShimWorld, freezing: bool) -> None:
    script = "trap 'echo woken; exit' TERM; echo up; while :; do echo on; sleep 0.005; done"
    handle = world.launch(script=script, lease=lease(world, 0.5), cgroup=groups(world, freezing))
    world.wait_event("frozen")
    frozen_at = len(log_of(handle))
    # The shim is held up so that it sees both at once.
    os.kill(shim_of(handle), signal.SIGSTOP)
    assert handle.stop("cancelled", 0)
    renew(world, 3600)
    os.kill(shim_of(handle), signal.SIGCONT)
    assert world.end(handle)["cause"] == "cancelled"
    assert log_of(handle)[frozen_at:].replace(b"on\n", b"") == b"corral: stopped: cancelled\n"


def test_a_lease_file_that_vanishes_keeps_its_last_deadline(world: ShimWorld) -> None:
    handle = world.python(code=COUNTER, lease=lease(world, 1.5))
    world.wait_event("started")
    (world.directory / "lease").write_text("what?\n")
    seen = lines(handle)
    wait_until(lambda: lines(handle) > seen + 20)
    world.wait_event("frozen")
    assert handle.stop("cancelled", 5)
    world.end(handle)


def test_a_process_that_was_stopped_by_its_own_stays_stopped(world: ShimWorld) -> None:
    script = "sleep 600 & echo $! > pid; kill -STOP $!; wait"
    handle = world.launch(script=script, lease=lease(world, 0.6))
    sleeper = pid_in(world.directory / "pid")
    world.wait_event("frozen")
    renew(world, 3600)
    world.wait_event("thawed")
    wait_until(lambda: state_of(child_of(handle)) != "T", what="the shell to be awake")
    assert state_of(sleeper) == "T"
    assert handle.stop("cancelled", 5)
    world.end(handle)
    assert gone(sleeper)


def test_the_time_limit_stands_still_while_frozen(world: ShimWorld) -> None:
    handle = world.python(code=COUNTER, lease=lease(world, 0.2), max_duration_s=1.5, grace_s=20)
    world.wait_event("frozen")
    before = boottime_s()
    wait_until(lambda: boottime_s() > before + 2.0)
    assert handle.status() is None
    renew(world, 3600)
    status = world.end(handle)
    assert status["cause"] == "max-duration"
    assert status["ran_s"] - status["paused_s"] >= 1.4
