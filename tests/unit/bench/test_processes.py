from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.processes import carriers, kill_carriers
from tests.waiting import wait_until


@pytest.fixture
def sleepers(tmp_path: Path) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    mark = tmp_path / "mark"
    made = {
        "by environment": subprocess.Popen(["sleep", "100"], env={"PATH": "/usr/bin:/bin", "PLACE": f"{mark}/conf"}),
        # One process for good: a shell that forks shows its own arguments twice until the child has called exec.
        "by argument": subprocess.Popen(
            ["sh", "-c", "read line", str(mark)], stdin=subprocess.PIPE, env={"PATH": "/usr/bin:/bin"}
        ),
        "foreign": subprocess.Popen(["sleep", "100"], env={"PATH": "/usr/bin:/bin"}),
    }
    # A process has called exec before the kernel shows what it was given.
    wait_until(lambda: all(Path(f"/proc/{process.pid}/environ").read_bytes() for process in made.values()))
    yield made
    for process in made.values():
        process.kill()
        process.communicate()


def test_carriers_are_found_by_environment_and_by_argument(
    tmp_path: Path, sleepers: dict[str, subprocess.Popen[bytes]]
) -> None:
    expected = {sleepers["by environment"].pid, sleepers["by argument"].pid}
    assert set(carriers(tmp_path / "mark")) == expected


def test_only_carriers_are_killed(tmp_path: Path, sleepers: dict[str, subprocess.Popen[bytes]]) -> None:
    # The children of this process stay as zombies, without arguments or environment: they are gone for carriers().
    kill_carriers(tmp_path / "mark")
    assert sleepers["by environment"].wait(10) == -signal.SIGKILL
    assert sleepers["by argument"].wait(10) == -signal.SIGKILL
    assert sleepers["foreign"].poll() is None
