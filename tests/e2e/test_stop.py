"""Stopping a pool in which something runs."""

from __future__ import annotations

from typing import Any

import pytest

from corral.model.errors import Conflict, DaemonNotRunning, JobsRunning
from corral.model.job import JobState, TaskState
from tests.e2e.livepool import LivePool, alive, parent_of
from tests.waiting import wait_until

UNTIL_TOLD = 'echo before; while [ ! -e "$CORRAL_OUTPUT_DIR/go" ]; do sleep 0.02; done; echo after; exit 7'


def test_down_is_refused_while_jobs_run_and_force_queues_them_again(pool: LivePool) -> None:
    pool.up()
    job = pool.submit('if [ "$CORRAL_RESTARTS" = 0 ]; then echo first; sleep 600; fi; echo again; exit 3')
    child = pool.shim(job)["child_pid"]
    with pytest.raises(JobsRunning):
        pool.down()
    assert alive(child)
    assert job.status().state is JobState.RUNNING
    report = pool.down(force=True)
    assert (report.tasks_left, report.forced) == (0, True)
    assert not alive(child)
    pool.nothing_left()
    with pytest.raises(DaemonNotRunning):
        pool.down(force=True)
    pool.up()
    found = pool.result(job)
    assert (found.state, found.exit_code, found.restarts, found.moves) == (JobState.FAILED, 3, 0, 1)
    assert pool.log(job) == b"again\n"


def test_tasks_that_are_left_run_on_alone_and_the_next_up_adopts_them(pool: LivePool) -> None:
    pool.up()
    short, long = pool.submit(UNTIL_TOLD), pool.submit(UNTIL_TOLD)
    shims = [pool.shim(short), pool.shim(long)]
    family = {shim[which] for shim in shims for which in ("pid", "child_pid")}
    report = pool.down(leave_tasks=True)
    assert (report.tasks_left, report.forced) == (2, False)
    tasks = {shim["child_pid"] for shim in shims}
    wait_until(lambda: all(parent_of(pid) in tasks for pid in pool.processes() if pid not in family), what="all others")
    assert all(map(alive, family))
    (pool.state_dir / "jobs" / short.id / "output" / "go").touch()
    wait_until(lambda: not alive(shims[0]["pid"]), what="the short task to end")
    pool.up()
    found = pool.result(short)
    assert (found.state, found.exit_code, found.moves) == (JobState.FAILED, 7, 0)
    assert pool.log(short) == b"before\nafter\n"
    task = pool.started(long)
    assert task.state is TaskState.RUNNING
    assert pool.shim(long)["child_pid"] == shims[1]["child_pid"]
    (pool.state_dir / "jobs" / long.id / "output" / "go").touch()
    found = pool.result(long)
    assert (found.state, found.exit_code, found.moves) == (JobState.FAILED, 7, 0)
    assert pool.log(long) == b"before\nafter\n"
    assert long.details().gangs[0].incarnation == 1


def test_a_plain_up_takes_the_nodes_and_the_tasks_as_before(pool: LivePool) -> None:
    pool.up(nodes=2, gpus=3)
    job = pool.submit(["sleep", "600"], gpus=3)
    child = pool.shim(job)["child_pid"]
    pool.down(leave_tasks=True)
    plain: dict[str, Any] = {"nodes": None, "gpus": None, "simulated": None}
    with pytest.raises(Conflict, match=r"1 running task of node-1 would be lost.*--drop-nodes"):
        pool.up(**plain | {"simulated": "none"})
    info = pool.up(**plain)
    assert (info.nodes_up, info.devices, info.simulated) == (2, {"H100": 6}, True)
    assert info.notes[0].startswith("as before: 2 SIMULATED nodes of 3 x h100")
    assert pool.shim(job)["child_pid"] == child
    job.cancel()
    pool.result(job)
    pool.down()
    assert not pool.up(**plain | {"simulated": "none"}).simulated
    pool.down()
    info = pool.up(**plain)
    assert (info.simulated, info.notes) == (False, ())


def test_nodes_that_are_dropped_give_their_jobs_to_the_others(pool: LivePool) -> None:
    pool.state_dir.mkdir(mode=0o700, exist_ok=True)
    (pool.state_dir / "config.toml").write_text("node_silent_s = 1.1\nnode_lost_s = 1.1\n")
    pool.up(nodes=2, gpus=2)
    jobs = [pool.submit(["sleep", "600"], gpus=2) for _ in range(2)]
    for job in jobs:
        pool.started(job)
    pool.down(leave_tasks=True)
    with pytest.raises(Conflict, match="node-2"):
        pool.up(nodes=1, gpus=2)
    assert pool.up(nodes=1, gpus=2, drop_nodes=True).nodes_up == 1
    (stays,) = [job for job in jobs if "node-1" in str(pool.task_dir(job))]
    (moves,) = [job for job in jobs if job is not stays]
    stays.cancel()
    pool.started(moves, incarnation=2)
    assert pool.task_dir(moves, incarnation=2).is_relative_to(pool.paths.nodes / "node-1")
