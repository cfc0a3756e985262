"""The AMD probe over the real Python package amdsmi, whose library is ours."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from corral.devices import AmdProbe
from corral.model.ids import DeviceId
from corral.model.resources import DeviceSpec, DeviceState, ForeignProcess, Health
from tests.native.fake_amdsmi import build, driver_with
from tests.native.fake_driver import FakeDriver
from tests.unit.devices.conftest import AskedProbe

UUIDS = [DeviceId(f"GPU-e9b388cfe84658{index:02x}") for index in range(2)]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("native"))


@pytest.fixture
def driver(tmp_path: Path) -> FakeDriver:
    return driver_with(tmp_path / "amdsmi", 2)


@pytest.fixture
def probe(driver: FakeDriver, library: Path, start: Callable[..., AskedProbe]) -> AskedProbe:
    return start("amd", driver.environment(library))


def test_devices_are_found_with_all_that_the_driver_tells(probe: AskedProbe) -> None:
    found = probe.discover()
    assert found.reason is None
    assert found.specs == (
        DeviceSpec(UUIDS[0], "MI300X", "amd", 196592, 0, island=0),
        DeviceSpec(UUIDS[1], "MI300X", "amd", 196592, 1, island=1),
    )
    assert probe.sample() == tuple(DeviceState(uuid, Health.HEALTHY, 285, 0.0, 40.0, 135.0) for uuid in UUIDS)


def test_devices_are_in_the_order_of_the_pci_bus(driver: FakeDriver, probe: AskedProbe) -> None:
    driver.set(0, bus=0xC1)
    assert [(spec.uuid, spec.index) for spec in probe.discover().specs] == [(UUIDS[1], 0), (UUIDS[0], 1)]


def test_xgmi_makes_islands(tmp_path: Path, library: Path, start: Callable[..., AskedProbe]) -> None:
    driver = driver_with(tmp_path / "three", 3)
    driver.say("xgmi 1", 2)
    assert [spec.island for spec in start("amd", driver.environment(library)).discover().specs] == [0, 1, 1]


@pytest.mark.parametrize(
    "fields,uuid",
    [
        ({"hip": "GPU-0xE9B388CFE8465800"}, "GPU-e9b388cfe8465800"),
        ({"hip": None}, "GPU-e9b388cfe8465800"),
        ({"hip": None, "serial": "0x12AB"}, "GPU-00000000000012ab"),
        ({"hip": "GPU-0000000000000000", "serial": "0x0"}, "00ff74a1-0000-1000-80e9-b388cfe84658"),
        ({"hip": None, "serial": None}, "00ff74a1-0000-1000-80e9-b388cfe84658"),
    ],
)
def test_the_uuid_is_the_one_that_rocm_programs_are_given(
    driver: FakeDriver, probe: AskedProbe, fields: dict[str, str | None], uuid: str
) -> None:
    driver.set(0, **fields)
    assert probe.discover().specs[0].uuid == uuid
    assert probe.sample()[0].uuid == uuid


@pytest.mark.parametrize(
    "field,name",
    [
        ("used", "memory_used_mib"),
        ("busy", "utilisation_percent"),
        ("hotspot", "temperature_c"),
        ("current", "power_w"),
    ],
)
def test_what_is_not_supported_is_unknown_and_never_zero(
    driver: FakeDriver, probe: AskedProbe, field: str, name: str
) -> None:
    probe.discover()
    driver.set(0, **{field: None})
    state = probe.sample()[0]
    assert (getattr(state, name), state.health) == (None, Health.HEALTHY)


@pytest.mark.parametrize("value", [0xFFFF, 0xFFFFFFFF])
def test_all_ones_is_unknown(driver: FakeDriver, probe: AskedProbe, value: int) -> None:
    probe.discover()
    driver.set(0, busy=value, current=value)
    state = probe.sample()[0]
    assert (state.utilisation_percent, state.power_w, state.memory_used_mib) == (None, None, 285)


def test_a_device_that_tells_nothing_is_unknown_not_healthy(driver: FakeDriver, probe: AskedProbe) -> None:
    probe.discover()
    driver.set(0, used=None, busy=None, hotspot=None, current=None)
    assert probe.sample()[0] == DeviceState(UUIDS[0], Health.UNKNOWN, detail="the driver tells nothing about it")


def test_an_older_board_with_an_edge_sensor_and_average_power(driver: FakeDriver, probe: AskedProbe) -> None:
    probe.discover()
    driver.set(0, edge=35, current=0, average=90, used=65535)
    state = probe.sample()[0]
    assert (state.temperature_c, state.power_w, state.memory_used_mib) == (35.0, 90.0, 65535)


def test_processes_of_others_are_foreign(driver: FakeDriver, probe: AskedProbe) -> None:
    probe.discover()
    driver.set(1, processes="4000001:1024,55:7")
    state = probe.sample(own=(55,))[1]
    assert state.pids == (55, 4000001)
    assert state.foreign == (ForeignProcess(4000001, 1024, None),)


@pytest.mark.parametrize("code", [31, 12, 34])
def test_a_device_that_vanishes_is_failed_and_recovers_when_it_is_back(
    driver: FakeDriver, probe: AskedProbe, code: int
) -> None:
    probe.discover()
    driver.set(0, lost=code)
    for _ in range(2):
        first, second = probe.sample()
        assert (first.health, first.memory_used_mib, second.health) == (Health.FAILED, None, Health.HEALTHY)
    driver.set(0, lost=None)
    assert [state.health for state in probe.sample()] == [Health.HEALTHY, Health.HEALTHY]


def test_a_device_that_left_the_list_is_failed(driver: FakeDriver, probe: AskedProbe) -> None:
    probe.discover()
    del driver.devices[0]
    driver.save()
    assert [state.health for state in probe.sample()] == [Health.FAILED, Health.HEALTHY]
    assert [state.health for state in probe.sample()] == [Health.FAILED, Health.HEALTHY]


def test_new_uncorrectable_memory_errors_fail_the_device(driver: FakeDriver, probe: AskedProbe) -> None:
    driver.set(0, ecc=5)
    probe.discover()
    assert probe.sample()[0].health is Health.HEALTHY
    driver.set(0, ecc=7)
    state = probe.sample()[0]
    assert (state.health, state.detail) == (Health.FAILED, "2 uncorrectable memory errors since the start")


def test_memory_errors_count_anew_after_a_device_was_away(driver: FakeDriver, probe: AskedProbe) -> None:
    driver.set(0, ecc=5)
    probe.discover()
    driver.set(0, ecc=6, lost=12)
    assert probe.sample()[0].health is Health.FAILED
    driver.set(0, ecc=0, lost=None)
    assert probe.sample()[0].health is Health.HEALTHY, "a reset clears the count"
    driver.set(0, ecc=1)
    assert probe.sample()[0].detail == "1 uncorrectable memory errors since the start"


def test_a_driver_that_errs_makes_its_device_suspect(driver: FakeDriver, probe: AskedProbe) -> None:
    probe.discover()
    driver.say("fail amdsmi_get_gpu_activity", 16)
    state = probe.sample()[0]
    assert (state.health, state.utilisation_percent) == (Health.SUSPECT, None)
    assert "amdsmi_get_gpu_activity" in (state.detail or "")
    assert "\n" not in (state.detail or "")


def test_a_device_without_memory_is_left_out_and_named(driver: FakeDriver, probe: AskedProbe) -> None:
    driver.set(0, total=0)
    found = probe.discover()
    assert [spec.uuid for spec in found.specs] == [UUIDS[1]]
    assert (found.refused, found.reason) == (True, f"{UUIDS[0]}: it does not tell its memory")


def test_without_the_kernel_module_there_are_no_devices_and_a_reason(driver: FakeDriver, probe: AskedProbe) -> None:
    driver.say("init", 34)
    found = probe.discover()
    assert (found.specs, found.refused) == ((), False)
    assert found.reason == "no AMD driver: the kernel module amdgpu is not loaded"


def test_a_driver_that_refuses_is_an_error(driver: FakeDriver, probe: AskedProbe) -> None:
    driver.say("init", 18)
    refused = probe.discover_refused()
    assert refused.code == "DEVICE_PROBE_FAILED"
    assert "AMD SMI refuses: Error code: 18 | AMDSMI_STATUS_INIT_ERROR" in refused.message


def test_without_the_library_there_are_no_devices_and_a_reason(
    library: Path, tmp_path: Path, start: Callable[..., AskedProbe]
) -> None:
    found = start("amd", {"LD_LIBRARY_PATH": str(tmp_path), "ROCM_PATH": str(tmp_path)}).discover()
    assert (found.specs, found.refused) == ((), False)
    assert (found.reason or "").startswith("no AMD driver library: libamd_smi.so is not installed")


def test_without_the_python_package_the_reason_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    monkeypatch.delitem(sys.modules, "amdsmi", raising=False)
    probe = AmdProbe()
    assert probe.discover() == ()
    assert "pip install 'corral[amd]'" in (probe.reason or "")


def test_closing_lets_the_driver_go_and_it_can_be_opened_again(probe: AskedProbe) -> None:
    probe.discover()
    probe.close()
    assert probe.sample() == ()
    assert len(probe.discover().specs) == 2
    assert len(probe.sample()) == 2
