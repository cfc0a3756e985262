"""The agent's shell with a real engine, and a driver that hangs, refuses and changes its mind."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

from corral.agent import processes, taskdir
from corral.agent.retention import Kept, Retention
from corral.model.job import Cause
from corral.model.messages import TaskReported
from corral.model.resources import Health
from corral.ports.engine import AgentGone
from tests import needs
from tests.unit.agent.scene import FIRST, SECOND, Driver, Play, Scene
from tests.unit.agent.words import acknowledge, key, launch


def test_a_driver_that_hangs_stops_no_heartbeat(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        driver = Driver(FIRST)
        await scene.agent(driver)
        await scene.until(lambda: scene.beats() and scene.beats()[-1].devices[0].health is Health.HEALTHY)
        driver.answers.clear()
        await scene.until(lambda: scene.beats()[-1].devices[0].health is Health.UNKNOWN)
        count = len(scene.beats())
        await scene.until(lambda: len(scene.beats()) >= count + 5)
        detail = scene.beats()[-1].devices[0].detail
        assert detail is not None
        assert "the driver has not answered" in detail
        driver.answers.set()
        await scene.until(lambda: scene.beats()[-1].devices[0].health is Health.HEALTHY)
        assert len(scene.hellos()) == 1

    play(scenario)


def test_an_agent_that_restarts_while_the_driver_hangs_knows_its_devices(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.agent(Driver(FIRST))
        await scene.until(scene.hellos)
        await scene.end_agents()
        driver = Driver(FIRST, SECOND)
        driver.answers.clear()
        await scene.agent(driver)
        await scene.until(lambda: len(scene.hellos()) == 2)
        hello = scene.hellos()[1]
        assert hello.spec.devices == (FIRST,)
        assert [state.health for state in hello.devices] == [Health.UNKNOWN]
        # When it answers at last, it knows of more: the node introduces itself anew.
        driver.answers.set()
        await scene.until(lambda: len(scene.hellos()) == 3)
        assert scene.hellos()[2].spec.devices == (FIRST, SECOND)
        assert [type(said) for said in scene.heard].count(AgentGone) == 2
        await scene.until(lambda: scene.beats() and len(scene.beats()[-1].devices) == 2)

    play(scenario)


def test_a_driver_that_refuses_leaves_its_devices_unknown(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.agent(Driver(FIRST))
        await scene.until(scene.hellos)
        await scene.end_agents()
        broken = Driver(FIRST)
        broken.fault = "driver and library do not match"
        await scene.agent(broken)
        await scene.until(lambda: len(scene.hellos()) == 2)
        [state] = scene.hellos()[1].devices
        assert (state.health, state.detail) == (Health.UNKNOWN, "nvidia: driver and library do not match")
        broken.fault = None
        await scene.until(lambda: scene.beats() and scene.beats()[-1].devices[0].health is Health.HEALTHY)

    play(scenario)


def test_a_node_without_devices_says_what_it_has(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        (scene.config.data_dir / "shard-1").mkdir(parents=True)
        (scene.config.data_dir / ".hidden").mkdir()
        await scene.agent()
        await scene.until(lambda: scene.beats() and scene.beats()[-1].shards)
        beat = scene.beats()[-1]
        assert beat.shards == ("shard-1",)
        assert beat.devices == ()
        assert beat.load_1m is not None
        assert beat.memory_free_mib is not None
        spec = scene.hellos()[0].spec
        assert (spec.cpus_milli, spec.memory_mib, spec.simulated) == (8000, 65536, False)
        assert spec.incarnation.startswith(f"{processes.boot_id()}:")

    play(scenario)


def test_old_directories_go_when_they_are_acknowledged(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        for job in range(1, 6):
            directory = scene.config.tasks_dir / f"{job}.0.0.1"
            directory.mkdir(parents=True)
            (directory / "spec.json").write_text("{}")
            (directory / "status.json").write_text('{"cause": "exited", "exit_code": 0}')
        await scene.agent()
        await scene.until(scene.hellos)
        assert {report.task for report in scene.hellos()[0].tasks} == {key(job) for job in range(1, 6)}
        for job in range(1, 5):
            scene.engine.send(acknowledge(key(job)))
        await scene.until(lambda: len(list(scene.config.tasks_dir.iterdir())) == 3)
        left = {path.name for path in scene.config.tasks_dir.iterdir()}
        assert left == {"3.0.0.1", "4.0.0.1", "5.0.0.1"}
        await scene.end_agents()
        kept = Retention(scene.config.node_dir / "acknowledged", 2, 1.0).load()
        assert {"3.0.0.1", "4.0.0.1"} <= set(kept)
        assert all(isinstance(task, Kept) for task in kept.values())
        await scene.agent()
        await scene.until(lambda: len(scene.hellos()) == 2)
        assert [report.task for report in scene.hellos()[1].tasks] == [key(5)]

    play(scenario)


def test_a_device_that_vanishes_from_the_driver_s_list_has_failed(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        driver = Driver(FIRST, SECOND)
        await scene.agent(driver)
        await scene.until(scene.beats)
        driver.states = driver.states[:1]
        await scene.until(lambda: scene.beats()[-1].devices[1].health is Health.FAILED)
        assert scene.beats()[-1].devices[1].detail == "the driver does not list it any more"
        assert scene.beats()[-1].devices[0].health is Health.HEALTHY
        assert len(scene.hellos()) == 1

    play(scenario)


def test_a_device_that_vanished_between_two_runs_of_the_agent_is_missed(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.agent(Driver(FIRST, SECOND))
        await scene.until(scene.hellos)
        await scene.end_agents()
        await scene.agent(Driver(SECOND))
        await scene.until(lambda: len(scene.hellos()) == 2)
        hello = scene.hellos()[1]
        assert {spec.uuid for spec in hello.spec.devices} == {FIRST.uuid, SECOND.uuid}
        health = {state.uuid: state.health for state in hello.devices}
        assert health == {FIRST.uuid: Health.FAILED, SECOND.uuid: Health.HEALTHY}

    play(scenario)


def test_a_machine_tells_itself_apart_by_its_state_directory(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        (Path(scene.config.state_dir) / "machine-id").write_text("abc123\n")
        await scene.agent()
        await scene.until(scene.hellos)
        assert scene.hellos()[0].spec.machine == "abc123"

    play(scenario)


def test_large_directories_that_are_removed_stop_no_heartbeat(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    removing, go_on = threading.Event(), threading.Event()

    def remove(*_: object) -> list[str]:
        removing.set()
        assert go_on.wait(60.0)
        return []

    monkeypatch.setattr("corral.agent.shell.remove", remove)

    async def scenario(scene: Scene) -> None:
        scene.config = replace(scene.config, tasks_kept=0, tasks_kept_s=0.0)
        marker = taskdir.marker(key(7), 1)
        (scene.config.tasks_dir / marker).mkdir(parents=True)
        (scene.config.node_dir / "acknowledged").write_text(f"1.000 {marker}\n")
        await scene.agent()
        await scene.until(removing.is_set)
        for _ in range(2):
            await scene.next_beat()
        go_on.set()

    play(scenario)


def test_a_node_with_a_full_disk_says_so_and_its_launches_are_not_the_jobs_fault(play: Play) -> None:
    needs.root()

    async def scenario(scene: Scene) -> None:
        disk = scene.config.node_dir
        disk.mkdir(parents=True)
        await asyncio.to_thread(mount, disk)
        try:
            await scene.fork_server()
            await scene.agent(Driver(FIRST))
            await scene.until(scene.beats)
            assert scene.beats()[-1].unfit == ""
            ballast = disk / "ballast"
            await asyncio.to_thread(fill, ballast)
            scene.engine.send(launch(key(1)))
            await scene.until(lambda: any(isinstance(said, TaskReported) for said in scene.heard))
            [failed] = [said.report.exit for said in scene.heard if isinstance(said, TaskReported)]
            assert failed is not None
            assert failed.cause is Cause.NODE_UNFIT
            await scene.until(lambda: scene.beats()[-1].unfit == failed.message)
            assert failed.message == f"its disk cannot be written: No space left on device ({disk})"
            ballast.unlink()
            await scene.until(lambda: not scene.beats()[-1].unfit)
        finally:
            await scene.end_agents()
            await asyncio.to_thread(unmount, disk)

    play(scenario)


def mount(disk: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", disk], check=True)


def unmount(disk: Path) -> None:
    subprocess.run(["umount", "-l", disk], check=True)


def fill(ballast: Path) -> None:
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
