"""A pool on NVIDIA devices, as a driver of our own reports them: found, given out, watched, scheduled around."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.command import Corral
from tests.native.fake_driver import FakeDriver
from tests.native.fake_nvml import build, driver_with
from tests.waiting import wait_until

DEVICES = 2


@pytest.fixture
def server() -> Iterator[tuple[Corral, FakeDriver]]:
    """Give a pool on a machine whose NVIDIA driver knows two H100."""
    folder = Path(tempfile.mkdtemp(prefix="c", dir="/tmp"))
    driver = driver_with(folder / "driver", DEVICES)
    corral = Corral(folder)
    corral.environment |= driver.environment(build(folder))
    try:
        corral.ok("up", "--port", "0")
        yield corral, driver
    finally:
        corral("down", "--force")
        shutil.rmtree(folder, ignore_errors=True)


def devices(corral: Corral) -> list[dict[str, Any]]:
    (node,) = corral.json("nodes")["nodes"]
    found: list[dict[str, Any]] = node["devices"]
    return found


def state(corral: Corral, job: str) -> str:
    return next(str(row["state"]) for row in corral.json("ps", "--all")["jobs"] if row["id"] == job)


def test_devices_are_found_by_uuid_and_given_to_tasks(server: tuple[Corral, FakeDriver]) -> None:
    corral, driver = server
    assert "2 x H100" in corral.ok("status")
    assert "SIMULATED" not in corral.ok("status")
    uuids = [device["uuid"] for device in driver.devices.values()]
    assert [device["spec"]["uuid"] for device in devices(corral)] == uuids
    out = corral.ok("run", "--gpus", "2", "--", "sh", "-c", "echo $CUDA_DEVICE_ORDER $CUDA_VISIBLE_DEVICES")
    assert out.split() == ["PCI_BUS_ID", ",".join(uuids)]
    driver.set(0, temp=66, used=1000)
    wait_until(lambda: devices(corral)[0]["state"]["temperature_c"] == 66, what="the temperature in `corral nodes`")


def test_a_device_that_vanishes_moves_its_task_and_comes_back_later(server: tuple[Corral, FakeDriver]) -> None:
    corral, driver = server
    job = corral.submit("--gpus", "1", "--", "sleep", "60")
    wait_until(lambda: state(corral, job) == "running", what="the job running")
    held = next(i for i, device in enumerate(devices(corral)) if device["held_milli"])
    driver.set(held, lost=15)
    other = 1 - held
    wait_until(lambda: devices(corral)[other]["held_milli"] == 1000, timeout_s=20, what="the job on the other device")
    wait_until(lambda: devices(corral)[held]["failed_reason"], what="the reason in `corral nodes`")
    assert corral.json("receipt", job)["moves"] == 1
    driver.set(held, lost=None)
    wait_until(lambda: devices(corral)[held]["failed_reason"] is None, timeout_s=20, what="the device healthy again")


def test_a_device_with_a_foreign_process_is_left_alone(server: tuple[Corral, FakeDriver]) -> None:
    corral, driver = server
    foreign = subprocess.Popen(["sleep", "60"])
    try:
        driver.set(0, compute=f"{foreign.pid}:5000", used=5000)
        wait_until(lambda: devices(corral)[0]["state"]["foreign"], what="the foreign process in `corral nodes`")
        jobs = [corral.submit("--gpus", "1", "--", "sleep", "60") for _ in range(2)]
        wait_until(lambda: state(corral, jobs[0]) == "running", what="the first job running")
        assert devices(corral)[1]["held_milli"] == 1000
        assert state(corral, jobs[1]) == "pending"
        driver.set(0, compute=None, used=4)
        wait_until(lambda: state(corral, jobs[1]) == "running", what="the second job on the freed device")
    finally:
        foreign.kill()
        foreign.wait()
