"""What every engine brings about replicas of services: what they are asked, what they answer, and how they end."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

from msgspec.structs import replace

from corral.model.ids import ServiceName
from corral.model.job import Cause
from corral.model.messages import LaunchTask, Readiness, TaskPhase
from corral.model.resources import Placement
from corral.model.service import Guard, Probe, ProbeKind, Probes, Secrets, ServingTask
from tests.contract.engine_world import NODE, Scene, World, task

LISTENER = """
import os, socket, sys, time
with socket.create_server(("127.0.0.1", int(os.environ["PORT"]))) as listener:
    while True:
        listener.accept()[0].close()
"""
QUICK = Probe(period_s=0.2, timeout_s=20.0)


def replica(world: World, job: int, probes: Probes) -> LaunchTask:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = int(sock.getsockname()[1])
    return world.launch(
        job,
        sys.executable,
        "-S",
        "-c",
        LISTENER,
        placement=Placement(0, NODE, (), 0, 0, port),
        serving=ServingTask(ServiceName("chat"), 1, 1, None, probes, Guard.TOKEN, 30.0),
        secrets=Secrets("s3cret"),
    )


def told(world: World, job: int) -> Readiness | None:
    beats = world.beats()
    return next((one for one in beats[-1].readiness if one.task == task(job)), None) if beats else None


async def until_ready(world: World, job: int, *, ready: bool = True) -> None:
    def reached() -> bool:
        found = told(world, job)
        return found is not None and found.ready is ready

    await world.until(reached, f"replica {job} to be {'' if ready else 'un'}ready")


def test_a_replica_is_ready_when_it_answers_and_goes_on_being_so(scene: Scene) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        world.engine.send(replica(world, 1, Probes(readiness=QUICK)))
        await until_ready(world, 1)
        # Neither the agent's restart nor the engine's changes what is said of it.
        world.kill_agent()
        world.heard.clear()
        world.start_agent()
        await until_ready(world, 1)
        world.engine.send(replace(world.stop(1), saving_s=0.1))
        ended = await world.until_phase(1, TaskPhase.ENDED)
        assert ended.exit is not None
        assert ended.exit.cause is Cause.CANCELLED
        await world.until(lambda: told(world, 1) is None)

    scene(scenario)


def test_a_replica_that_is_not_alive_is_ended_with_the_reason(scene: Scene, tmp_path: Path) -> None:
    dead = tmp_path / "dead"
    probe = Probe(ProbeKind.COMMAND, argv=("sh", "-c", f"test ! -e {dead}"), period_s=0.2, timeout_s=20.0, failures=2)

    async def scenario(world: World) -> None:
        await world.start()
        world.engine.send(replica(world, 1, Probes(readiness=QUICK, liveness=probe)))
        await until_ready(world, 1)
        dead.touch()
        ended = await world.until_phase(1, TaskPhase.ENDED)
        assert ended.exit is not None
        assert ended.exit.cause is Cause.UNHEALTHY
        assert "not alive: sh: exit code 1 (2 times in a row)" in ended.exit.message

    scene(scenario)
