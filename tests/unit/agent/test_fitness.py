"""A disk that is full, or takes nothing any more, and one that has room again."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.agent import taskdir
from corral.agent.fitness import TRIAL_EVERY, Fitness
from corral.agent.retention import Kept, Retention
from corral.model.job import Cause, TaskExit
from tests import needs

MIB = 1 << 20
SAID = TaskExit(Cause.LAUNCH_FAILED, message="cannot prepare x", ended_at=5.0)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Give a file system of 64 MiB."""
    needs.root()
    path = tmp_path / "disk"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m,nr_inodes=8", "tmpfs", path], check=True)
    yield path
    subprocess.run(["umount", path], check=True)


def fill(disk: Path, free: int) -> Path:
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(64 * MIB - free))
    return ballast


def test_a_full_disk_makes_a_node_unfit_until_there_is_room_enough(disk: Path) -> None:
    fitness = Fitness(disk)
    fill(disk, 17 * MIB)
    assert fitness.look() == ""
    fill(disk, 15 * MIB)
    assert fitness.look() == fitness.unfit == f"its disk is full: 15 MiB are free for {disk}"
    # It does not come and go with every file.
    fill(disk, 17 * MIB)
    assert fitness.look() == f"its disk is full: 17 MiB are free for {disk}"
    fill(disk, 33 * MIB)
    assert fitness.look() == ""


def test_a_disk_without_inodes_is_full(disk: Path) -> None:
    fitness = Fitness(disk)
    for name in "abcdefg":
        (disk / name).touch()
    assert fitness.look() == f"its disk is full: no inode is free for {disk}"


def test_a_launch_that_failed_is_the_nodes_fault_only_where_nothing_can_be_written(disk: Path) -> None:
    fitness = Fitness(disk)
    assert fitness.judge_end(SAID) is SAID
    remount(disk, "ro")
    # What is free does not show it.
    assert fitness.look() == ""
    why = f"its disk cannot be written: Read-only file system ({disk})"
    assert fitness.judge_end(SAID) == TaskExit(Cause.NODE_UNFIT, message=why, ended_at=5.0)
    assert fitness.judge(Cause.CANCELLED, "by a") == (Cause.CANCELLED, "by a")
    assert [fitness.look() for _ in range(TRIAL_EVERY)] == TRIAL_EVERY * [why]
    remount(disk, "rw")
    assert "" in [fitness.look() for _ in range(TRIAL_EVERY)]
    assert not list(disk.iterdir())


def remount(disk: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", disk], check=True)


def test_a_directory_that_is_gone_is_told(tmp_path: Path) -> None:
    assert Fitness(tmp_path / "gone").look() == "its disk cannot be read: No such file or directory"


def test_an_agent_comes_back_on_a_full_disk(disk: Path) -> None:
    written = disk / "agent.pid"
    taskdir.renew_file(str(written), b"a longer one\n")
    retention = Retention(disk / "acknowledged", 10, 100.0)
    retention.open([])
    retention.add(Kept("1.0.0.1", 5.0))
    retention.close()
    with (disk / "ballast").open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
        while ballast.write(bytes(4096)):
            pass
    taskdir.renew_file(str(written), b"next\n")
    assert written.read_bytes() == b"next\n"
    again = Retention(disk / "acknowledged", 10, 100.0)
    again.open(list(again.load().values()))
    assert again.due(200.0, 10) == [Kept("1.0.0.1", 5.0)]
    again.close()
