"""Launching and watching where something goes wrong, with a real fork server and real shims."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
from typing import Any

import msgspec
import pytest

from corral.agent import taskdir
from corral.agent.processes import is_alive, read_stat, start_ticks
from corral.model.job import Cause
from corral.model.messages import LaunchTask, TaskPhase
from corral.model.resources import DeviceShare, DeviceState, Health, Placement
from tests import needs
from tests.unit.agent.scene import FIRST, Driver, Play, Scene
from tests.unit.agent.words import GPU, NODE, key, launch, stop


def plain(job: int, *argv: str, **changes: Any) -> LaunchTask:
    return launch(key(job), argv=argv, placement=Placement(0, NODE, (), 0, 0), **changes)


def on_gpu(job: int, *argv: str) -> LaunchTask:
    return launch(key(job), argv=argv, placement=Placement(0, NODE, (DeviceShare(GPU, 1000),), 0, 0))


def shim_of(scene: Scene, job: int) -> taskdir.ShimFile:
    shim = taskdir.read_shim(scene.config.tasks_dir / f"{job}.0.0.1")
    assert shim is not None
    return shim


async def started(scene: Scene, *drivers: Driver) -> None:
    await scene.fork_server()
    await scene.agent(*drivers)
    await scene.until(scene.hellos)


def test_a_shim_that_does_not_answer_is_killed_with_its_task(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        await started(scene)
        scene.engine.send(plain(1, "sleep", "600"))
        running = await scene.until_phase(key(1), TaskPhase.RUNNING)
        assert running.pid is not None
        ticks = start_ticks(running.pid)
        assert ticks is not None
        os.kill(shim_of(scene, 1).pid, signal.SIGSTOP)
        scene.engine.send(msgspec.structs.replace(stop(key(1)), grace_s=0.1))
        ended = await scene.until_phase(key(1), TaskPhase.ENDED)
        assert ended.exit is not None
        assert ended.exit.cause is Cause.CANCELLED
        assert not is_alive(running.pid, ticks)

    play(scenario)


def test_lost_datagrams_lose_nothing(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        await started(scene)
        # What shims send goes nowhere from now on.
        os.unlink(scene.config.notify_socket)  # noqa: PTH108
        scene.engine.send(plain(1, "sh", "-c", "exit 3"))
        scene.engine.send(plain(2, "sleep", "600"))
        ended = await scene.until_phase(key(1), TaskPhase.ENDED)
        assert ended.exit is not None
        assert ended.exit.exit_code == 3
        running = await scene.until_phase(key(2), TaskPhase.RUNNING)
        assert running.pid is not None
        os.kill(running.pid, signal.SIGKILL)
        killed = await scene.until_phase(key(2), TaskPhase.ENDED)
        assert killed.exit is not None
        assert killed.exit.signal == 9

    play(scenario)


def test_a_forged_datagram_is_no_harm(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        await started(scene)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            for data in (
                b"",
                b"nonsense",
                b'{"event": "exited"}',
                b'{"event":"exited","task":"9.0.0","incarnation":1}',
            ):
                sender.sendto(data, scene.config.notify_socket)
        scene.engine.send(plain(1, "true"))
        await scene.until_phase(key(1), TaskPhase.ENDED)

    play(scenario)


def test_a_device_that_keeps_its_memory_holds_the_end_back_and_is_told(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        driver = Driver(FIRST)
        driver.states = (DeviceState(GPU, Health.HEALTHY, memory_used_mib=4),)
        await started(scene, driver)
        await scene.until(scene.beats)
        scene.engine.send(on_gpu(1, "sleep", "600"))
        running = await scene.until_phase(key(1), TaskPhase.RUNNING)
        assert running.pid is not None
        driver.states = (DeviceState(GPU, Health.HEALTHY, memory_used_mib=9000, pids=(running.pid,)),)
        os.kill(running.pid, signal.SIGKILL)
        ended = await scene.until_phase(key(1), TaskPhase.ENDED)
        assert ended.exit is not None
        assert ended.exit.signal == 9
        assert ended.exit.message == f"device GPU-0 still lists process {running.pid} of the task 0.3 s after the end"

    play(scenario, release_timeout_s=0.3)


def test_a_driver_that_hangs_delays_an_end_but_does_not_lose_it(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        driver = Driver(FIRST)
        await started(scene, driver)
        scene.engine.send(on_gpu(1, "sleep", "600"))
        running = await scene.until_phase(key(1), TaskPhase.RUNNING)
        driver.answers.clear()
        assert running.pid is not None
        os.kill(running.pid, signal.SIGKILL)
        ended = await scene.until_phase(key(1), TaskPhase.ENDED)
        assert ended.exit is not None
        assert "the device driver did not answer 0.2 s after the end" in ended.exit.message
        driver.answers.set()

    play(scenario, release_timeout_s=0.2)


def test_an_old_task_directory_without_a_specification_is_a_failed_launch(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        (scene.config.tasks_dir / "7.0.0.1").mkdir(parents=True)
        await started(scene)
        ended = await scene.until_phase(key(7), TaskPhase.ENDED)
        assert ended.exit is not None
        assert ended.exit.cause is Cause.LAUNCH_FAILED
        assert ended.exit.message == "the agent ended while it prepared the task"

    play(scenario)


@pytest.mark.parametrize("jobs", [60])
def test_many_short_tasks_at_once_all_come_back(play: Play, jobs: int) -> None:
    async def scenario(scene: Scene) -> None:
        await started(scene)
        for job in range(1, jobs + 1):
            scene.engine.send(plain(job, "sh", "-c", f"exit {job % 7}"))
        for job in range(1, jobs + 1):
            ended = await scene.until_phase(key(job), TaskPhase.ENDED)
            assert ended.exit is not None
            assert ended.exit.exit_code == job % 7

    play(scenario)


def test_a_lease_is_written_and_extended(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        await started(scene)
        await scene.until(scene.beats)
        sent = scene.beats()[-1].sent_boottime_s
        scene.engine.send(scene.echo(sent))
        scene.engine.send(plain(1, "sleep", "600", lease_s=90.0))
        await scene.until_phase(key(1), TaskPhase.RUNNING)
        path = scene.config.tasks_dir / "1.0.0.1" / "lease"
        assert float(path.read_text()) == pytest.approx(sent + 90.0, abs=1e-5)
        later = await scene.next_beat()
        scene.engine.send(scene.echo(later))
        await scene.until(lambda: float(path.read_text()) == pytest.approx(later + 90.0, abs=1e-5))

    play(scenario)


def test_nothing_runs_before_there_was_contact_and_all_of_it_then(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        await started(scene)
        scene.engine.send(plain(1, "sleep", "600", lease_s=90.0))
        await scene.until(lambda: taskdir.read_shim(scene.config.tasks_dir / "1.0.0.1"))
        assert shim_of(scene, 1).child_pid is None
        scene.engine.send(scene.echo(await scene.next_beat()))
        await scene.until_phase(key(1), TaskPhase.RUNNING)

    play(scenario)


def test_a_task_whose_shim_does_not_keep_the_lease_is_killed_with_it(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        await started(scene)
        scene.engine.send(scene.echo(await scene.next_beat()))
        for job in (1, 2):
            scene.engine.send(plain(job, "sleep", "600", lease_s=3.0))
        pids = [(await scene.until_phase(key(job), TaskPhase.RUNNING)).pid for job in (1, 2)]
        assert pids[0] is not None
        assert pids[1] is not None
        ticks = [start_ticks(pid) for pid in pids if pid is not None]
        os.kill(shim_of(scene, 1).pid, signal.SIGSTOP)
        ended = await scene.until_phase(key(1), TaskPhase.ENDED)
        assert ended.exit is not None
        assert ended.exit.cause is Cause.LEASE_EXPIRED
        assert ticks[0] is not None
        assert not is_alive(pids[0], ticks[0])
        # The other one's shim does its work: the task is frozen, and goes on when there is contact.
        assert scene.report(key(2), TaskPhase.ENDED) is None
        stat = read_stat(pids[1])
        assert stat is not None
        assert stat.stopped
        scene.engine.send(scene.echo(await scene.next_beat()))

        def awake() -> bool:
            stat = read_stat(pids[1] or 0)
            return stat is not None and not stat.stopped

        await scene.until(awake)

    # Without a freezer a frozen process can be seen to be stopped.
    play(scenario, simulated=True)


def test_an_agent_that_comes_back_holds_the_leases_of_before(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        await started(scene)
        scene.engine.send(scene.echo(await scene.next_beat()))
        scene.engine.send(plain(1, "sleep", "600", lease_s=3.0))
        await scene.until_phase(key(1), TaskPhase.RUNNING)
        await scene.end_agents()
        os.kill(shim_of(scene, 1).pid, signal.SIGSTOP)
        await scene.agent()
        ended = await scene.until_phase(key(1), TaskPhase.ENDED)
        assert ended.exit is not None
        assert ended.exit.cause is Cause.LEASE_EXPIRED

    play(scenario)


def test_what_a_task_asks_for_is_what_it_gets(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        if len(os.sched_getaffinity(0)) < 2:
            needs.unmet("needs a machine with two CPUs")
        await started(scene)
        held = Placement(0, NODE, (), 1000, 64)
        eater = "import time; held = []\nwhile True: held.append(bytearray(8 << 20)); time.sleep(0.01)"
        scene.engine.send(launch(key(1), script="cat /proc/self/cgroup; nproc", argv=(), placement=held))
        scene.engine.send(launch(key(2), argv=(sys.executable, "-c", eater), placement=held))
        await scene.until_phase(key(1), TaskPhase.ENDED)
        chunk = await scene.engine.read_log(NODE, key(1), 1, 0, 1 << 20)
        *groups, cpus = chunk.data.decode().split()
        assert any("/corral-1.0.0.1-" in group for group in groups if "cpu" in group or "::" in group) or cpus == "1"
        eaten = await scene.until_phase(key(2), TaskPhase.ENDED)
        assert eaten.exit is not None
        assert eaten.exit.cause is Cause.MEMORY

    play(scenario)


def test_a_task_whose_directory_is_gone_runs_no_more_when_the_agent_says_so(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        await started(scene)
        scene.engine.send(plain(1, "sleep", "600"))
        running = await scene.until_phase(key(1), TaskPhase.RUNNING)
        assert running.pid is not None
        ticks = start_ticks(running.pid)
        assert ticks is not None
        await scene.end_agents()
        shutil.rmtree(scene.config.tasks_dir)
        assert is_alive(running.pid, ticks)
        await scene.agent()
        await scene.until(lambda: len(scene.hellos()) == 2)
        assert scene.hellos()[1].tasks == ()
        assert not is_alive(running.pid, ticks)

    play(scenario)
