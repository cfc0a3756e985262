"""The devices that a node is expected to have."""

from __future__ import annotations

from pathlib import Path

import pytest

from corral.agent import processes
from corral.agent.expected import FILE_NAME, ExpectedDevices
from tests.unit.agent.scene import FIRST, SECOND


def test_what_was_found_stays_expected(tmp_path: Path) -> None:
    expected = ExpectedDevices(tmp_path, pretended=False)
    assert expected.known == ()
    assert expected.take((FIRST, SECOND)) == (FIRST, SECOND)
    assert expected.take((SECOND,)) == (SECOND, FIRST)
    assert ExpectedDevices(tmp_path, pretended=False).known == (SECOND, FIRST)


def test_another_boot_of_the_machine_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ExpectedDevices(tmp_path, pretended=False).take((FIRST, SECOND))
    monkeypatch.setattr(processes, "boot_id", lambda: "another")
    assert ExpectedDevices(tmp_path, pretended=False).take((SECOND,)) == (SECOND,)


def test_pretended_devices_are_those_that_were_asked_for_last(tmp_path: Path) -> None:
    expected = ExpectedDevices(tmp_path, pretended=True)
    expected.take((FIRST, SECOND))
    assert expected.take((FIRST,)) == (FIRST,)


@pytest.mark.parametrize("content", ["", "[]", "{}", '[{"uuid": "GPU-0"}]'])
def test_a_file_that_says_something_else_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE_NAME).write_text(content)
    assert ExpectedDevices(tmp_path, pretended=False).take((FIRST,)) == (FIRST,)


def test_a_disk_that_takes_nothing_hides_no_loss(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    expected = ExpectedDevices(gone, pretended=False)
    assert expected.take((FIRST, SECOND)) == (FIRST, SECOND)
    assert expected.take((SECOND,)) == (SECOND, FIRST)
    assert not gone.exists()
