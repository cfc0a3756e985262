from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from corral.devices import SimulatedProbe, Unreleased, edit_state, unreleased, wait_released
from corral.model.ids import DeviceId
from corral.model.resources import DeviceState, ForeignProcess, Health

A, B = DeviceId("GPU-a"), DeviceId("GPU-b")


@pytest.mark.parametrize(
    "state,reason",
    [
        (DeviceState(A, Health.HEALTHY, memory_used_mib=4), None),
        (DeviceState(A, Health.HEALTHY, memory_used_mib=128), None),
        (DeviceState(A, Health.SUSPECT, memory_used_mib=0), None),
        (DeviceState(A, Health.HEALTHY), None),
        (DeviceState(A, Health.HEALTHY, memory_used_mib=9000, pids=(8,)), None),
        (
            DeviceState(A, Health.HEALTHY, memory_used_mib=129),
            "129 MiB are still in use, and no process is seen",
        ),
        (DeviceState(A, Health.HEALTHY, pids=(7, 8, 9)), "still on it: process 7, 9"),
        (DeviceState(A, Health.FAILED, detail="GPU is lost"), "GPU is lost"),
        (DeviceState(A, Health.UNKNOWN), "the device is unknown"),
        (DeviceState(B, Health.HEALTHY), "the device was not observed"),
    ],
)
def test_a_device_is_free_only_when_it_is_seen_to_be(state: DeviceState, reason: str | None) -> None:
    expected = () if reason is None else (Unreleased(A, reason),)
    assert unreleased((state,), (A,), (7, 9)) == expected


def test_waiting_ends_when_the_last_process_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "devices.json"
    probe = SimulatedProbe(path, "h100", 2, "n")
    uuids = [spec.uuid for spec in probe.discover()]
    edit_state(path, uuids[1], foreign=(ForeignProcess(7, 100),))
    waits: list[float] = []

    def let_it_go(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            edit_state(path, uuids[1])

    assert wait_released(probe, uuids, (7,), timeout_s=60.0, interval_s=0.25, sleep=let_it_go) == ()
    assert waits == [0.25] * 3


def test_waiting_ends_at_the_deadline_with_what_is_held(tmp_path: Path) -> None:
    path = tmp_path / "devices.json"
    probe = SimulatedProbe(path, "h100", 1, "n")
    uuids: Sequence[DeviceId] = [spec.uuid for spec in probe.discover()]
    edit_state(path, uuids[0], memory_used_mib=500)
    held = wait_released(probe, uuids, (7,), timeout_s=0.0)
    assert held == (Unreleased(uuids[0], "500 MiB are still in use, and no process is seen"),)
