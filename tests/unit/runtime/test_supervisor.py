"""The supervisor: restarts with and without back-off, ends, locks; nothing of a pool outlives it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import threading
import time
from pathlib import Path

import pytest

from corral.runtime import supervisor as module
from corral.runtime.starting.launcher import running_supervisor
from corral.runtime.supervisor import BACKOFF_FIRST_S, EXIT_CONFIG, STEADY_S, Child, lock_pid_file
from tests.unit.runtime.ground import Ground, alive, children_of, kill
from tests.waiting import wait_until

ANNOUNCE = "import json, os, sys; json.dump({'pid': os.getpid()}, open(sys.argv[1], 'w')); sys.exit(int(sys.argv[2]))"


def child(folder: Path, code: str, *arguments: str, ready: Path | None = None) -> Child:
    return Child("child", [sys.executable, "-c", code, *arguments], folder / "child.log", ready)


def died(one: Child, now: float) -> int:
    """Wait for its death and let it be noticed at ``now``."""
    found: list[int | None] = []

    def look() -> bool:
        found.append(one.keep(now))
        return found[-1] is not None

    wait_until(look)
    code = found[-1]
    assert code is not None
    return code


def test_what_dies_before_it_was_ready_is_restarted_ever_later(tmp_path: Path) -> None:
    one = child(tmp_path, "import sys; sys.exit(3)")
    one.start()
    now = time.monotonic()
    pauses = []
    for _ in range(7):
        assert died(one, now) == 3
        pauses.append(one._due_at - now)
        assert one.keep(one._due_at - 0.001) is None
        assert one._process is None, "it was started too early"
        now = one._due_at
        one.keep(now)
        assert one._process is not None
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0])
    one.stop()


def test_what_had_become_ready_or_lived_long_is_restarted_at_once(tmp_path: Path) -> None:
    place = tmp_path / "ready.json"
    one = child(tmp_path, ANNOUNCE, str(place), "1", ready=place)
    one.start()
    now = time.monotonic()
    assert died(one, now) == 1
    assert one._due_at == now
    one.keep(now)
    # What stands there was said by another process.
    wait_until(lambda: one._process is not None and one._process.poll() is not None)
    place.write_text(json.dumps({"pid": 1}))
    assert died(one, now) == 1
    assert one._due_at == pytest.approx(now + BACKOFF_FIRST_S)
    late = one._due_at + STEADY_S + 1.0
    one.keep(one._due_at)
    wait_until(lambda: one._process is not None and one._process.poll() is not None)
    place.write_text("no json")
    died(one, late)
    assert one._due_at == late
    one.stop()


def test_a_child_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STOP_S", 0.2)
    ready = tmp_path / "deaf"
    code = "import pathlib, signal, sys, time; signal.signal(15, signal.SIG_IGN); pathlib.Path(sys.argv[1]).touch()"
    one = child(tmp_path, f"{code}; time.sleep(600)", str(ready))
    one.start()
    wait_until(ready.exists)
    assert one._process is not None
    pid = one._process.pid
    one.stop()
    assert not alive(pid)
    one.stop()


def test_who_asks_for_a_moment_does_not_keep_a_supervisor_from_starting(tmp_path: Path) -> None:
    place = tmp_path / "supervisor.pid"
    place.touch()
    with place.open() as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)
        timer = threading.Timer(0.05, fcntl.flock, (asking, fcntl.LOCK_UN))
        timer.start()
        with lock_pid_file(place):
            assert place.read_text() == f"{os.getpid()}\n"
        timer.join()


def test_who_asks_waits_for_the_pid_that_is_about_to_be_written(ground: Ground) -> None:
    place = ground.paths.supervisor_pid
    with place.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)

        def write() -> None:
            held.write("4711\n")
            held.flush()

        timer = threading.Timer(0.05, write)
        timer.start()
        # Never 0: who would stop the pool would signal its own group.
        assert running_supervisor(ground.paths) == 4711
        timer.join()
    assert running_supervisor(ground.paths) is None


def test_it_keeps_the_pool_alive_and_leaves_nothing_behind(ground: Ground) -> None:
    ground.write(agents=True)
    one = ground.supervisor()
    first = ground.announced()
    wait_until(lambda: len(children_of(one.pid)) == 3)
    second = ground.start("supervisor", str(ground.paths.root))
    assert ground.code(second) == 1
    assert "another supervisor" in ground.log("supervisor")
    kill(first)
    again = ground.announced(first)
    assert children_of(one.pid).count(again) == 1
    assert f"daemon ended with {-9}" in ground.log("supervisor")
    agent = json.loads((ground.paths.nodes / "node-1" / "agent.pid").read_text())["pid"]
    kill(agent)
    wait_until(lambda: len(children_of(one.pid)) == 3 and agent not in children_of(one.pid))
    pids = children_of(one.pid)
    assert ground.end(one) == 0
    assert not any(alive(pid) for pid in pids)
    assert running_supervisor(ground.paths) is None


def test_a_daemon_that_refuses_for_good_ends_the_supervisor(ground: Ground) -> None:
    ground.write(agents=True)
    (ground.paths.root / "config.toml").write_text("jobs_max = 0\n")
    one = ground.supervisor()
    assert ground.code(one) == EXIT_CONFIG
    assert ground.failure()["code"] == "INVALID_FIELD"
    assert not ground.paths.daemon.exists()


def test_a_killed_supervisor_takes_the_pool_with_it(ground: Ground) -> None:
    ground.write(agents=True)
    one = ground.supervisor()
    ground.announced()
    wait_until(lambda: len(children_of(one.pid)) == 3)
    pids = children_of(one.pid)
    kill(one.pid)
    ground.code(one)
    wait_until(lambda: not any(alive(pid) for pid in pids), 20.0, what="the rest of the pool to end")


def test_a_full_disk_ends_no_supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Path("/dev/full").open("w")  # noqa: SIM115 - closing it fails, too
    monkeypatch.setattr(sys, "stderr", full)
    one = child(tmp_path, "pass")
    one.start()
    wait_until(lambda: one._process is not None and one._process.poll() is not None)
    module._keep([one])
    assert one._process is None
    # Nor does what cannot be started now.
    one._log = tmp_path / "gone" / "child.log"
    before = one._due_at
    assert one.keep(before) is None
    assert one._process is None
    assert one._due_at > before
    one._log = tmp_path / "child.log"
    one.keep(one._due_at)
    assert one._process is not None
    one.stop()
    with contextlib.suppress(OSError):
        full.close()
