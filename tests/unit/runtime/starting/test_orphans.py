"""What a supervisor that was killed left behind is found and ended; tasks and others' processes are not."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.model.errors import DaemonNotRunning, JobsRunning
from corral.runtime.paths import StatePaths
from corral.runtime.starting.orphans import end_orphans, orphans
from tests.e2e.livepool import LivePool, alive, command_of
from tests.waiting import wait_until


@pytest.fixture
def pool() -> Iterator[LivePool]:
    directory = Path(tempfile.mkdtemp(prefix="c", dir="/tmp"))
    found = LivePool(directory)
    yield found
    found.end()
    shutil.rmtree(directory)


def kill_supervisor(pool: LivePool, *stopped: int) -> None:
    """Kill a supervisor while some of its children are stopped, which therefore do not hear of it."""
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    os.kill(pool.supervisor(), signal.SIGKILL)
    wait_until(lambda: not pool.supervisor(), what="the supervisor to die")


def stuck(pool: LivePool) -> set[int]:
    return {pool.daemon(), pool.agent("node-1"), pool.fork_server()}


def test_a_start_takes_over_with_the_task_that_ran(pool: LivePool) -> None:
    pool.up(nodes=1)
    job = pool.submit(["sleep", "600"])
    shim = pool.shim(job)
    left = stuck(pool)
    kill_supervisor(pool, *left)
    assert set(orphans(pool.paths)) == left
    pool.up(nodes=1)
    assert not any(map(alive, left))
    assert pool.shim(job)["child_pid"] == shim["child_pid"]
    assert job.details().gangs[0].incarnation == 1


def test_down_ends_them_and_asks_about_tasks_as_ever(pool: LivePool) -> None:
    pool.up(nodes=1)
    job = pool.submit(["sleep", "600"])
    shim = pool.shim(job)
    kill_supervisor(pool, *stuck(pool))
    with pytest.raises(JobsRunning, match="does not run, but 1 task runs on this machine"):
        pool.down()
    report = pool.down(leave_tasks=True)
    assert (report.tasks_left, report.tasks_killed) == (1, 0)
    assert orphans(pool.paths) == []
    assert alive(shim["child_pid"])
    report = pool.down(force=True)
    assert (report.tasks_left, report.tasks_killed) == (0, 1)
    pool.nothing_left()
    with pytest.raises(DaemonNotRunning):
        pool.down()


def test_nobody_else_is_meant(tmp_path: Path) -> None:
    """A pool whose directory begins like this one, an editor on its log, a copy from Ray's folder, a shim."""
    paths, other = StatePaths(tmp_path / "s"), StatePaths(tmp_path / "s2")
    lines = [
        ["-m", "corral.runtime.daemon", "--state-dir", str(other.root)],
        ["edit", str(paths.logs / "daemon.log")],
        ["copy", f"--from={paths.ray_temp}"],
        ["-m", "corral.agent.forkserver", "--socket", str(paths.fork_socket)],
    ]
    sleeper = "import time; time.sleep(600)"
    started = [subprocess.Popen([sys.executable, "-c", sleeper, *words]) for words in lines]
    try:
        wait_until(lambda: all(sleeper.encode() in command_of(one.pid) for one in started), what="them to start")
        assert orphans(paths) == []
        assert end_orphans(paths) == 0
        assert [one.poll() for one in started] == [None] * len(started)
    finally:
        for one in started:
            one.kill()
            one.wait()


def test_what_ray_left_is_ended_even_if_it_hears_nothing(tmp_path: Path) -> None:
    paths = StatePaths(tmp_path / "s")
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    words = [f"--raylet_socket_name={paths.ray_temp}/session_2026-01-01/sockets/raylet"]
    with subprocess.Popen([sys.executable, "-c", deaf, *words], stdout=subprocess.PIPE) as raylet:
        assert raylet.stdout is not None
        raylet.stdout.readline()
        assert orphans(paths) == [raylet.pid]
        assert end_orphans(paths) == 1
        assert raylet.wait() == -signal.SIGKILL
