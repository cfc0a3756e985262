"""When shims or fork servers die: nothing runs unowned, nothing of a task is left."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from corral.agent import processes
from corral.agent.cgroup import probe
from corral.agent.shim.handle import write_lease
from corral.agent.shim.linux import boottime_s
from tests import needs
from tests.contract.shim.shimworld import ShimWorld, child_of, gone, pid_in, shim_of
from tests.waiting import wait_until


def kill_shim(world: ShimWorld, number: int = 0) -> None:
    handle = world.handles[number]
    os.kill(shim_of(handle), signal.SIGKILL)
    wait_until(lambda: not handle.shim_lives())


def test_the_main_child_dies_with_its_shim(world: ShimWorld) -> None:
    handle = world.launch(argv=["sleep", "600"])
    pid = child_of(handle)
    wait_until(lambda: world.event()["event"] == "started")
    kill_shim(world)
    wait_until(lambda: gone(pid), what="the death of the main child")
    assert handle.was_forked()
    assert handle.status() is None


def test_what_it_leaves_is_swept(world: ShimWorld) -> None:
    handle = world.launch(
        script="setsid bash -c 'trap \"\" TERM; echo $$ > one; while :; do sleep 0.1; done' & "
        "(sleep 600 & echo $! > two; wait) & wait"
    )
    pids = {pid_in(world.directory / name) for name in ("one", "two")}
    kill_shim(world)
    assert not any(gone(pid) for pid in pids)
    swept = handle.sweep()
    assert swept.left == frozenset()
    assert pids <= swept.killed
    assert all(gone(pid) for pid in pids)
    assert handle.sweep().killed == frozenset()


def test_a_program_without_the_environment_is_found_by_its_log_pipe(world: ShimWorld) -> None:
    handle = world.launch(script="setsid env -i /bin/sleep 600 & echo $! > pid; wait")
    pid = pid_in(world.directory / "pid")
    wait_until(lambda: processes.read_small(f"/proc/{pid}/environ") == b"", what="env to have cleared it")
    kill_shim(world)
    assert pid in handle.sweep().killed
    assert gone(pid)


def test_a_program_that_hides_from_both_is_found_by_its_control_group(world: ShimWorld) -> None:
    needs.root()
    place = world.directory / "tasks" / "0.0.0.1"
    cgroup = probe().for_task("0.0.0.1", str(place), freezer=True)
    if cgroup is None:
        needs.unmet(f"needs a freezer cgroup: {probe().missing['freezer']}")
    path = world.directory / "lease"
    write_lease(path, boottime_s() + 0.7)
    handle = world.launch(
        script="setsid env -i /bin/sleep 600 < /dev/null > /dev/null 2>&1 & echo $! > pid; wait",
        cgroup=cgroup,
        lease={"path": str(path), "checkpoint_before_s": 0, "freeze_max_s": 600},
    )
    pid = pid_in(world.directory / "pid")
    # Frozen, so that a mere SIGKILL would not end it.
    world.wait_event("frozen")
    kill_shim(world)
    assert pid in handle.sweep().killed
    wait_until(lambda: gone(pid))
    assert not Path(cgroup["freezer"][1], cgroup["name"]).exists()


def test_a_sweep_spares_the_same_task_of_another_pool(world: ShimWorld) -> None:
    script = "setsid sleep 600 & echo $! > {} ; wait"
    first = world.launch(script=script.format("one"))
    other = world.directory / "other" / "0.0.0.1"
    world.handles.append(type(first)(other))
    env = {"PATH": "/usr/bin:/bin"}
    spec = {"task": "0.0.0", "incarnation": 1, "script": script.format("two"), "env": env, "cwd": str(world.directory)}
    world.handles[1].write_spec(spec)
    assert world.client.launch(other).pid is not None
    mine, theirs = pid_in(world.directory / "one"), pid_in(world.directory / "two")
    kill_shim(world)
    assert mine in first.sweep().killed
    assert not gone(theirs)


def test_tasks_outlive_the_fork_server(world: ShimWorld) -> None:
    handles = [world.launch(number, script="sleep 600; exit 6") for number in range(3)]
    children = [child_of(handle) for handle in handles]
    world.server.kill()
    world.server.wait()
    world.client.close()
    world.restart_server()
    assert not any(gone(pid) for pid in children)
    # The new one knows what the old one did.
    assert world.client.launch(handles[0].directory).code == "already-forked"
    assert world.run(3, argv=["true"])["exit_code"] == 0
    for handle in handles:
        assert handle.stop("cancelled", 10)
        assert world.end(handle)["cause"] == "cancelled"


def test_a_fork_server_that_is_told_to_stop_leaves_its_tasks(world: ShimWorld) -> None:
    handle = world.launch(script="while [ ! -e go ]; do sleep 0.02; done; exit 6")
    child_of(handle)
    world.stop_server()
    assert not world.socket_path.exists()
    (world.directory / "go").touch()
    assert world.end(handle)["exit_code"] == 6


def test_a_fault_of_the_shim_ends_the_task_and_is_told(world: ShimWorld) -> None:
    handle = world.prepare(script="setsid sleep 600 & sleep 600")
    # The shim cannot introduce itself: a place that must be free is taken.
    (handle.directory / "shim.json").mkdir()
    assert world.client.launch(handle.directory).pid is not None
    status = world.end(handle)
    assert status["cause"] in ("launch-failed", "shim-lost")
    assert status["message"].startswith("fault in the shim: FileExistsError: ")
    assert "main.py:" in status["message"]
    assert world.processes_of(handle) == []
    assert world.event()["event"] == "exited"
    (handle.directory / "shim.json").rmdir()
