"""Replicas on a node: real servers, asked by a real agent, with a real fork server and real shims."""

from __future__ import annotations

import os
import signal
import socket
import ssl
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from corral.agent.asking import Door, get
from corral.agent.processes import is_alive, start_ticks, with_environment
from corral.agent.replicadir import ServingFile
from corral.model.job import Cause, TaskExit
from corral.model.messages import Readiness, TaskPhase
from corral.model.service import Guard, Probe, ProbeKind, Secrets
from tests.unit.agent.certificates import Authority
from tests.unit.agent.replica import asks, free_port, replica
from tests.unit.agent.scene import Play, Scene
from tests.unit.agent.words import key, stop


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return the directory whose files move the server."""
    return tmp_path


async def started(scene: Scene) -> None:
    await scene.fork_server()
    await scene.agent()
    await scene.until(scene.hellos)


def told(scene: Scene, job: int = 1) -> Readiness | None:
    """Return what the newest heartbeat says of a replica."""
    beats = scene.beats()
    return next((one for one in beats[-1].readiness if one.task == key(job)), None) if beats else None


async def until_ready(scene: Scene, job: int = 1, *, ready: bool = True) -> Readiness:
    def reached() -> bool:
        found = told(scene, job)
        return found is not None and found.ready is ready

    await scene.until(reached)
    found = told(scene, job)
    assert found is not None
    return found


async def end_of(scene: Scene, job: int = 1) -> TaskExit:
    ended = await scene.until_phase(key(job), TaskPhase.ENDED)
    assert ended.exit is not None
    return ended.exit


def log_of(scene: Scene, job: int = 1) -> str:
    """Return what a replica has written; without a word there is no log."""
    log = scene.config.tasks_dir / f"{job}.0.0.1" / "log"
    return log.read_text() if log.exists() else ""


def test_a_replica_is_ready_when_it_answers_and_not_when_it_does_not(play: Play, home: Path) -> None:
    async def scenario(scene: Scene) -> None:
        await started(scene)
        (home / "loading").touch()
        scene.engine.send(replica(home, port := free_port()))
        loading = await until_ready(scene, ready=False)
        await scene.until(lambda: "refused" in (told(scene) or loading).message)
        assert (told(scene) or loading).message == (
            f"not started up: GET http://127.0.0.1:{port}/ready: connection refused"
        )
        (home / "loading").unlink()
        up = await until_ready(scene)
        assert up.since >= loading.since
        assert up.message == ""
        (home / "bad-ready").touch()
        down = await until_ready(scene, ready=False)
        assert down.message == f"GET http://127.0.0.1:{port}/ready: HTTP 503 Service Unavailable"
        (home / "bad-ready").unlink()
        assert (await until_ready(scene)).since > down.since
        # It has written its answers to the end: nobody has hung up on it.
        assert log_of(scene) == ""

    play(scenario)


def test_a_port_is_enough_of_an_answer_where_nothing_else_is_asked(play: Play, home: Path) -> None:
    async def scenario(scene: Scene) -> None:
        await started(scene)
        scene.engine.send(replica(home, free_port(), probes={"readiness": Probe(period_s=0.1)}))
        await until_ready(scene)

    play(scenario)


def test_a_replica_that_is_not_alive_is_ended_and_the_reason_is_told(play: Play, home: Path) -> None:
    async def scenario(scene: Scene) -> None:
        await started(scene)
        probes = {"liveness": asks("/alive", failures=2)}
        scene.engine.send(replica(home, port := free_port(), probes=probes))
        await until_ready(scene)
        (home / "bad-alive").touch()
        exit_ = await end_of(scene)
        assert exit_.cause is Cause.UNHEALTHY
        why = f"not alive: GET http://127.0.0.1:{port}/alive: HTTP 503 Service Unavailable (2 times in a row)"
        assert why in exit_.message
        assert why in log_of(scene)
        await scene.until(lambda: told(scene) is None)

    play(scenario)


def test_a_replica_that_is_stopped_in_its_tracks_is_ended(play: Play, home: Path) -> None:
    async def scenario(scene: Scene) -> None:
        await started(scene)
        probes = {"liveness": asks("/alive", failures=2, timeout_s=0.2)}
        scene.engine.send(replica(home, free_port(), probes=probes, grace_s=0.2))
        await until_ready(scene)
        running = await scene.until_phase(key(), TaskPhase.RUNNING)
        assert running.pid is not None
        os.kill(running.pid, signal.SIGSTOP)
        exit_ = await end_of(scene)
        assert exit_.cause is Cause.UNHEALTHY
        assert "no answer in 0.2 s" in exit_.message

    play(scenario)


def test_a_replica_that_does_not_start_up_is_ended_and_loading_trips_no_liveness(play: Play, home: Path) -> None:
    async def scenario(scene: Scene) -> None:
        await started(scene)
        (home / "loading").touch()
        probes = {"liveness": asks("/alive", failures=1), "startup_within_s": 1.0}
        scene.engine.send(replica(home, free_port(), probes=probes))
        exit_ = await end_of(scene)
        assert exit_.cause is Cause.UNHEALTHY
        assert "it did not start up within 1 s: " in exit_.message

    play(scenario)


def test_a_replica_that_hangs_holds_neither_the_agent_up_nor_others(play: Play, home: Path) -> None:
    async def scenario(scene: Scene) -> None:
        await started(scene)
        (home / "hang-ready").touch()
        scene.engine.send(replica(home, free_port(), probes={"readiness": asks(timeout_s=600.0)}))
        quick = {"readiness": asks("/other")}
        scene.engine.send(replica(home, free_port(), job=2, probes=quick))
        await until_ready(scene, 2)
        for _ in range(3):
            await scene.next_beat()
        hanging = told(scene)
        assert hanging is not None
        assert not hanging.ready
        # Its end does not wait for the answer either.
        scene.engine.send(stop(key()))
        assert (await end_of(scene)).cause is Cause.CANCELLED

    play(scenario)


def test_commands_ask_in_the_place_of_the_replica(play: Play, home: Path) -> None:
    async def scenario(scene: Scene) -> None:
        await started(scene)
        script = f'test -e "{home}/$CORRAL_SERVICE-$PORT" || {{ echo "not yet, $CORRAL_SERVICE"; exit 3; }}'
        probe = Probe(ProbeKind.COMMAND, argv=("sh", "-c", script), period_s=0.1, timeout_s=20.0)
        scene.engine.send(replica(home, port := free_port(), probes={"readiness": probe}))
        waiting = await until_ready(scene, ready=False)
        await scene.until(lambda: "not yet" in (told(scene) or waiting).message)
        assert (told(scene) or waiting).message == "not started up: sh: exit code 3: not yet, chat"
        (home / f"chat-{port}").touch()
        await until_ready(scene)

    play(scenario)


def test_a_command_that_hangs_ends_with_the_agent(play: Play, home: Path) -> None:
    async def scenario(scene: Scene) -> None:
        await started(scene)
        probe = Probe(ProbeKind.COMMAND, argv=("sleep", "1000"), period_s=0.1, timeout_s=600.0)
        scene.engine.send(replica(home, free_port(), probes={"readiness": probe}))
        directory = str(scene.config.tasks_dir / "1.0.0.1")

        def asking() -> list[int]:
            return [stat.pid for stat in with_environment({"CORRAL_PROBE_OF": directory})]

        await scene.until(asking)
        await scene.end_agents()
        await scene.until(lambda: not asking())

    play(scenario)


def test_a_port_that_is_taken_is_told_before_anything_runs(play: Play, home: Path) -> None:
    async def scenario(scene: Scene) -> None:
        await started(scene)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            scene.engine.send(replica(home, port))
            exit_ = await end_of(scene)
        assert exit_.cause is Cause.LAUNCH_FAILED
        assert exit_.started_at is None
        assert exit_.message.startswith(f"PORT_TAKEN: port {port} of the service is in use by process {os.getpid()} (")

    play(scenario)


def test_an_agent_that_starts_anew_knows_its_replicas(play: Play, home: Path) -> None:
    async def scenario(scene: Scene) -> None:
        await started(scene)
        probes = {"startup": asks("/started")}
        scene.engine.send(replica(home, free_port(), probes=probes))
        await until_ready(scene)
        running = await scene.until_phase(key(), TaskPhase.RUNNING)
        assert running.pid is not None
        ticks = start_ticks(running.pid)
        assert ticks is not None
        await scene.end_agents()
        # If it had to start up once more, its time for it would be over.
        file = scene.config.tasks_dir / "1.0.0.1" / "serving.json"
        kept = msgspec.json.decode(file.read_bytes(), type=ServingFile)
        in_no_time = replace(kept.serving.probes, startup_within_s=0.0)
        file.write_bytes(msgspec.json.encode(replace(kept, serving=replace(kept.serving, probes=in_no_time))))
        (home / "bad-started").touch()
        (home / "bad-ready").touch()
        scene.heard.clear()
        await scene.agent()
        await until_ready(scene, ready=False)
        (home / "bad-ready").unlink()
        await until_ready(scene)
        assert is_alive(running.pid, ticks)

    play(scenario)


def test_a_replica_with_mutual_tls_is_asked_as_front_ends_ask_it(play: Play, home: Path) -> None:
    async def scenario(scene: Scene) -> None:
        await started(scene)
        authority = Authority("chat")
        secrets = Secrets("", authority.pem, authority.issue("replica"))
        scene.engine.send(replica(home, port := free_port(), guard=Guard.MTLS, secrets=secrets))
        await until_ready(scene)
        directory = scene.config.tasks_dir / "1.0.0.1"
        assert sorted(file.name for file in (directory / "tls").iterdir()) == ["ca.pem", "cert.pem", "key.pem"]
        assert {file.stat().st_mode & 0o777 for file in (directory / "tls").iterdir()} == {0o600}
        assert (directory / "spec.json").stat().st_mode & 0o777 == 0o600
        stranger = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        stranger.check_hostname = False
        stranger.load_verify_locations(cadata=authority.pem)
        # It shakes hands, and is cut off before it has an answer.
        assert await get(Door("127.0.0.1", port, tls=stranger), "/ready", 20.0) is not None

    play(scenario)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"secrets": None}, "the secrets of the service did not come with the replica"),
        ({"guard": Guard.MTLS}, "the service has no certificate for its replicas"),
    ],
)
def test_what_is_missing_for_a_guard_is_told(play: Play, home: Path, changes: dict[str, object], message: str) -> None:
    async def scenario(scene: Scene) -> None:
        await started(scene)
        scene.engine.send(replica(home, free_port(), **changes))  # type: ignore[arg-type]
        exit_ = await end_of(scene)
        assert (exit_.cause, exit_.message) == (Cause.LAUNCH_FAILED, message)

    play(scenario)


def test_a_replica_without_a_port_is_not_started(play: Play, home: Path) -> None:
    async def scenario(scene: Scene) -> None:
        await started(scene)
        command = replica(home, 0)
        scene.engine.send(replace(command, placement=replace(command.placement, port=None)))
        assert (await end_of(scene)).message == "no port was leased to the replica"

    play(scenario)


def test_a_replica_that_is_to_end_is_left_alone_for_the_requests_under_way(play: Play, home: Path) -> None:
    async def scenario(scene: Scene) -> None:
        await started(scene)
        probes = {"liveness": asks("/alive", failures=1)}
        scene.engine.send(replica(home, free_port(), probes=probes))
        await until_ready(scene)
        running = await scene.until_phase(key(), TaskPhase.RUNNING)
        scene.engine.send(replace(stop(key()), saving_s=600.0))
        await scene.until(lambda: told(scene) is None)
        # What it says of its health does not matter any more: a stop is under way.
        (home / "bad-alive").touch()
        for _ in range(5):
            await scene.next_beat()
        assert running.pid is not None
        assert start_ticks(running.pid) is not None
        assert scene.report(key(), TaskPhase.ENDED) is None
        scene.engine.send(stop(key()))
        exit_ = await end_of(scene)
        assert (exit_.cause, exit_.signal) == (Cause.CANCELLED, signal.SIGTERM)

    play(scenario)
