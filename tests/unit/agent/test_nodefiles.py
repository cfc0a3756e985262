"""What proves that nothing of a node runs, and what only looks like it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from corral.agent import pulse
from corral.agent.machine import MACHINE_NAME, machine_of
from corral.agent.nodefiles import NodeFiles


def machine(root: Path, own: str | None, *nodes: str) -> Path:
    """Return the directory of node ``n1`` on a machine with this id, on which the agents of ``nodes`` have been."""
    root.mkdir(exist_ok=True)
    if own is not None:
        (root / MACHINE_NAME).write_text(f"{own}\n")
    for node in nodes:
        (root / "nodes" / node / "tasks").mkdir(parents=True)
    return root / "nodes" / "n1"


@pytest.mark.parametrize("own, nodes, asked, proven", [
    ("aa", ("n1",), "aa", True),
    # It has taken the name of a machine that is silent, and its agent has not begun yet, or has.
    ("bb", (), "aa", False),
    ("bb", ("n1",), "aa", False),
    # Its state directory was cleared: what ran there may run still.
    (None, (), "aa", False),
    ("aa", (), "aa", False),
    # A pool of one machine: there is no other.
    (None, ("n1",), "", True),
    (None, (), "", True),
])  # fmt: skip
def test_only_the_machine_itself_proves_that_nothing_of_its_node_runs(
    own: str | None, nodes: tuple[str, ...], asked: str, proven: bool, tmp_path: Path
) -> None:
    assert NodeFiles().fence(machine(tmp_path / "state", own, *nodes), asked) is proven


def test_a_fence_for_another_machine_touches_nothing(tmp_path: Path) -> None:
    node_dir = machine(tmp_path / "state", "bb", "n1")
    task = node_dir / "tasks" / "1.0.0.1"
    task.mkdir()
    assert not NodeFiles().fence(node_dir, "aa")
    assert list(task.iterdir()) == []
    assert [path.name for path in node_dir.iterdir()] == ["tasks"]


def test_a_task_without_its_directory_is_killed_all_the_same(tmp_path: Path) -> None:
    node_dir = machine(tmp_path / "state", None, "n1")
    ghost = subprocess.Popen(["/bin/sleep", "600"], env={"CORRAL_TASK_DIR": f"{node_dir}/tasks/1.0.0.1"})
    try:
        assert NodeFiles().fence(node_dir)
        assert ghost.wait(30.0) == -signal.SIGKILL
    finally:
        ghost.kill()
        ghost.wait()


def test_a_machine_is_told_apart_only_where_it_has_an_id(tmp_path: Path) -> None:
    assert machine_of(tmp_path) == ""
    (tmp_path / MACHINE_NAME).write_text("cc\n")
    assert machine_of(tmp_path) == "cc"


@pytest.mark.parametrize("heard, asks, fenced, then", [
    ("", 3, True, "3\n"),
    ("5\n", 5, True, "5\n"),
    # The node refuses whoever is older than the one that has fenced it.
    ("5\n", 6, True, "6\n"),
    ("5\n", 4, False, "5\n"),
    # Somebody on the machine itself asks.
    ("5\n", None, True, "5\n"),
])  # fmt: skip
def test_a_deposed_leader_kills_nothing(heard: str, asks: int | None, fenced: bool, then: str, tmp_path: Path) -> None:
    node_dir = machine(tmp_path / "state", None, "n1")
    if heard:
        (node_dir / "epoch").write_text(heard)
    task = subprocess.Popen(["/bin/sleep", "600"], env={"CORRAL_TASK_DIR": f"{node_dir}/tasks/1.0.0.1"})
    try:
        assert NodeFiles().fence(node_dir, epoch=asks) is fenced
        assert (node_dir / "epoch").read_text() == then
        assert (task.wait(30.0) == -signal.SIGKILL) if fenced else (task.poll() is None)
    finally:
        task.kill()
        task.wait()


@pytest.mark.parametrize("age_s, asks, fenced", [
    # It is at work, and only the way to it was broken.
    (0.0, 3, None),
    (8.0, 3, None),
    # It hangs or is dead.
    (12.0, 3, True),
    (None, 3, True),
    # The pulse of an earlier boot, of a machine that was up for longer then.
    (-5000.0, 3, True),
    # `corral leave --force` on the machine itself knows that it lives.
    (0.0, None, True),
])  # fmt: skip
def test_no_leader_kills_an_agent_that_lives(
    age_s: float | None, asks: int | None, fenced: bool | None, tmp_path: Path
) -> None:
    node_dir = machine(tmp_path / "state", None, "n1")
    if age_s is not None:
        pulse.beat(node_dir)
        beaten = time.clock_gettime(time.CLOCK_BOOTTIME) - age_s
        os.utime(node_dir / pulse.PULSE_NAME, (beaten, beaten))
    task = subprocess.Popen(["/bin/sleep", "600"], env={"CORRAL_TASK_DIR": f"{node_dir}/tasks/1.0.0.1"})
    try:
        assert NodeFiles().fence(node_dir, epoch=asks) is fenced
        assert (task.wait(30.0) == -signal.SIGKILL) if fenced else (task.poll() is None)
    finally:
        task.kill()
        task.wait()


def test_a_beat_is_felt(tmp_path: Path) -> None:
    assert not pulse.is_felt(tmp_path)
    pulse.beat(tmp_path)
    assert pulse.is_felt(tmp_path)
    pulse.beat(tmp_path / "gone")
