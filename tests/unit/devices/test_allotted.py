"""Of a machine's devices, those that a batch system handed out."""

from __future__ import annotations

from pathlib import Path

import pytest

from corral.devices.allotted import AllottedProbe
from corral.devices.simulated import SimulatedProbe


@pytest.mark.parametrize("by_uuid", [False, True])
def test_only_what_is_allotted_is_there(tmp_path: Path, by_uuid: bool) -> None:
    whole = SimulatedProbe(tmp_path / "devices.json", "h100", 4, "n1")
    uuids = [device.uuid for device in whole.discover()]
    allotted = AllottedProbe(whole, [uuids[1], uuids[3]] if by_uuid else ["1", "3"])
    assert allotted.vendor == whole.vendor
    assert [device.uuid for device in allotted.discover()] == [uuids[1], uuids[3]]
    assert [state.uuid for state in allotted.sample([])] == [uuids[1], uuids[3]]
    allotted.close()


def test_nothing_allotted_is_nothing_there(tmp_path: Path) -> None:
    none = AllottedProbe(SimulatedProbe(tmp_path / "devices.json", "h100", 4, "n1"), [])
    assert (none.discover(), none.sample([])) == ((), ())
