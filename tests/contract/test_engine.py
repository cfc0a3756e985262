"""What every engine must do, with real agents, shims and processes."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from corral.model.ids import NodeId
from corral.model.job import Cause
from corral.model.messages import PROTOCOL, TaskPhase
from tests.contract.engine_world import NODE, Scene, World, task, whole_log


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
            "WORLD_SIZE": "2",
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
            "CORRAL_NUM_GPUS": "2",
            "CORRAL_NUM_NODES": "1",
            "CORRAL_DEVICES": "SIM-H100-node-1-0,SIM-H100-node-1-1",
        }
        assert (world.state_dir / "jobs/12/checkpoint/0").is_dir()
        assert (world.state_dir / "jobs/12/output").is_dir()

    scene(scenario)


def test_mounts_and_setup_are_the_task_s(scene: Scene, tmp_path: Path) -> None:
    user = tmp_path / "user"
    user.mkdir()
    (user / "main.sh").write_text("cat data/part.txt setup-ran; echo new > new")
    (tmp_path / "part.txt").write_text("part\n")

    async def scenario(world: World) -> None:
        await world.start()
        for job in (1, 2):
            command = world.launch(
                job,
                "sh",
                "main.sh",
                workdir=str(user),
                file_mounts={"data/part.txt": str(tmp_path / "part.txt"), "setup-ran": str(tmp_path / "ran")},
                setup=f"echo setup >> {tmp_path}/ran",
                devices=(),
            )
            (tmp_path / "ran").touch()
            world.engine.send(command)
        for job in (1, 2):
            ended = await world.until_phase(job, TaskPhase.ENDED)
            assert ended.exit is not None
            assert ended.exit.ok, ended.exit
            assert await whole_log(world, job) == b"part\nsetup\n"
        assert sorted(path.name for path in user.iterdir()) == ["main.sh"]

    scene(scenario)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"file_mounts": {"x": "/no/such/file"}}, "/no/such/file"),
        ({"file_mounts": {"../x": "/etc"}}, "is not a relative path"),
        ({"envs": {"A=B": "c"}}, "is not a variable that a process can have"),
    ],
)
def test_what_cannot_be_launched_says_why(scene: Scene, changes: dict[str, Any], message: str) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        world.engine.send(world.launch(1, "true", **changes))
        ended = await world.until_phase(1, TaskPhase.ENDED)
        assert ended.exit is not None
        assert ended.exit.cause is Cause.LAUNCH_FAILED
        assert message in ended.exit.message
        # It is written down: another agent knows it too.
        world.kill_agent()
        world.start_agent()
        await world.until(lambda: len(world.hellos()) == 2)
        assert (await world.until_phase(1, TaskPhase.ENDED)).exit == ended.exit
        assert await whole_log(world, 1) == b""

    scene(scenario)


def test_usage_and_progress_of_running_tasks_come_with_the_heartbeats(scene: Scene) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        world.engine.send(world.launch(1, script='echo hello; echo 0.5 > "$CORRAL_TASK_DIR/progress"; sleep 600'))
        await world.until_phase(1, TaskPhase.RUNNING)
        await world.until(lambda: any(u.progress == 0.5 for beat in world.beats() for u in beat.usage))
        sample = world.beats()[-1].usage[0]
        assert (sample.task, sample.incarnation, sample.log_bytes) == (task(1), 1, 6)
        assert sample.rss_mib is not None
        assert sample.cpu_s is not None

    scene(scenario)
