"""The decisions of a lease, worked out by hand for checkpoint_before_s=10, freeze_max_s=60."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.agent.shim.handle import write_lease
from corral.agent.shim.lease import Act, LeaseWatch, read_deadline
from corral.agent.shim.spec import LeaseSpec

SPEC = LeaseSpec("/lease", 10.0, 60.0)


def test_nothing_happens_while_it_is_renewed() -> None:
    watch = LeaseWatch(SPEC)
    assert {watch.step(now, now + 90.0) for now in range(1000)} == {Act.NOTHING}


def test_a_lease_that_runs_out() -> None:
    watch = LeaseWatch(SPEC)
    acts = {now: act for now in range(200) if (act := watch.step(float(now), 90.0)) is not Act.NOTHING}
    # From the expiry on it is said again and again: the shim ends itself at the first.
    assert acts == {80: Act.CHECKPOINT, 90: Act.FREEZE, **dict.fromkeys(range(150, 200), Act.EXPIRE)}


def test_contact_thaws_and_a_new_end_warns_again() -> None:
    watch = LeaseWatch(SPEC)
    assert watch.step(80.0, 90.0) is Act.CHECKPOINT
    assert watch.step(90.0, 90.0) is Act.FREEZE
    assert watch.frozen_since == 90.0
    assert watch.step(91.0, 181.0) is Act.THAW
    assert watch.frozen_since is None
    assert watch.step(170.9, 181.0) is Act.NOTHING
    assert watch.step(171.0, 181.0) is Act.CHECKPOINT
    assert watch.step(180.9, 181.0) is Act.NOTHING
    assert watch.step(181.0, 181.0) is Act.FREEZE


def test_a_renewal_after_the_warning_warns_again_later() -> None:
    watch = LeaseWatch(SPEC)
    assert watch.step(85.0, 90.0) is Act.CHECKPOINT
    assert watch.step(86.0, 176.0) is Act.NOTHING
    assert watch.step(166.0, 176.0) is Act.CHECKPOINT


def test_a_renewal_that_is_already_over_does_not_thaw() -> None:
    watch = LeaseWatch(SPEC)
    assert watch.step(90.0, 90.0) is Act.FREEZE
    assert watch.step(95.0, 94.0) is Act.NOTHING
    assert watch.step(149.9, 94.0) is Act.NOTHING
    assert watch.step(150.0, 94.0) is Act.EXPIRE


def test_a_long_silence_of_the_shim_freezes_without_a_warning() -> None:
    assert LeaseWatch(SPEC).step(500.0, 90.0) is Act.FREEZE
    assert LeaseWatch(SPEC).step(0.0, float("-inf")) is Act.FREEZE


def test_when_the_next_step_is_due() -> None:
    watch = LeaseWatch(SPEC)
    assert watch.next_s(0.0, 90.0) == 80.0
    watch.step(80.0, 90.0)
    assert watch.next_s(80.0, 90.0) == 10.0
    watch.step(90.0, 90.0)
    assert watch.next_s(100.0, 90.0) == 50.0
    assert watch.next_s(1000.0, 90.0) == 0.0


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(-20, 100)), max_size=60))
def test_it_never_runs_without_a_lease_and_freezes_and_thaws_in_turn(steps: list[tuple[float, float]]) -> None:
    watch, now, frozen, deadline = LeaseWatch(SPEC), 0.0, False, 0.0
    for wait_s, lease_s in steps:
        now, deadline = now + wait_s, max(deadline, now + lease_s)
        act = watch.step(now, deadline)
        assert (act is Act.THAW) <= frozen
        assert (act is Act.FREEZE) <= (not frozen)
        frozen = (frozen or act is Act.FREEZE) and act is not Act.THAW
        assert frozen == (watch.frozen_since is not None)
        assert frozen == (deadline <= now)


@pytest.mark.parametrize(
    "content, deadline", [("12.5\n", 12.5), ("inf", float("inf")), ("", None), ("nan", None), ("soon", None)]
)
def test_the_file_is_read_as_far_as_it_makes_sense(tmp_path: Path, content: str, deadline: float | None) -> None:
    path = tmp_path / "lease"
    path.write_text(content)
    assert read_deadline(str(path)) == deadline


def test_what_the_agent_writes_is_what_the_shim_reads(tmp_path: Path) -> None:
    assert read_deadline(str(tmp_path / "lease")) is None
    write_lease(tmp_path / "lease", 123456.789012)
    assert read_deadline(str(tmp_path / "lease")) == 123456.789012
    assert [path.name for path in tmp_path.iterdir()] == ["lease"]


def test_a_lease_is_renewed_where_no_file_can_be_made(tmp_path: Path) -> None:
    path = tmp_path / "lease"
    write_lease(path, 1234567.5)
    # As on a full disk: the new file that would take the place of the old one cannot be had.
    (tmp_path / f".lease.{os.getpid()}.new").mkdir()
    write_lease(path, 99.25)
    assert path.read_text() == "99.250000\n"
