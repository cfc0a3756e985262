from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from corral.devices import Absence, SimulatedProbe, discover
from corral.model.errors import DeviceProbeFailed
from corral.model.resources import DeviceSpec, DeviceState
from tests.native.fake_driver import FakeDriver

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = """
import json
from corral.devices import discover
found = discover()
print(json.dumps([[probe.vendor for probe in found.probes], [spec.model for spec in found.devices],
                  [[gap.vendor, gap.reason, gap.refused] for gap in found.absences]]))
"""


class Refusing:
    """A probe whose driver refuses."""

    vendor = "refusing"
    reason: str | None = None
    refused = False
    closed = False

    def discover(self) -> tuple[DeviceSpec, ...]:
        raise DeviceProbeFailed("the driver refuses: too old")

    def sample(self, own_pids: Sequence[int]) -> tuple[DeviceState, ...]:
        return ()

    def close(self) -> None:
        self.closed = True


def discovered(environment: dict[str, str]) -> list:
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ended.stderr == ""
    return json.loads(ended.stdout)


def test_a_machine_without_drivers_is_a_cpu_node_and_says_why_for_each_vendor(tmp_path: Path) -> None:
    probes, models, absences = discovered({"LD_LIBRARY_PATH": str(tmp_path), "ROCM_PATH": str(tmp_path)})
    assert (probes, models) == ([], [])
    assert [(vendor, refused) for vendor, _, refused in absences] == [("nvidia", False), ("amd", False)]
    assert all(reason for _, reason, _ in absences)


def test_the_vendor_that_answers_is_kept(driver: FakeDriver, built: Callable[..., Path]) -> None:
    probes, models, absences = discovered(driver.environment(built()))
    assert (probes, models) == (["nvidia"], ["H100", "H100"])
    assert [vendor for vendor, _, _ in absences] == ["amd"]


def test_a_driver_that_refuses_is_an_absence_to_look_at(driver: FakeDriver, built: Callable[..., Path]) -> None:
    driver.say("init", 18)
    probes, _, absences = discovered(driver.environment(built()))
    assert probes == []
    assert absences[0][0] == "nvidia"
    assert "version mismatch" in absences[0][1]
    assert absences[0][2] is True


def test_devices_that_were_left_out_are_told_beside_those_that_are_there(
    driver: FakeDriver, built: Callable[..., Path]
) -> None:
    driver.set(0, mig=1)
    probes, models, absences = discovered(driver.environment(built()))
    assert (probes, models) == (["nvidia"], ["H100"])
    assert "MIG mode is on" in absences[0][1]
    assert absences[0][2] is True


def test_one_refusing_driver_does_not_hide_another(tmp_path: Path) -> None:
    refusing, simulated = Refusing(), SimulatedProbe(tmp_path / "devices.json", "h100", 2, "n")
    found = discover([refusing, simulated, SimulatedProbe(tmp_path / "none.json", "h100", 0, "n")])
    assert found.probes == (simulated,)
    assert found.devices == simulated.discover()
    assert found.absences == (Absence("refusing", "the driver refuses: too old", refused=True),)
    assert refusing.closed
