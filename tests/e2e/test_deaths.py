"""Parts of a running pool die by SIGKILL: the supervisor brings them back, and no task notices or is lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from corral.client.handle import JobHandle
from corral.model.events import GangPlaced
from corral.model.job import JobState
from demo.faults import kill_node
from tests.e2e.conftest import live_pool
from tests.e2e.livepool import END_S, LivePool, alive, kill
from tests.waiting import wait_until

UNTIL_TOLD = 'echo before; while [ ! -e "$CORRAL_OUTPUT_DIR/go" ]; do sleep 0.02; done; echo after; exit 7'
ONCE_MORE = 'if [ "$CORRAL_RESTARTS" = 0 ]; then echo first; sleep 600; fi; echo again'


@pytest.fixture(scope="module")
def battered_pool() -> Iterator[LivePool]:
    with live_pool() as pool:
        pool.up()
        yield pool


@pytest.fixture
def battered(battered_pool: LivePool) -> Iterator[LivePool]:
    """A pool of 2 nodes with 2 GPUs each, whole again before every test."""
    wait_until(lambda: battered_pool.client.status().nodes_up == 2, END_S, what="both nodes to be up")
    yield battered_pool
    battered_pool.cancel_all()


def let_go(pool: LivePool, job: JobHandle) -> None:
    (pool.state_dir / "jobs" / job.id / "output" / "go").touch()


def placements(pool: LivePool, job: JobHandle) -> list[GangPlaced]:
    return [entry.fact for entry in pool.client.history(job.id) if isinstance(entry.fact, GangPlaced)]


def ended_well_where_it_began(pool: LivePool, job: JobHandle) -> None:
    let_go(pool, job)
    found = pool.result(job)
    assert (found.state, found.exit_code) == (JobState.FAILED, 7)
    assert pool.log(job) == b"before\nafter\n"
    assert len(placements(pool, job)) == 1


def test_a_killed_daemon_comes_back_and_no_task_notices(battered: LivePool) -> None:
    job = battered.submit(UNTIL_TOLD)
    child = battered.shim(job)["child_pid"]
    before = battered.daemon()
    kill(before)
    later = battered.submit(["echo", "later"])
    assert battered.daemon() != before
    assert battered.result(later).state is JobState.SUCCEEDED
    assert battered.shim(job)["child_pid"] == child
    ended_well_where_it_began(battered, job)


def test_a_killed_agent_adopts_its_tasks_again(battered: LivePool) -> None:
    runs, ends = battered.submit(UNTIL_TOLD, gpus=2), battered.submit(UNTIL_TOLD, gpus=2)
    child, shim = battered.shim(runs)["child_pid"], battered.shim(ends)
    pids = {node: battered.agent(node) for node in ("node-1", "node-2")}
    supervisor = battered.supervisor()
    os.kill(supervisor, signal.SIGSTOP)
    try:
        for pid in pids.values():
            kill(pid)
        # This task ends while nobody looks.
        let_go(battered, ends)
        wait_until(lambda: not alive(shim["pid"]), what="the task to end")
    finally:
        os.kill(supervisor, signal.SIGCONT)
    ended_well_where_it_began(battered, ends)
    assert battered.shim(runs)["child_pid"] == child
    wait_until(lambda: all(battered.agent(node) != pid for node, pid in pids.items()), END_S, what="both agents")
    ended_well_where_it_began(battered, runs)


def test_a_killed_fork_server_comes_back_and_new_tasks_start(battered: LivePool) -> None:
    job = battered.submit(UNTIL_TOLD)
    child = battered.shim(job)["child_pid"]
    before = battered.fork_server()
    kill(before)
    assert battered.output(["echo", "new"]) == "new\n"
    assert battered.fork_server() != before
    assert battered.shim(job)["child_pid"] == child
    ended_well_where_it_began(battered, job)


def test_a_killed_shim_takes_its_task_along_and_the_task_moves_uncounted(battered: LivePool) -> None:
    job = battered.submit(ONCE_MORE, max_restarts=0)
    shim = battered.shim(job)
    kill(shim["pid"])
    found = battered.result(job)
    assert (found.state, found.restarts, found.moves) == (JobState.SUCCEEDED, 0, 1)
    assert not alive(shim["child_pid"])
    first, second = placements(battered, job)
    assert first.placements[0].node != second.placements[0].node
    assert battered.log(job) == b"again\n"


def test_a_killed_node_moves_its_tasks_and_returns(battered: LivePool) -> None:
    jobs = [battered.submit(ONCE_MORE, gpus=1, max_restarts=0) for _ in range(4)]
    for job in jobs:
        battered.started(job)
    on_node = [job for job in jobs if placements(battered, job)[0].placements[0].node == "node-1"]
    assert len(on_node) == 2
    stay = [job for job in jobs if job not in on_node]
    # The agent and two shims; a task may be faster and follow its shim by itself.
    assert 3 <= kill_node(battered.state_dir, "node-1") <= 5
    for job in on_node:
        found = battered.result(job)
        assert (found.state, found.restarts, found.moves) == (JobState.SUCCEEDED, 0, 1)
    for job in stay:
        assert (job.status().state, job.status().moves) == (JobState.RUNNING, 0)
    wait_until(lambda: battered.client.status().nodes_up == 2, what="the node to return")


def test_a_failed_device_is_left_by_its_task_and_used_again_when_it_recovers(battered: LivePool) -> None:
    job = battered.submit(ONCE_MORE, gpus=1, max_restarts=0)
    battered.started(job)
    placed = placements(battered, job)[0].placements[0]
    node, uuid = placed.node, placed.devices[0].uuid
    battered.fail_device(node, uuid, failed="drill: XID 79", xid=79)
    found = battered.result(job)
    assert (found.state, found.restarts, found.moves) == (JobState.SUCCEEDED, 0, 1)
    wait_until(lambda: battered.client.status().devices_failed == 1, what="the failed device to be listed")
    devices = {d.spec.uuid: d for n in battered.client.nodes() for d in n.devices}
    assert [name for name, device in devices.items() if device.failed_reason] == [uuid]
    assert "XID 79" in (devices[uuid].failed_reason or "")
    hogs = [battered.submit(["sleep", "600"], gpus=1) for _ in range(4)]
    for hog in hogs[:3]:
        battered.started(hog)
    used = {share.uuid for hog in hogs[:3] for share in placements(battered, hog)[0].placements[0].devices}
    assert len(used) == 3
    assert uuid not in used
    assert hogs[3].status().state is JobState.PENDING
    battered.fail_device(node, uuid)
    battered.started(hogs[3])
    assert [share.uuid for share in placements(battered, hogs[3])[0].placements[0].devices] == [uuid]


def test_a_device_with_a_foreign_process_is_scheduled_around(battered: LivePool) -> None:
    uuid = "SIM-H100-node-1-0"
    battered.fail_device("node-1", uuid, foreign=({"pid": os.getpid(), "memory_mib": 512},))
    wait_until(lambda: _foreign(battered, uuid), what="the foreign process to be seen")
    hogs = [battered.submit(["sleep", "600"], gpus=1) for _ in range(4)]
    for hog in hogs[:3]:
        battered.started(hog)
    assert hogs[3].status().state is JobState.PENDING
    assert battered.client.status().devices_failed == 0
    battered.fail_device("node-1", uuid)
    battered.started(hogs[3])
    assert [share.uuid for share in placements(battered, hogs[3])[0].placements[0].devices] == [uuid]


def _foreign(pool: LivePool, uuid: str) -> bool:
    devices = [device for node in pool.client.nodes() for device in node.devices]
    return any(d.spec.uuid == uuid and d.state is not None and d.state.foreign for d in devices)


def test_a_killed_supervisor_ends_the_pool_but_no_task(pool: LivePool) -> None:
    info = pool.up()
    job = pool.submit(UNTIL_TOLD)
    child = pool.shim(job)["child_pid"]
    parts = [info.pid, pool.fork_server(), pool.agent("node-1"), pool.agent("node-2")]
    kill(pool.supervisor())
    wait_until(lambda: not any(map(alive, parts)), what="the supervisor's children to end")
    assert alive(child)
    pool.up()
    assert pool.shim(job)["child_pid"] == child
    ended_well_where_it_began(pool, job)


def test_when_all_parts_die_at_once_the_next_up_adopts_the_tasks(pool: LivePool) -> None:
    info = pool.up()
    job = pool.submit(UNTIL_TOLD)
    child = pool.shim(job)["child_pid"]
    parts = [pool.supervisor(), info.pid, pool.fork_server(), pool.agent("node-1"), pool.agent("node-2")]
    os.kill(parts[0], signal.SIGSTOP)
    for pid in reversed(parts):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(map(alive, parts)), what="all parts to die")
    assert alive(child)
    pool.up()
    assert pool.shim(job)["child_pid"] == child
    ended_well_where_it_began(pool, job)


def test_an_agent_that_pauses_is_missed_and_goes_on_with_its_tasks(pool: LivePool) -> None:
    pool.state_dir.mkdir(mode=0o700)
    (pool.state_dir / "config.toml").write_text("node_silent_s = 1.5\nnode_lost_s = 600\n")
    pool.up(nodes=1)
    job = pool.submit(UNTIL_TOLD)
    child, agent = pool.shim(job)["child_pid"], pool.agent("node-1")
    os.kill(agent, signal.SIGSTOP)
    try:
        wait_until(lambda: pool.client.status().nodes_up == 0, END_S, what="the node to be missed")
        waits = pool.submit(["true"])
        assert [node.state for node in pool.client.nodes()] == ["suspect"]
    finally:
        os.kill(agent, signal.SIGCONT)
    wait_until(lambda: pool.client.status().nodes_up == 1, END_S, what="the node to be up again")
    assert pool.result(waits).state is JobState.SUCCEEDED
    assert pool.agent("node-1") == agent
    assert pool.shim(job)["child_pid"] == child
    ended_well_where_it_began(pool, job)
