"""Simulated devices say what their state file says, and are always labelled."""

from __future__ import annotations

from pathlib import Path

import pytest

from corral.devices import SimulatedProbe, edit_state, read_state, simulated_devices
from corral.model.errors import DeviceProbeFailed, InvalidField
from corral.model.ids import DeviceId
from corral.model.resources import DeviceSpec, DeviceState, ForeignProcess, Health

FIRST = DeviceId("SIM-H100-node-1-0")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "devices.json"


@pytest.fixture
def probe(path: Path) -> SimulatedProbe:
    return SimulatedProbe(path, "h100", 2, "node-1")


def test_devices_have_the_size_of_the_real_model_and_are_labelled(probe: SimulatedProbe) -> None:
    assert probe.discover() == (
        DeviceSpec(FIRST, "H100", "simulated", 81559, 0, simulated=True),
        DeviceSpec(DeviceId("SIM-H100-node-1-1"), "H100", "simulated", 81559, 1, simulated=True),
    )
    assert probe.reason is None
    assert [spec.memory_mib for spec in simulated_devices("a100-80gb", 1, "n")] == [81920]


def test_without_a_file_they_are_healthy_and_tell_nothing_else(probe: SimulatedProbe) -> None:
    assert probe.sample(()) == tuple(DeviceState(spec.uuid, Health.HEALTHY) for spec in probe.discover())


@pytest.mark.parametrize(
    "changes,state",
    [
        ({"failed": "drill"}, DeviceState(FIRST, Health.FAILED, detail="drill")),
        ({"suspect": "drill"}, DeviceState(FIRST, Health.SUSPECT, detail="drill")),
        ({"vanished": True}, DeviceState(FIRST, Health.FAILED, detail="the device has vanished (simulated)")),
        ({"vanished": True, "temperature_c": 40.0, "failed": "gone"}, DeviceState(FIRST, Health.FAILED, detail="gone")),
        ({"temperature_c": 96.5}, DeviceState(FIRST, Health.HEALTHY, temperature_c=96.5)),
        (
            {"memory_used_mib": 0, "utilisation_percent": 0.0, "power_w": 65.0},
            DeviceState(FIRST, Health.HEALTHY, memory_used_mib=0, utilisation_percent=0.0, power_w=65.0),
        ),
        (
            {"xid": 79},
            DeviceState(FIRST, Health.FAILED, xid=79, detail="XID 79: the GPU has fallen off the bus"),
        ),
        ({"xid": 43}, DeviceState(FIRST, Health.HEALTHY, xid=43, detail="XID 43: an application's error")),
        ({"failed": "drill", "xid": 43}, DeviceState(FIRST, Health.FAILED, xid=43, detail="drill")),
    ],
)
def test_one_device_says_what_the_file_says(
    path: Path, probe: SimulatedProbe, changes: dict, state: DeviceState
) -> None:
    edit_state(path, FIRST, **changes)
    first, second = probe.sample(())
    assert first == state
    assert second.health is Health.HEALTHY
    edit_state(path, FIRST)
    assert probe.sample(())[0] == DeviceState(FIRST, Health.HEALTHY)


def test_foreign_processes_are_those_that_are_not_own(path: Path, probe: SimulatedProbe) -> None:
    others = (ForeignProcess(42, 1024, "eve"), ForeignProcess(7, None))
    edit_state(path, FIRST, foreign=others)
    state = probe.sample((7,))[0]
    assert (state.pids, state.foreign) == ((7, 42), (others[0],))


def test_edits_of_several_devices_stand_side_by_side(path: Path, probe: SimulatedProbe) -> None:
    edit_state(path, FIRST, temperature_c=50.0)
    edit_state(path, "SIM-H100-node-1-1", failed="x")
    edit_state(path, FIRST, power_w=10.0)
    first, second = probe.sample(())
    assert (first.temperature_c, first.power_w, second.health) == (50.0, 10.0, Health.FAILED)
    assert sorted(read_state(path).devices) == [FIRST, "SIM-H100-node-1-1"]
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "text", ["", "{", '{"devices": {"x": {"faild": "typo"}}}', '{"device": {}}', '{"devices": {"x": {"xid": "79"}}}']
)
def test_a_file_that_cannot_be_understood_makes_devices_unknown_and_says_why(
    path: Path, probe: SimulatedProbe, text: str
) -> None:
    path.write_text(text)
    for state in probe.sample(()):
        assert state.health is Health.UNKNOWN
        assert f"the state of the simulated devices in {path} is not readable" in (state.detail or "")
    with pytest.raises(DeviceProbeFailed):
        edit_state(path, FIRST, xid=79)
    assert path.read_text() == text


@pytest.mark.parametrize("model,hint", [("h10", "did you mean H100?"), ("a100-80", "did you mean A100-80GB?")])
def test_an_unknown_model_names_the_nearest_and_all(path: Path, model: str, hint: str) -> None:
    with pytest.raises(InvalidField, match="can be simulated") as caught:
        SimulatedProbe(path, model, 1, "n")
    assert hint in str(caught.value)
    assert "known: A10, A100, A100-80GB" in str(caught.value)


def test_a_negative_count_is_refused(path: Path) -> None:
    with pytest.raises(InvalidField, match="-1 devices"):
        SimulatedProbe(path, "h100", -1, "n")
    assert SimulatedProbe(path, "h100", 0, "n").discover() == ()
