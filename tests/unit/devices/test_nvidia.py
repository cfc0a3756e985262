"""The NVIDIA probe against a driver of our own, loaded in place of the real one."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from corral.model.ids import DeviceId
from corral.model.resources import DeviceSpec, DeviceState, ForeignProcess, Health
from tests.native.fake_driver import FakeDriver
from tests.native.fake_nvml import driver_with
from tests.unit.devices.conftest import AskedProbe
from tests.waiting import wait_until

UUIDS = [DeviceId(f"GPU-00000000-0000-0000-0000-{index:012x}") for index in range(8)]
Start = Callable[..., AskedProbe]
Built = Callable[..., Path]


def test_devices_are_found_with_all_that_the_driver_tells(probe: AskedProbe) -> None:
    found = probe.discover()
    assert found.reason is None
    assert found.specs == (
        DeviceSpec(UUIDS[0], "H100", "nvidia", 81559, 0, island=0),
        DeviceSpec(UUIDS[1], "H100", "nvidia", 81559, 1, island=1),
    )
    assert probe.sample() == (
        DeviceState(UUIDS[0], Health.HEALTHY, 4, 0.0, 31.0, 70.0),
        DeviceState(UUIDS[1], Health.HEALTHY, 4, 0.0, 31.0, 70.001),
    )


def test_devices_are_in_the_order_of_the_pci_bus(driver: FakeDriver, probe: AskedProbe) -> None:
    driver.set(0, bus="00000000:C1:00.0")
    assert [(spec.uuid, spec.index) for spec in probe.discover().specs] == [(UUIDS[1], 0), (UUIDS[0], 1)]


def test_nvlink_makes_islands(tmp_path: Path, built: Built, start: Start) -> None:
    driver = driver_with(tmp_path / "four", 4)
    driver.say("nvlink 0", 2)
    driver.say("nvlink 1", 3)
    probe = start("nvidia", driver.environment(built()))
    assert [spec.island for spec in probe.discover().specs] == [0, 1, 0, 1]


@pytest.mark.parametrize(
    "field,name,healthy",
    [
        ("used", "memory_used_mib", True),
        ("util", "utilisation_percent", True),
        ("temp", "temperature_c", True),
        ("power", "power_w", True),
    ],
)
def test_what_is_not_supported_is_unknown_and_never_zero(
    driver: FakeDriver, probe: AskedProbe, field: str, name: str, healthy: bool
) -> None:
    probe.discover()
    driver.set(0, **{field: None})
    state = probe.sample()[0]
    assert getattr(state, name) is None
    assert state.health is Health.HEALTHY
    others = {"memory_used_mib", "utilisation_percent", "temperature_c", "power_w"} - {name}
    assert all(getattr(state, other) is not None for other in others)


def test_a_device_that_tells_nothing_is_unknown_not_healthy(driver: FakeDriver, probe: AskedProbe) -> None:
    probe.discover()
    driver.set(0, used=None, util=None, temp=None, power=None)
    assert probe.sample()[0] == DeviceState(UUIDS[0], Health.UNKNOWN, detail="the driver tells nothing about it")


@pytest.mark.parametrize(
    "field,value,name",
    [
        ("util", 4294967295, "utilisation_percent"),
        ("temp", 4294967295, "temperature_c"),
        ("power", 4294967295, "power_w"),
    ],
)
def test_the_drivers_not_available_is_unknown(
    driver: FakeDriver, probe: AskedProbe, field: str, value: int, name: str
) -> None:
    probe.discover()
    driver.set(0, **{field: value})
    assert getattr(probe.sample()[0], name) is None


@pytest.mark.parametrize(
    "omit,name,expected",
    [
        ("nvmlDeviceGetPowerUsage", "power_w", None),
        ("nvmlDeviceGetMemoryInfo_v2", "memory_used_mib", 4 + 561),
        ("nvmlDeviceGetTemperature", "temperature_c", 31.0),
        ("nvmlDeviceGetComputeRunningProcesses_v3", "pids", (7,)),
        ("nvmlEventSetCreate", "xid", None),
    ],
)
def test_an_older_driver_without_a_symbol_gives_the_older_answer_or_none(
    driver: FakeDriver, built: Built, start: Start, omit: str, name: str, expected: object
) -> None:
    driver.set(0, compute="7:100", xids="79")
    probe = start("nvidia", driver.environment(built(omit)))
    assert len(probe.discover().specs) == 2
    state = probe.sample()[0]
    assert getattr(state, name) == expected
    assert (state.health, state.detail) == (Health.HEALTHY, None)


def test_processes_of_others_are_foreign_with_their_owner(driver: FakeDriver, probe: AskedProbe) -> None:
    probe.discover()
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        gone = 4_000_000
        driver.set(0, compute=f"{sleeper.pid}:1024,{gone}:-,55:7", graphics=f"{sleeper.pid}:2048,55:7")
        state = probe.sample(own=(55, 56))[0]
        sleeper.kill()
    assert state.pids == tuple(sorted((55, sleeper.pid, gone)))
    owner = pwd.getpwuid(os.getuid()).pw_name
    assert state.foreign == (ForeignProcess(sleeper.pid, 2048, owner), ForeignProcess(gone, None, None))
    assert probe.sample(own=(55,))[1].foreign == ()


def test_a_device_that_is_lost_is_failed_and_recovers_when_it_is_back(driver: FakeDriver, probe: AskedProbe) -> None:
    probe.discover()
    driver.set(0, lost=15)
    first, second = probe.sample()
    assert (first.health, first.detail, first.memory_used_mib, first.pids) == (
        Health.FAILED,
        "GPU is lost",
        None,
        (),
    )
    assert second.health is Health.HEALTHY
    assert probe.sample()[0].health is Health.FAILED
    driver.set(0, lost=None)
    assert [state.health for state in probe.sample()] == [Health.HEALTHY, Health.HEALTHY]


@pytest.mark.parametrize("code", [6, 16, 28])
def test_a_device_that_needs_a_reset_or_is_gone_is_failed(driver: FakeDriver, probe: AskedProbe, code: int) -> None:
    probe.discover()
    driver.set(1, lost=code)
    assert [state.health for state in probe.sample()] == [Health.HEALTHY, Health.FAILED]


def test_a_device_that_vanishes_from_the_list_is_failed_and_the_others_keep_their_names(
    driver: FakeDriver, probe: AskedProbe
) -> None:
    before = probe.discover().specs
    kept = driver.devices.pop(0)
    driver.save()
    states = {state.uuid: state.health for state in probe.sample()}
    assert states == {UUIDS[0]: Health.FAILED, UUIDS[1]: Health.HEALTHY}
    assert probe.discover().specs == (before[1],)
    driver.devices[0] = kept
    driver.save()
    assert probe.discover().specs == before
    assert {state.health for state in probe.sample()} == {Health.HEALTHY}


def test_a_device_that_is_lost_at_discovery_is_left_out_and_named(driver: FakeDriver, probe: AskedProbe) -> None:
    driver.say("fail nvmlDeviceGetUUID", 15)
    found = probe.discover()
    assert found.specs == ()
    assert found.refused
    assert found.reason == "device 0: GPU is lost; device 1: GPU is lost"


def test_a_fatal_xid_fails_its_device_and_stays_until_it_was_away(driver: FakeDriver, probe: AskedProbe) -> None:
    driver.set(1, xids="31")
    probe.discover()
    assert [state.xid for state in probe.sample()] == [None, None], "what happened before the start is not ours"
    driver.set(1, xids="31,119")
    for _ in range(2):
        first, second = probe.sample()
        assert (first.health, first.xid) == (Health.HEALTHY, None)
        assert (second.health, second.xid) == (Health.FAILED, 119)
        assert second.detail == "XID 119: the GPU system processor does not answer"
        assert second.memory_used_mib == 4
    driver.set(1, lost=16)
    assert probe.sample()[1].xid == 119
    driver.set(1, lost=None)
    assert probe.sample()[1] == DeviceState(UUIDS[1], Health.HEALTHY, 4, 0.0, 31.0, 70.001)


def test_an_xid_of_an_application_is_told_and_the_device_stays_healthy(driver: FakeDriver, probe: AskedProbe) -> None:
    probe.discover()
    driver.set(0, xids="43")
    state = probe.sample()[0]
    assert (state.health, state.xid, state.detail) == (Health.HEALTHY, 43, "XID 43: an application's error")


def test_an_xid_that_the_catalog_leaves_open_makes_its_device_suspect(driver: FakeDriver, probe: AskedProbe) -> None:
    probe.discover()
    driver.set(0, xids="74")
    assert (probe.sample()[0].health, probe.sample()[0].detail) == (Health.SUSPECT, "XID 74")


def test_xids_are_kept_as_events_in_order_until_they_are_taken(driver: FakeDriver, probe: AskedProbe) -> None:
    probe.discover()
    driver.set(0, xids="13,31,13")
    driver.set(1, xids="94")
    probe.sample()
    driver.set(0, xids="13,31,13,45")
    assert probe.sample()[0].xid == 45
    events = probe.xids()
    assert sorted((event.uuid, event.xid) for event in events) == sorted(
        [(UUIDS[0], 13), (UUIDS[0], 31), (UUIDS[0], 13), (UUIDS[0], 45), (UUIDS[1], 94)]
    )
    assert [event.xid for event in events if event.uuid == UUIDS[0]] == [13, 31, 13, 45]
    assert [event.at for event in events] == sorted(event.at for event in events)
    assert probe.xids() == ()


def test_an_xid_that_is_raised_with_the_loss_of_its_device_is_not_lost(driver: FakeDriver, probe: AskedProbe) -> None:
    probe.discover()
    driver.set(0, xids="79", lost=15)
    state = probe.sample()[0]
    assert (state.health, state.xid, state.detail) == (Health.FAILED, 79, "GPU is lost")
    assert [event.xid for event in probe.xids()] == [79]


def test_an_old_xid_is_no_longer_shown(driver: FakeDriver, built: Built, start: Start) -> None:
    probe = start("nvidia", driver.environment(built()), xid_shown_s=0.0)
    probe.discover()
    driver.set(0, xids="31,62")
    driver.set(1, xids="31")
    assert [state.xid for state in probe.sample()] == [62, None], "only a fatal one stays"


@pytest.mark.parametrize(
    "fields,health,words",
    [
        ({"pending": 0, "failure": 0}, Health.HEALTHY, None),
        ({"pending": 1, "failure": 0}, Health.SUSPECT, "a memory row waits for its remapping: reset the GPU"),
        ({"pending": 0, "failure": 1}, Health.FAILED, "a memory row could not be remapped"),
    ],
)
def test_remapped_rows_are_judged(
    driver: FakeDriver, probe: AskedProbe, fields: dict[str, int], health: Health, words: str | None
) -> None:
    probe.discover()
    driver.set(0, **fields)
    state = probe.sample()[0]
    assert (state.health, state.detail) == (health, words)


def test_a_driver_that_errs_makes_its_device_suspect(driver: FakeDriver, probe: AskedProbe) -> None:
    probe.discover()
    driver.say("fail nvmlDeviceGetUtilizationRates", 999)
    state = probe.sample()[0]
    assert (state.health, state.utilisation_percent) == (Health.SUSPECT, None)
    assert state.detail == "nvmlDeviceGetUtilizationRates: Unknown Error"
    driver.say("fail nvmlDeviceGetUtilizationRates", None)
    assert probe.sample()[0].health is Health.HEALTHY


def test_a_device_in_mig_mode_is_left_out(driver: FakeDriver, probe: AskedProbe) -> None:
    driver.set(0, mig=1)
    found = probe.discover()
    assert [(spec.uuid, spec.index) for spec in found.specs] == [(UUIDS[1], 1)]
    assert f"{UUIDS[0]}: MIG mode is on" in (found.reason or "")


def test_a_device_without_memory_of_its_own_has_the_machines(driver: FakeDriver, probe: AskedProbe) -> None:
    driver.set(0, name="NVIDIA GB10", total=None)
    spec = probe.discover().specs[0]
    total_kib = int(Path("/proc/meminfo").read_text().split("MemTotal:")[1].split()[0])
    assert (spec.model, 0 < spec.memory_mib <= total_kib // 1024) == ("GB10", True)


def test_without_the_library_there_are_no_devices_and_a_reason(tmp_path: Path, start: Start) -> None:
    found = start("nvidia", {"LD_LIBRARY_PATH": str(tmp_path)}).discover()
    assert (found.specs, found.refused) == ((), False)
    assert found.reason == "no NVIDIA driver: libnvidia-ml.so.1 is not installed"


def test_a_driver_without_devices_says_so(tmp_path: Path, built: Built, start: Start) -> None:
    found = start("nvidia", driver_with(tmp_path / "none", 0).environment(built())).discover()
    assert (found.specs, found.reason) == ((), "the NVIDIA driver is loaded but lists no device")


@pytest.mark.parametrize("code,words", [(18, "version mismatch"), (9, "Driver Not Loaded"), (4, "Permissions")])
def test_a_driver_that_refuses_is_an_error_with_its_message(
    driver: FakeDriver, probe: AskedProbe, code: int, words: str
) -> None:
    driver.say("init", code)
    refused = probe.discover_refused()
    assert refused.code == "DEVICE_PROBE_FAILED"
    assert "the NVIDIA driver refuses" in refused.message
    assert words in refused.message
    driver.say("init", None)
    assert len(probe.discover().specs) == 2


def test_a_library_without_its_beginning_is_an_error(driver: FakeDriver, built: Built, start: Start) -> None:
    refused = start("nvidia", driver.environment(built("nvmlInitWithFlags"))).discover_refused()
    assert "Function Not Found" in refused.message


def test_a_driver_that_was_unloaded_fails_all_devices_and_comes_back(driver: FakeDriver, probe: AskedProbe) -> None:
    probe.discover()
    driver.say("fail nvmlDeviceGetMemoryInfo_v2", 9)
    driver.say("init", 9)
    assert [state.health for state in probe.sample()] == [Health.FAILED, Health.FAILED]
    states = probe.sample()
    assert all("Driver Not Loaded" in (state.detail or "") for state in states)
    driver.say("fail nvmlDeviceGetMemoryInfo_v2", None)
    driver.say("init", None)
    assert [state.health for state in probe.sample()] == [Health.HEALTHY, Health.HEALTHY]
    driver.set(0, xids="48")
    assert probe.sample()[0].xid == 48, "it listens again"


def test_a_call_that_hangs_holds_the_probe_until_the_driver_lets_go(driver: FakeDriver, probe: AskedProbe) -> None:
    """The documented worst case: whoever asks must not ask in a thread that has to go on."""
    probe.discover()
    driver.say("hang", "nvmlDeviceGetPowerUsage")
    probe.ask("sample", own=[])
    hanging = driver.state.with_name(driver.state.name + ".hanging")
    wait_until(hanging.exists, what="the probe to wait in the driver")
    assert probe.process.poll() is None
    driver.say("hang", None)
    assert [state.health for state in probe.answer(tuple[DeviceState, ...])] == [Health.HEALTHY, Health.HEALTHY]


def test_memory_is_free_again_only_when_the_driver_says_so(driver: FakeDriver, probe: AskedProbe) -> None:
    probe.discover()
    driver.set(0, compute="77:30000", used=30004)
    held = probe.wait_released(UUIDS[:2], [77], timeout_s=0.0)
    assert [(each.uuid, each.reason) for each in held] == [(UUIDS[0], "still on it: process 77")]
    driver.set(0, compute=None)
    held = probe.wait_released(UUIDS[:2], [77], timeout_s=0.0)
    assert [each.reason for each in held] == ["30004 MiB are still in use, and no process is seen"]
    probe.ask("wait-released", uuids=UUIDS[:2], pids=[77], timeout_s=30.0)
    driver.set(0, used=4)
    assert probe.answer(list) == []


def test_closing_lets_the_driver_go_and_it_can_be_opened_again(probe: AskedProbe) -> None:
    probe.discover()
    probe.close()
    assert probe.sample() == ()
    assert len(probe.discover().specs) == 2
    assert len(probe.sample()) == 2
