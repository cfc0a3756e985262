"""What every engine must do, with real agents, shims and processes. An engine is one more parameter of `scene`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from corral.agent import processes
from corral.devices.simulated import edit_state
from corral.model.errors import NotFound
from corral.model.ids import NodeId
from corral.model.job import Cause
from corral.model.messages import PROTOCOL, TaskPhase, TaskReported
from corral.ports.engine import LogChunk
from tests.contract.engine_world import NODE, World, task

Scenario = Callable[[World], Awaitable[None]]
Scene = Callable[[Scenario], None]


@pytest.fixture(params=[World], ids=["local"])
def scene(request: pytest.FixtureRequest, state_dir: Path) -> Scene:
    """Run a scenario in a fresh world, and clean up whatever it leaves."""

    def play(scenario: Scenario) -> None:
        async def whole() -> None:
            world = request.param(state_dir)
            try:
                await asyncio.wait_for(scenario(world), 60.0)
            except BaseException:
                print(world.agent_logs())  # noqa: T201 - shown when the test fails
                raise
            finally:
                await world.close()

        asyncio.run(whole())

    return play


def alive(pid: int) -> bool:
    stat = processes.read_stat(pid)
    return stat is not None and not stat.dead


async def whole_log(world: World, job: int, offset: int = 0, incarnation: int = 1) -> bytes:
    """Follow a log to its end; the chunks must join without a gap."""
    pieces, position = [], offset
    async for chunk in world.engine.follow_log(NODE, task(job), incarnation, offset):
        assert chunk.offset == position
        pieces.append(chunk.data)
        position += len(chunk.data)
    return b"".join(pieces)


def test_an_agent_says_hello_and_then_beats_each_second(scene: Scene) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        hello = world.heard[0]
        assert hello == world.hellos()[0]
        assert hello.protocol == PROTOCOL
        assert hello.spec.id == NODE
        assert hello.spec.simulated
        assert [spec.uuid for spec in hello.spec.devices] == ["SIM-H100-node-1-0", "SIM-H100-node-1-1"]
        assert hello.agent_pid == world.agent_pid()
        assert hello.tasks == ()
        await world.until(lambda: len(world.beats()) >= 3, "three heartbeats")
        sent = [beat.sent_boottime_s for beat in world.beats()]
        assert sent == sorted(sent)
        assert {state.health for state in world.beats()[-1].devices} == {"healthy"}

    scene(scenario)


def test_commands_to_unknown_nodes_are_not_taken(scene: Scene) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        assert not world.engine.send(world.launch(1, "true", node=NodeId("elsewhere")))
        assert world.engine.connected() == {NODE}

    scene(scenario)


def test_a_task_runs_and_its_exit_code_comes_back(scene: Scene) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        assert world.engine.send(world.launch(1, "sh", "-c", "exit 7"))
        report = await world.until_phase(1, TaskPhase.ENDED)
        assert report.exit is not None
        assert (report.exit.cause, report.exit.exit_code, report.exit.signal) == (Cause.EXITED, 7, None)
        assert report.exit.started_at is not None
        assert report.exit.ended_at is not None
        assert report.exit.ended_at >= report.exit.started_at

    scene(scenario)


def test_a_running_task_is_reported_with_its_pid_then_killed_by_a_signal(scene: Scene) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        world.engine.send(world.launch(1, "sleep", "600"))
        report = await world.until_phase(1, TaskPhase.RUNNING)
        assert report.pid is not None
        os.kill(report.pid, signal.SIGKILL)
        ended = await world.until_phase(1, TaskPhase.ENDED)
        assert ended.exit is not None
        assert (ended.exit.cause, ended.exit.signal) == (Cause.SIGNAL, 9)

    scene(scenario)


def test_a_command_that_does_not_exist_says_so(scene: Scene) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        world.engine.send(world.launch(1, "no-such-program"))
        report = await world.until_phase(1, TaskPhase.ENDED)
        assert report.exit is not None
        assert (report.exit.cause, report.exit.exit_code) == (Cause.EXEC_FAILED, 127)
        assert "no-such-program" in report.exit.message

    scene(scenario)


def test_messages_of_a_node_come_in_order_and_once(scene: Scene) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        for job in range(1, 41):
            world.engine.send(world.launch(job, "true", devices=()))
        await world.until(lambda: all(r and r.phase is TaskPhase.ENDED for r in map(world.last, range(1, 41))))
        for job in range(1, 41):
            phases = [report.phase for report in world.reports(job)]
            assert phases in ([TaskPhase.RUNNING, TaskPhase.ENDED], [TaskPhase.ENDED])

    scene(scenario)


def test_the_environment_is_the_task_s_own(scene: Scene) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        command = world.launch(
            12,
            "env",
            devices=(0, 1),
            array_index=4,
            master_port=20001,
            envs={"LR": "0.1", "CORRAL_TENANT": "forged", "PATH": os.environ["PATH"]},
            restarts=2,
        )
        world.engine.send(command)
        await world.until_phase(12, TaskPhase.ENDED)
        lines = (await whole_log(world, 12)).decode().splitlines()
        env = dict(line.split("=", 1) for line in lines)
        directory = world.task_dir(12)
        assert env == {
            "PATH": os.environ["PATH"],
            "HOME": "/nonexistent",
            "LR": "0.1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "20001",
            "NODE_RANK": "0",
            "NNODES": "1",
            "NPROC_PER_NODE": "2",
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": "SIM-H100-node-1-0,SIM-H100-node-1-1",
            "CORRAL_SIMULATED": "1",
            "CORRAL_JOB": "12",
            "CORRAL_JOB_NAME": "job-12",
            "CORRAL_TASK": "12.0.0.1",
            "CORRAL_INCARNATION": "1",
            "CORRAL_ARRAY_INDEX": "4",
            "CORRAL_GANG": "0",
            "CORRAL_RANK": "0",
            "CORRAL_NODE": "node-1",
            "CORRAL_TENANT": "default",
            "CORRAL_RESTARTS": "2",
            "CORRAL_CHECKPOINT_DIR": str(world.state_dir / "jobs/12/checkpoint/0"),
            "CORRAL_OUTPUT_DIR": str(world.state_dir / "jobs/12/output"),
            "CORRAL_DATA_DIR": str(world.state_dir / "nodes/node-1/data"),
            "CORRAL_TASK_DIR": str(directory),
            "CORRAL_GPU_MILLI": "2000",
            "CORRAL_DEVICES": "SIM-H100-node-1-0,SIM-H100-node-1-1",
        }
        assert (world.state_dir / "jobs/12/checkpoint/0").is_dir()
        assert (world.state_dir / "jobs/12/output").is_dir()

    scene(scenario)


def test_a_stop_ends_a_task_with_its_children(scene: Scene, tmp_path: Path) -> None:
    child = tmp_path / "child"

    async def scenario(world: World) -> None:
        await world.start()
        script = f"trap '' TERM; setsid sleep 600 & echo $! > {child}; while :; do sleep 1; done"
        world.engine.send(world.launch(1, script=script))
        await world.until_phase(1, TaskPhase.RUNNING)
        await world.until(lambda: child.exists() and child.read_text().strip())
        world.engine.send(world.stop(1, grace_s=0.2))
        ended = await world.until_phase(1, TaskPhase.ENDED)
        assert ended.exit is not None
        assert ended.exit.cause is Cause.CANCELLED
        assert not alive(int(child.read_text()))

    scene(scenario)


def test_a_stop_that_comes_with_the_launch_is_not_lost(scene: Scene) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        for job in range(1, 11):
            world.engine.send(world.launch(job, "sleep", "600", devices=()))
            world.engine.send(world.stop(job))
        for job in range(1, 11):
            ended = await world.until_phase(job, TaskPhase.ENDED)
            assert ended.exit is not None
            assert ended.exit.cause is Cause.CANCELLED

    scene(scenario)


def test_a_stop_of_an_unknown_task_is_answered_with_its_end(scene: Scene) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        world.engine.send(world.stop(1))
        ended = await world.until_phase(1, TaskPhase.ENDED)
        assert ended.exit is not None
        assert ended.exit.cause is Cause.SHIM_LOST
        # What was reported as ended never starts.
        world.engine.send(world.acknowledge(1))
        world.engine.send(world.launch(1, "true"))
        await world.until(lambda: len(world.reports(1)) == 2)
        again = world.last(1)
        assert again is not None
        assert again.exit is not None
        assert again.exit.cause is Cause.LAUNCH_FAILED
        assert not (world.task_dir(1) / "shim.json").exists()

    scene(scenario)


def test_a_log_is_followed_live_over_rotations_with_every_byte(scene: Scene, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    first = bytes(range(256)) * 40 + "\nµ\n".encode()
    rest = b"".join(b"%06d %s\n" % (number, bytes([number % 256]) * 20) for number in range(1500))
    (tmp_path / "first").write_bytes(first)
    (tmp_path / "rest").write_bytes(rest)

    async def scenario(world: World) -> None:
        await world.start()
        script = f"cat {tmp_path}/first; read _ < {gate}; cat {tmp_path}/rest; read _ < {gate}"
        world.engine.send(world.launch(1, script=script))
        await world.until_phase(1, TaskPhase.RUNNING)
        chunks: list[LogChunk] = []

        async def follow() -> None:
            async for chunk in world.engine.follow_log(NODE, task(1), 1, 0):
                chunks.append(chunk)  # noqa: PERF401 - the list is looked at while it grows

        def size() -> int:
            return sum(len(chunk.data) for chunk in chunks)

        following = asyncio.create_task(follow())
        await world.until(lambda: size() == len(first), "what the task wrote first")
        assert not following.done()
        gate.write_text("\n")
        await world.until(lambda: size() == len(first) + len(rest), "the rest of the log")
        assert not any(chunk.complete for chunk in chunks)
        gate.write_text("\n")
        await following
        assert b"".join(chunk.data for chunk in chunks) == first + rest
        assert chunks[-1].complete
        # Resuming in the middle gives the rest, and one piece can be read alone.
        begin = len(first) + len(rest) - 5000
        assert await whole_log(world, 1, begin) == rest[-5000:]
        piece = await world.engine.read_log(NODE, task(1), 1, begin, 100)
        assert (piece.offset, piece.data, piece.complete) == (begin, rest[-5000:-4900], False)
        # Only the newest files are kept; what is gone is skipped, and the offset says so.
        oldest = await world.engine.read_log(NODE, task(1), 1, 0, 10)
        kept = sum(path.stat().st_size for path in world.task_dir(1).glob("log*") if path.name != "log.start")
        assert oldest.offset == max(0, len(first) + len(rest) - kept)

    scene(scenario)


def test_there_is_no_log_of_what_never_was(scene: Scene) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        with pytest.raises(NotFound):
            await world.engine.read_log(NODE, task(99), 1, 0, 10)
        with pytest.raises(NotFound):
            await whole_log(world, 99)

    scene(scenario)


def test_a_duplicate_launch_runs_once(scene: Scene, tmp_path: Path) -> None:
    witness = tmp_path / "witness"

    async def scenario(world: World) -> None:
        await world.start()
        command = world.launch(1, script=f"echo ran >> {witness}; exit 3")
        for _ in range(3):
            world.engine.send(command)
        await world.until_phase(1, TaskPhase.ENDED)
        world.engine.send(command)
        await world.until(lambda: [r.phase for r in world.reports(1)][-2:] == [TaskPhase.ENDED] * 2)
        world.kill_agent()
        world.start_agent()
        await world.until(lambda: len(world.hellos()) == 2)
        world.engine.send(command)
        world.engine.send(world.launch(2, "true"))
        await world.until_phase(2, TaskPhase.ENDED)
        assert witness.read_text() == "ran\n"

    scene(scenario)


def test_stale_incarnations_and_stale_leaders_are_refused(scene: Scene, tmp_path: Path) -> None:
    witness = tmp_path / "witness"

    async def scenario(world: World) -> None:
        await world.start()

        def order(incarnation: int, epoch: int) -> None:
            world.epoch = epoch
            world.engine.send(world.launch(1, script=f"echo {incarnation} >> {witness}", incarnation=incarnation))

        order(3, 7)
        await world.until_phase(1, TaskPhase.ENDED, 3)
        order(2, 7)
        refused = await world.until_phase(1, TaskPhase.ENDED, 2)
        assert refused.exit is not None
        assert refused.exit.cause is Cause.LAUNCH_FAILED
        order(4, 6)
        world.epoch = 7
        # Both survive a restart of the agent.
        world.kill_agent()
        world.start_agent()
        await world.until(lambda: len(world.hellos()) == 2)
        order(4, 6)
        order(2, 7)
        await world.until(lambda: len(world.reports(1, 2)) == 2)
        assert witness.read_text() == "3\n"
        assert world.reports(1, 4) == []

    scene(scenario)


def test_a_newer_incarnation_starts_when_the_older_one_is_gone(scene: Scene, tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        world.engine.send(world.launch(1, "sleep", "600"))
        old = await world.until_phase(1, TaskPhase.RUNNING)
        assert old.pid is not None
        world.engine.send(world.launch(1, script=f"kill -0 {old.pid} && exit 1; exit 0", incarnation=2))
        new = await world.until_phase(1, TaskPhase.ENDED, 2)
        assert new.exit is not None
        assert new.exit.ok
        assert [said.report.phase for said in world.heard if isinstance(said, TaskReported)][-2:] != []

    scene(scenario)


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


@pytest.mark.parametrize("frozen", [False, True], ids=["agent alive", "agent stopped"])
def test_fencing_proves_that_nothing_runs(scene: Scene, tmp_path: Path, frozen: bool) -> None:
    child = tmp_path / "child"
    other = NodeId("node-2")

    async def scenario(world: World) -> None:
        await world.start([NODE, other])
        world.engine.send(world.launch(1, script=f"echo said; setsid sleep 600 & echo $! > {child}; wait"))
        world.engine.send(world.launch(2, "sleep", "600", node=other))
        mine = await world.until_phase(1, TaskPhase.RUNNING)
        others = await world.until_phase(2, TaskPhase.RUNNING)
        await world.until(lambda: child.exists() and child.read_text().strip())
        if frozen:
            os.kill(world.agent_pid(), signal.SIGSTOP)
            # It lies in the agent's socket when the agent dies: nothing of it may ever start.
            world.engine.send(world.launch(3, "sleep", "600", devices=(1,)))
        shim = world.shim_pid(1)
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


def test_a_node_that_never_was_is_fenced_at_once(scene: Scene) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        assert await world.engine.fence(NodeId("nobody"))

    scene(scenario)
