"""What every engine must do when agents, shims, devices, the fork server or the engine itself die."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from corral.agent import pulse
from corral.devices.simulated import edit_state
from corral.model.ids import NodeId
from corral.model.job import Cause
from corral.model.messages import TaskPhase
from tests.contract.engine_world import NODE, Scene, World, alive, task, whole_log


def test_a_killed_agent_adopts_its_tasks_and_loses_no_exit(scene: Scene, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)

    async def scenario(world: World) -> None:
        await world.start()
        world.engine.send(world.launch(1, script=f"read _ < {gate}; exit 5"))
        world.engine.send(world.launch(2, "sleep", "600", devices=(1,)))
        first = await world.until_phase(1, TaskPhase.RUNNING)
        second = await world.until_phase(2, TaskPhase.RUNNING)
        world.kill_agent()
        await world.until(world.gone)
        assert not world.engine.connected()
        assert second.pid is not None
        assert alive(second.pid)
        # This one ends while nobody watches.
        gate.write_text("\n")
        await world.until((world.task_dir(1) / "status.json").exists)
        world.start_agent()
        await world.until(lambda: len(world.hellos()) == 2)
        known = {report.task: report for report in world.hellos()[1].tasks}
        assert known[task(2)].phase is TaskPhase.RUNNING
        assert known[task(2)].pid == second.pid
        ended = await world.until_phase(1, TaskPhase.ENDED)
        assert ended.exit is not None
        assert ended.exit.exit_code == 5
        assert ended.pid == first.pid
        # The other one is watched and can be stopped as before.
        os.kill(second.pid, signal.SIGKILL)
        killed = await world.until_phase(2, TaskPhase.ENDED)
        assert killed.exit is not None
        assert killed.exit.signal == 9

    scene(scenario)


def test_ends_are_repeated_to_a_new_engine_until_acknowledged(scene: Scene) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        world.engine.send(world.launch(1, "sh", "-c", "exit 1"))
        await world.until_phase(1, TaskPhase.ENDED)
        world.engine.send(world.launch(2, "sh", "-c", "exit 2"))
        await world.until_phase(2, TaskPhase.ENDED)
        world.engine.send(world.launch(3, "sh", "-c", "sleep 600", devices=(1,)))
        await world.until_phase(3, TaskPhase.RUNNING)
        world.engine.send(world.acknowledge(1))
        await world.until(lambda: world.acknowledged(1))
        await world.stop_engine()
        os.kill(world.shim_pid(3), signal.SIGTERM)
        await world.until((world.task_dir(3) / "status.json").exists)
        await world.start_engine()
        await world.until(lambda: len(world.hellos()) == 2)
        hello = world.hellos()[1]
        codes = {r.task: r.exit.exit_code for r in hello.tasks if r.exit is not None and r.exit.cause is Cause.EXITED}
        assert codes == {task(2): 2}
        assert {report.task for report in hello.tasks} == {task(2), task(3)}
        for job in (2, 3):
            world.engine.send(world.acknowledge(job))
        await world.until(lambda: world.acknowledged(3))
        await world.stop_engine()
        await world.start_engine()
        await world.until(lambda: len(world.hellos()) == 3)
        assert world.hellos()[2].tasks == ()

    scene(scenario)


def test_a_killed_shim_is_reported_and_what_it_left_is_swept(scene: Scene, tmp_path: Path) -> None:
    child = tmp_path / "child"

    async def scenario(world: World) -> None:
        await world.start()
        world.engine.send(world.launch(1, script=f"setsid sleep 600 & echo $! > {child}; wait"))
        await world.until_phase(1, TaskPhase.RUNNING)
        await world.until(lambda: child.exists() and child.read_text().strip())
        os.kill(world.shim_pid(1), signal.SIGKILL)
        ended = await world.until_phase(1, TaskPhase.ENDED)
        assert ended.exit is not None
        assert ended.exit.cause is Cause.SHIM_LOST
        assert not alive(int(child.read_text()))
        assert json.loads((world.task_dir(1) / "status.json").read_text())["cause"] == "shim-lost"

    scene(scenario)


def test_a_failed_device_takes_its_tasks_and_only_those(scene: Scene) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        world.engine.send(world.launch(1, "sleep", "600", devices=(0,)))
        world.engine.send(world.launch(2, "sleep", "600", devices=(1,)))
        await world.until_phase(1, TaskPhase.RUNNING)
        await world.until_phase(2, TaskPhase.RUNNING)
        edit_state(world.config(NODE).devices_state_path, "SIM-H100-node-1-0", failed="XID 79")
        ended = await world.until_phase(1, TaskPhase.ENDED)
        assert ended.exit is not None
        assert ended.exit.cause is Cause.DEVICE_FAILED
        assert "XID 79" in ended.exit.message
        running = world.last(2)
        assert running is not None
        assert running.phase is TaskPhase.RUNNING

    scene(scenario)


def test_launches_wait_for_a_fork_server_that_comes_back(scene: Scene) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        world.stop_fork_server()
        world.engine.send(world.launch(1, "sh", "-c", "exit 4"))
        world.engine.send(world.launch(2, "sleep", "600", devices=(1,)))
        world.engine.send(world.stop(2))
        world.start_fork_server()
        first = await world.until_phase(1, TaskPhase.ENDED)
        second = await world.until_phase(2, TaskPhase.ENDED)
        assert first.exit is not None
        assert second.exit is not None
        assert (first.exit.exit_code, second.exit.cause) == (4, Cause.CANCELLED)

    scene(scenario)


def test_an_agent_that_dies_between_writing_and_forking_forks_later(scene: Scene) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        world.stop_fork_server()
        world.engine.send(world.launch(1, "sh", "-c", "exit 6"))
        await world.until((world.task_dir(1) / "spec.json").exists)
        world.kill_agent()
        world.start_fork_server()
        world.start_agent()
        ended = await world.until_phase(1, TaskPhase.ENDED)
        assert ended.exit is not None
        assert ended.exit.exit_code == 6

    scene(scenario)


def test_an_agent_told_to_end_does_so_and_its_tasks_go_on(scene: Scene) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        world.engine.send(world.launch(1, "sleep", "600"))
        running = await world.until_phase(1, TaskPhase.RUNNING)
        assert running.pid is not None
        assert world.end_agent() == 0
        await world.until(world.gone)
        assert alive(running.pid)

    scene(scenario)


def test_a_node_has_one_agent(scene: Scene) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        first = world.agent_pid()
        assert world.second_agent() == 3
        assert world.agent_pid() == first
        assert len(world.hellos()) == 1

    scene(scenario)


def test_fencing_proves_that_nothing_runs_where_the_agent_hangs(scene: Scene, tmp_path: Path) -> None:
    child = tmp_path / "child"
    other = NodeId("node-2")

    async def scenario(world: World) -> None:
        await world.start([NODE, other])
        world.engine.send(world.launch(1, script=f"echo said; setsid sleep 600 & echo $! > {child}; wait"))
        world.engine.send(world.launch(2, "sleep", "600", node=other))
        mine = await world.until_phase(1, TaskPhase.RUNNING)
        others = await world.until_phase(2, TaskPhase.RUNNING)
        await world.until(lambda: child.exists() and child.read_text().strip())
        os.kill(world.agent_pid(), signal.SIGSTOP)
        # It lies in the agent's socket when the agent dies: nothing of it may ever start.
        world.engine.send(world.launch(3, "sleep", "600", devices=(1,)))
        shim = world.shim_pid(1)
        # Until its pulse has been away for long enough it may live for all that its machine knows.
        await world.until(lambda: not pulse.is_felt(world.config(NODE).node_dir))
        assert await world.engine.fence(NODE)
        assert mine.pid is not None
        assert others.pid is not None
        assert not any(alive(pid) for pid in (mine.pid, shim, int(child.read_text()), world.agent_pid()))
        assert alive(others.pid)
        assert not world.task_dir(3).exists()
        await world.until(world.gone)
        # The dead node's log is still there, and complete.
        assert await whole_log(world, 1) == b"said\n"

    scene(scenario)


def test_an_agent_that_lives_is_not_fenced(scene: Scene) -> None:
    """The way to it was broken, and is there again a moment before its hello: fencing it would kill what goes on."""

    async def scenario(world: World) -> None:
        await world.start()
        world.engine.send(world.launch(1, "sleep", "600"))
        running = await world.until_phase(1, TaskPhase.RUNNING)
        agent, before = world.agent_pid(), len(world.hellos())
        await world.stop_engine()
        await world.start_engine()
        assert not await world.engine.fence(NODE)
        await world.until(lambda: len(world.hellos()) > before)
        assert running.pid is not None
        assert alive(running.pid)
        assert alive(agent)

    scene(scenario)
