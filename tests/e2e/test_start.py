"""Starting a pool where something is in the way: one clear error, and nothing is left running."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from corral.model.errors import (
    AlreadyRunning,
    CorralError,
    DaemonNotRunning,
    PortTaken,
    SchemaTooNew,
    StoreCorrupt,
)
from corral.model.events import NodeCordoned, NodeUncordoned
from corral.model.ids import NodeId
from corral.model.job import JobState
from corral.ports.store import Batch
from corral.runtime.options import PoolInfo
from corral.storage import SqliteStore
from corral.storage.schema import VERSION_TABLE
from tests import needs
from tests.e2e.livepool import LivePool, alive
from tests.waiting import wait_until

DAY_S = 86_400.0


def refused(pool: LivePool, kind: type[CorralError], **options: Any) -> str:
    """Try to start the pool; check that it is refused in one line and that nothing is left running."""
    with pytest.raises(CorralError) as caught:
        pool.up(**options)
    assert type(caught.value) is kind, caught.value
    text = str(caught.value)
    assert "\n" not in text
    assert "Traceback" not in text
    pool.nothing_left()
    with pytest.raises(DaemonNotRunning):
        pool.down()
    return text


def test_a_taken_port_is_named_and_nothing_is_left(pool: LivePool) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen(1)
        port = other.getsockname()[1]
        text = refused(pool, PortTaken, port=port)
    assert f"127.0.0.1:{port}" in text
    assert "--port" in text
    assert pool.up(port=port).url.endswith(f":{port}")


def test_stale_sockets_and_pid_files_are_no_pool(pool: LivePool) -> None:
    pool.up()
    pool.down()
    for path in (pool.paths.engine_socket, pool.paths.fork_socket):
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(path))
    pool.paths.supervisor_pid.write_text(f"{os.getpid()}\n")
    pool.paths.daemon.write_text('{"url": "http://127.0.0.1:9", "pid": 1, "version": "0", "port": 9}')
    for node in ("node-1", "node-2"):
        (pool.paths.nodes / node / "agent.pid").write_text(
            f'{{"pid": {os.getpid()}, "start_ticks": 1, "boot_id": "x"}}'
        )
    assert pool.up().nodes_up == 2
    assert pool.output(["echo", "hello"]) == "hello\n"


def test_a_second_up_is_refused_and_the_pool_goes_on(pool: LivePool) -> None:
    first = pool.up()
    with pytest.raises(AlreadyRunning, match=str(first.supervisor_pid)):
        pool.up()
    assert pool.client.status().pid == first.pid
    assert pool.output(["echo", "hello"]) == "hello\n"


def test_of_two_ups_at_the_same_moment_one_wins(pool: LivePool) -> None:
    pool.state_dir.mkdir(mode=0o700)
    answers: list[PoolInfo | CorralError] = []
    gate = threading.Barrier(2)

    def up() -> None:
        gate.wait()
        try:
            answers.append(pool.up())
        except CorralError as error:
            answers.append(error)

    both = [threading.Thread(target=up) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    won = [answer for answer in answers if isinstance(answer, PoolInfo)]
    lost = [answer for answer in answers if isinstance(answer, CorralError)]
    assert [type(error) for error in lost] == [AlreadyRunning], answers
    assert len(won) == 1
    assert pool.client.status().pid == won[0].pid
    assert pool.output(["echo", "hello"]) == "hello\n"


def up_as(before: tuple[str, ...], *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Call `corral up` through other programs; return how it ended."""
    return subprocess.run(
        [*before, *arguments, sys.executable, "-m", "corral", "up", "--port", "0"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", "CORRAL_STATE_DIR": "/nonexistent"},
    )


def test_a_place_where_one_may_not_write_is_refused(pool: LivePool) -> None:
    before: tuple[str, ...] = ()
    if os.geteuid() == 0:
        # Permission bits stop root only without this capability (capabilities(7)).
        before = (needs.program("setpriv", package="util-linux"), "--bounding-set=-dac_override")
    pool.state_dir.parent.chmod(stat.S_IRUSR | stat.S_IXUSR)
    ended = up_as((*before, "env", f"CORRAL_STATE_DIR={pool.state_dir}"))
    assert ended.stderr.startswith(f"error[STATE_UNUSABLE]: cannot use {pool.state_dir}: permission denied"), ended
    assert ended.stderr.count("\n") == 1
    pool.nothing_left()


def test_a_read_only_file_system_is_refused(pool: LivePool) -> None:
    needs.root()
    pool.up()
    pool.down()
    unshare = needs.program("unshare", package="util-linux")
    script = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec env CORRAL_STATE_DIR="$0" "$@"'
    ended = up_as((unshare, "--mount", "--propagation", "private", "sh", "-c", script), pool.state_dir)
    assert ended.stderr.startswith(f"error[STATE_UNUSABLE]: cannot use {pool.state_dir}: read-only file system"), ended
    assert ended.stderr.count("\n") == 1
    pool.nothing_left()


def test_a_full_disk_stops_the_pool_and_loses_nothing_acknowledged(pool: LivePool) -> None:
    needs.root()
    unshare = needs.program("unshare", package="util-linux")
    script, disk = Path(__file__).with_name("full_disk.py"), pool.state_dir.parent
    ended = subprocess.run(
        [unshare, "--mount", "--propagation", "private", sys.executable, script, disk],
        env={**os.environ, "PYTHONPATH": str(script.parents[2])},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert told["acknowledged"] > 20
    assert told["code"] == told["failure"]["code"] == "STORE_FULL"
    assert "the disk is full" in told["failure"]["message"]
    assert told["again"].startswith(("STORE_FULL: ", "STATE_UNUSABLE: "))
    assert "free some space" in told["again"]
    assert told["seen"].startswith("DAEMON_NOT_RUNNING: the pool stopped: STORE_FULL: ")
    assert "free some space" in told["seen"]
    assert told["lost"] == []
    assert told["task_went_on"]
    assert told["last"] == ["succeeded", 0]


def test_a_pool_whose_files_were_removed_comes_back_by_itself(pool: LivePool) -> None:
    info = pool.up()
    job = pool.submit(["sleep", "600"])
    child = pool.shim(job)["child_pid"]
    pool.paths.daemon.unlink()
    wait_until(pool.paths.daemon.exists, what="the daemon to announce itself again")
    assert pool.client.status().pid == info.pid
    shutil.rmtree(pool.paths.run)
    wait_until(lambda: pool.paths.engine_socket.exists() and pool.daemon() != info.pid, what="the parts to start anew")
    assert pool.output(["echo", "hello"]) == "hello\n"
    assert pool.shim(job)["child_pid"] == child
    job.cancel()
    pool.result(job)
    pool.paths.daemon.unlink()
    pool.down()
    pool.nothing_left()


def test_a_corrupt_store_is_refused_and_left_as_it_is(pool: LivePool) -> None:
    pool.up()
    pool.output(["echo", "hello"])
    pool.down()
    damaged = bytearray(pool.paths.store.read_bytes())
    damaged[4096:8192] = os.urandom(4096)
    pool.paths.store.write_bytes(damaged)
    text = refused(pool, StoreCorrupt)
    assert str(pool.paths.store) in text
    assert pool.paths.store.read_bytes() == damaged


def test_a_store_of_a_newer_release_is_refused(pool: LivePool) -> None:
    pool.up()
    pool.down()
    with sqlite3.connect(pool.paths.store) as connection:
        connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    connection.close()
    assert "newer corral" in refused(pool, SchemaTooNew)


def date_the_journal_ahead(pool: LivePool, by_s: float) -> float:
    """Make a stopped pool's journal end ``by_s`` from now, as if the clock was set back since; return that time."""
    ahead = time.time() + by_s
    store = SqliteStore(pool.paths.store)
    store.open()
    epoch, recovered = store.acquire_leadership(), store.recover()
    last = recovered.entries[-1].seq if recovered.entries else recovered.snapshot_seq
    node = NodeId("node-1")
    cordoned, uncordoned = NodeCordoned(at=ahead, node=node, by="me"), NodeUncordoned(at=ahead, node=node, by="me")
    store.append(last, epoch, Batch((cordoned, uncordoned)))
    store.close()
    return ahead


def test_time_goes_on_when_the_clock_jumped_back_between_two_starts(pool: LivePool) -> None:
    pool.up()
    early = pool.submit(["sleep", "600"])
    pool.started(early)
    late = pool.submit("true", after=[early], max_duration="1m")
    pool.down(leave_tasks=True)
    ahead = date_the_journal_ahead(pool, DAY_S)
    pool.up()
    status = pool.client.status()
    assert status.now >= ahead
    assert status.clock_offset_s == pytest.approx(-DAY_S, abs=60.0)
    assert pool.started(early).exit is None
    job = pool.submit("echo hello; sleep 0.1")
    found = pool.result(job)
    assert found.state is JobState.SUCCEEDED
    receipt = job.receipt()
    assert ahead <= receipt.submitted_at <= (receipt.started_at or 0.0) <= (receipt.ended_at or 0.0)
    assert 0.0 <= receipt.waited_s < 60.0
    assert 0.0 < receipt.ran_s < 60.0
    times = [entry.fact.at for entry in pool.client.history(job.id)]
    assert times == sorted(times)
    early.cancel()
    assert pool.result(early).state is JobState.CANCELLED
    assert pool.result(late).state is JobState.CANCELLED
    nodes = pool.client.nodes()
    assert all(node.state == "up" for node in nodes)


def test_nothing_that_up_started_outlives_down(pool: LivePool) -> None:
    info = pool.up()
    pids = pool.processes()
    assert {info.pid, info.supervisor_pid} <= set(pids)
    pool.output("sleep 60 & disown; echo done")
    pool.down()
    wait_until(lambda: not any(map(alive, pids)), what="everything to end")
    pool.nothing_left()
