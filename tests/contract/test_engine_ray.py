"""What is the Ray engine's own: its parts die, Ray's parts die, and neither agents nor tasks notice."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from corral.model.messages import TaskPhase
from tests.contract.engine_world import NODE, alive, whole_log
from tests.contract.ray_cluster import START_S, TOKEN, RayGround, end_with_descendants
from tests.contract.ray_world import RayWorld
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(300)

Scenario = Callable[[RayWorld], Awaitable[None]]
Play = Callable[[Scenario], None]


@pytest.fixture
def play(ray_ground: RayGround) -> Play:
    """Run a scenario; what it did to Ray is mended for the next one."""

    def run(scenario: Scenario) -> None:
        async def whole() -> None:
            world = RayWorld(ray_ground)
            try:
                await asyncio.wait_for(scenario(world), world.limit_s)
            except BaseException:
                print(world.agent_logs())  # noqa: T201 - shown when the test fails
                raise
            finally:
                await world.close()

        asyncio.run(whole())

    return run


def test_nobody_enters_without_the_token(play: Play) -> None:
    async def scenario(world: RayWorld) -> None:
        ground = world.ground
        ground.paths.ray_token.write_text("0" * 64)
        try:
            await world.start_engine()
            log = ground.paths.logs / "bridge.log"
            await world.until(lambda: log.exists() and "token is missing or incorrect" in log.read_text())
            assert "corral.bridge connected" not in log.read_text()
        finally:
            ground.paths.ray_token.write_text(TOKEN)
        # The engine tries again by itself.
        await world.until(lambda: "corral.bridge connected" in log.read_text())

    play(scenario)


def test_the_token_is_in_no_environment_and_in_no_argument(play: Play, tmp_path: Path) -> None:
    said = tmp_path / "said"

    async def scenario(world: RayWorld) -> None:
        await world.start()
        world.engine.send(world.launch(1, script=f"cat /proc/$PPID/environ; env; touch {said}; exec sleep 600"))
        running = await world.until_phase(1, TaskPhase.RUNNING)
        await world.until(said.exists)
        assert running.pid is not None
        own = [running.pid, world.shim_pid(1), world.agent_pid()]
        for pid in (*own, *world.ground.ray_pids):
            try:
                told = [(Path("/proc") / str(pid) / name).read_bytes() for name in ("environ", "cmdline")]
            except (FileNotFoundError, ProcessLookupError):
                continue
            assert not any(TOKEN.encode() in words for words in told)
            # Those of tasks do not even know where the token lies.
            assert pid not in own or not any(b"RAY_" in words for words in told)
        world.engine.send(world.stop(1))
        await world.until_phase(1, TaskPhase.ENDED)
        log = await whole_log(world, 1)
        assert b"CORRAL_TASK=1.0.0.1" in log
        assert TOKEN.encode() not in log
        assert b"RAY_" not in log

    play(scenario)


async def running(world: RayWorld, gate: Path) -> int:
    """Start a task that ends with 5 when the gate is written to; return its pid."""
    os.mkfifo(gate)
    await world.start()
    world.engine.send(world.launch(1, script=f"read _ < {gate}; exit 5"))
    report = await world.until_phase(1, TaskPhase.RUNNING)
    assert report.pid is not None
    return report.pid


def let_through(gate: Path) -> None:
    gate.write_text("\n")


async def untouched(world: RayWorld, pid: int, agent: int, gate: Path) -> None:
    """The task and the agent of before live, the task's end is told, and new tasks start."""
    assert alive(pid)
    assert world.agent_pid() == agent
    assert alive(agent)
    let_through(gate)
    ended = await world.until_phase(1, TaskPhase.ENDED)
    assert ended.exit is not None
    assert (ended.exit.exit_code, ended.pid) == (5, pid)
    world.engine.send(world.launch(2, "sh", "-c", "exit 6"))
    second = await world.until_phase(2, TaskPhase.ENDED)
    assert second.exit is not None
    assert second.exit.exit_code == 6


def test_a_killed_bridge_is_replaced_and_messages_go_on(play: Play, tmp_path: Path) -> None:
    async def scenario(world: RayWorld) -> None:
        pid, agent = await running(world, tmp_path / "gate"), world.agent_pid()
        relays = world.ground.relay_pids
        os.kill(world.bridge_pid, signal.SIGKILL)
        await world.until(world.gone)
        await world.until(lambda: len(world.hellos()) == 2)
        # The relay is the same: only the session is new.
        assert world.ground.relay_pids == relays
        await untouched(world, pid, agent, tmp_path / "gate")

    play(scenario)


def test_a_killed_relay_is_made_again(play: Play, tmp_path: Path) -> None:
    async def scenario(world: RayWorld) -> None:
        pid, agent = await running(world, tmp_path / "gate"), world.agent_pid()
        [relay] = world.ground.relay_pids
        os.kill(relay, signal.SIGKILL)
        await world.until(world.gone)
        await world.until(lambda: len(world.hellos()) == 2)
        [successor] = world.ground.relay_pids
        assert successor != relay
        await untouched(world, pid, agent, tmp_path / "gate")

    play(scenario)


def test_a_killed_raylet_costs_a_connection_and_nothing_else(play: Play, tmp_path: Path) -> None:
    async def scenario(world: RayWorld) -> None:
        pid, agent = await running(world, tmp_path / "gate"), world.agent_pid()
        await asyncio.to_thread(world.ground.kill_raylet)
        # The relay goes with it, and the bridge, whose driver was attached to it.
        await world.until(world.gone)
        assert alive(pid)
        world.ground.start_raylet()
        await world.until(world.ground.raylet_is_up, timeout_s=START_S)
        await world.until(lambda: len(world.hellos()) == 2)
        await untouched(world, pid, agent, tmp_path / "gate")

    play(scenario)


def test_without_the_gcs_tasks_start_and_end_and_logs_are_read(play: Play, tmp_path: Path) -> None:
    async def scenario(world: RayWorld) -> None:
        pid, agent = await running(world, tmp_path / "gate"), world.agent_pid()
        world.ground.stop_gcs()
        await starts_and_ends(world, 11)
        await asyncio.to_thread(world.ground.kill_gcs)
        await starts_and_ends(world, 12)
        # Nothing but the engine was restarted here, and not even its connections.
        assert len(world.hellos()) == 1
        assert not world.gone()
        world.ground.start_gcs()
        await world.until(world.ground.gcs_answers, timeout_s=START_S)
        await starts_and_ends(world, 13)
        await untouched(world, pid, agent, tmp_path / "gate")
        assert len(world.hellos()) == 1
        # What needs the GCS works again: the new one knows the machine and makes a relay on it.
        [relay] = world.ground.relay_pids
        os.kill(relay, signal.SIGKILL)
        await world.until(lambda: len(world.hellos()) == 2, timeout_s=60.0)

    play(scenario)


async def starts_and_ends(world: RayWorld, job: int) -> None:
    beats = len(world.beats(NODE))
    world.engine.send(world.launch(job, "echo", f"job {job}", devices=(1,)))
    await world.until_phase(job, TaskPhase.ENDED)
    assert await whole_log(world, job) == f"job {job}\n".encode()
    await world.until(lambda: len(world.beats(NODE)) >= beats + 3, "heartbeats")


def test_what_ends_with_descendants_leaves_nothing(tmp_path: Path) -> None:
    child = tmp_path / "child"
    process = subprocess.Popen(["sh", "-c", f"sleep 600 & echo $! > {child}.new; mv {child}.new {child}; wait"])
    wait_until(child.exists)
    end_with_descendants(process)
    wait_until(lambda: not alive(int(child.read_text())))
