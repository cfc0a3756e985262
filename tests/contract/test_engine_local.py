"""What is the local engine's own: its socket, and peers that break the protocol."""

from __future__ import annotations

import asyncio
import socket
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from corral.agent.nodefiles import NodeFiles
from corral.engines.local import LocalEngine
from corral.engines.local import peers as peers_module
from corral.model.errors import EngineFault
from corral.model.ids import NodeId
from corral.model.messages import PROTOCOL, AcknowledgeHeartbeat, Heartbeat, Hello
from corral.model.resources import NodeSpec
from corral.ports.engine import AgentGone, EngineSays
from corral.wire import frames
from corral.wire.frames import FrameBuffer, Refused, engine_message, frame
from tests.waiting import wait_until_async


def hello(node: str, *, protocol: int = PROTOCOL, pid: int = 1) -> Hello:
    return Hello(
        node=NodeId(node),
        protocol=protocol,
        spec=NodeSpec(NodeId(node), "host", "127.0.0.1", 1000, 1000),
        agent_pid=pid,
        supervisor_start="",
        tasks=(),
        devices=(),
    )


def beat(node: str, number: int = 0) -> Heartbeat:
    return Heartbeat(node=NodeId(node), sent_boottime_s=float(number), wall_s=0.0)


class Scene:
    """One engine and peers that speak by hand."""

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / "e.sock"
        self.engine = LocalEngine(self.path, state_dir, NodeFiles())
        self.heard: list[EngineSays] = []
        self.writers: list[asyncio.StreamWriter] = []

    async def peer(self, *said: Hello | Heartbeat | bytes) -> asyncio.StreamReader:
        reader, writer = await asyncio.open_unix_connection(self.path)
        self.writers.append(writer)
        for message in said:
            writer.write(message if isinstance(message, bytes) else frame(message))
        return reader

    async def until(self, predicate: Callable[[], object]) -> None:
        await wait_until_async(predicate, timeout_s=20.0)


@pytest.fixture
def play(state_dir: Path) -> Callable[[Callable[[Scene], Awaitable[None]]], None]:
    """Run a scenario with a started engine."""

    def run(scenario: Callable[[Scene], Awaitable[None]]) -> None:
        async def whole() -> None:
            scene = Scene(state_dir)
            await scene.engine.start(scene.heard.append)
            try:
                await asyncio.wait_for(scenario(scene), 60.0)
            finally:
                await scene.engine.stop()
                for writer in scene.writers:
                    writer.close()
                    await asyncio.gather(writer.wait_closed(), return_exceptions=True)

        asyncio.run(whole())

    return run


Play = Callable[[Callable[[Scene], Awaitable[None]]], None]


def test_the_socket_is_for_this_user_and_goes_with_the_engine(state_dir: Path) -> None:
    async def scenario() -> None:
        engine = LocalEngine(state_dir / "e.sock", state_dir, NodeFiles())
        await engine.start(lambda _: None)
        assert stat.S_IMODE((state_dir / "e.sock").stat().st_mode) == 0o600
        await engine.stop()
        await engine.stop()
        assert not (state_dir / "e.sock").exists()

    asyncio.run(scenario())


def test_a_stale_socket_is_replaced_and_a_live_one_is_not(state_dir: Path) -> None:
    path = state_dir / "e.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))

    async def scenario() -> None:
        first = LocalEngine(path, state_dir, NodeFiles())
        await first.start(lambda _: None)
        with pytest.raises(EngineFault, match="another daemon listens"):
            await LocalEngine(path, state_dir, NodeFiles()).start(lambda _: None)
        await first.stop()

    asyncio.run(scenario())


def test_a_path_that_is_too_long_or_missing_is_named(state_dir: Path) -> None:
    async def scenario(path: Path, message: str) -> None:
        with pytest.raises(EngineFault, match=message):
            await LocalEngine(path, state_dir, NodeFiles()).start(lambda _: None)

    asyncio.run(scenario(state_dir / ("x" * 120), "at most 107 bytes"))
    asyncio.run(scenario(state_dir / "no" / "e.sock", "cannot listen"))


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" * 100,
        b"\0\0\0\0",
        b"\0\0\0\x04\xc1abc",
        frame(beat("node-2")),
        frame(hello("node-2")) + frame(beat("node-1", 99)),
    ],
    ids=["http", "bytes", "empty", "no message", "no hello", "another's name"],
)
def test_who_breaks_the_protocol_is_dropped_and_nobody_else(play: Play, garbage: bytes) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.peer(hello("node-1"))
        await scene.until(scene.engine.connected)
        bad = await scene.peer(garbage)
        assert await bad.read() == b""
        scene.writers[0].write(frame(beat("node-1", 7)))
        await scene.until(lambda: beat("node-1", 7) in scene.heard)
        assert beat("node-1", 99) not in scene.heard
        assert scene.engine.connected() == {"node-1"}

    play(scenario)


def test_another_protocol_is_refused_with_a_reason(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        reader = await scene.peer(hello("node-1", protocol=PROTOCOL + 1))
        [payload] = FrameBuffer().feed(await reader.read())
        refused = engine_message(payload)
        assert isinstance(refused, Refused)
        assert f"speaks protocol {PROTOCOL + 1}, this daemon {PROTOCOL}" in refused.reason
        assert scene.heard == []

    play(scenario)


def test_a_peer_that_says_nothing_is_dropped(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "HELLO_S", 0.05)

    async def scenario(scene: Scene) -> None:
        assert await (await scene.peer()).read() == b""
        assert scene.heard == []

    play(scenario)


def test_a_node_that_connects_anew_replaces_its_old_connection(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        old = await scene.peer(hello("node-1", pid=1))
        await scene.until(scene.engine.connected)
        new = await scene.peer(hello("node-1", pid=2))
        assert await old.read() == b""
        await scene.until(lambda: len(scene.heard) >= 3)
        assert scene.heard == [
            hello("node-1", pid=1),
            AgentGone(NodeId("node-1"), "the agent connected anew"),
            hello("node-1", pid=2),
        ]
        command = AcknowledgeHeartbeat(node=NodeId("node-1"), epoch=1, sent_boottime_s=1.0)
        assert scene.engine.send(command)
        [payload] = FrameBuffer().feed(await new.read(1 << 16))
        assert engine_message(payload) == command

    play(scenario)


def test_an_agent_that_does_not_read_is_dropped(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "WAITING_BYTES_MAX", 1 << 20)

    async def scenario(scene: Scene) -> None:
        await scene.peer(hello("node-1"))
        await scene.until(scene.engine.connected)
        scene.writers[0].transport.pause_reading()  # type: ignore[attr-defined] # a stream of a socket has it
        command = AcknowledgeHeartbeat(node=NodeId("node-1"), epoch=1, sent_boottime_s=1.0)

        def dropped() -> bool:
            for _ in range(1000):
                scene.engine.send(command)
            return not scene.engine.connected()

        await scene.until(dropped)
        assert scene.heard[-1] == AgentGone(NodeId("node-1"), "the agent does not read")
        assert not scene.engine.send(command)

    play(scenario)


def test_a_command_that_is_too_large_is_not_taken(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.peer(hello("node-1"))
        await scene.until(scene.engine.connected)
        monkeypatch.setattr(frames, "FRAME_BYTES_MAX", 10)
        assert not scene.engine.send(AcknowledgeHeartbeat(node=NodeId("node-1"), epoch=1, sent_boottime_s=1.0))
        assert scene.engine.connected() == {"node-1"}

    play(scenario)


def test_a_hundred_agents_keep_their_order(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        nodes = [f"node-{number}" for number in range(100)]
        for node in nodes:
            await scene.peer(hello(node), *(beat(node, number) for number in range(20)))
        await scene.until(lambda: len(scene.heard) == 2100)
        for node in nodes:
            beats = [said.sent_boottime_s for said in scene.heard if isinstance(said, Heartbeat) and said.node == node]
            assert beats == list(range(20))

    play(scenario)


def test_after_a_stop_nothing_is_heard(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        reader = await scene.peer(hello("node-1"))
        await scene.until(scene.engine.connected)
        await scene.engine.stop()
        assert await reader.read() == b""
        assert scene.heard == [hello("node-1")]
        assert not scene.engine.connected()

    play(scenario)


def test_a_node_that_never_was_is_fenced_at_once(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        assert await scene.engine.fence(NodeId("nobody"))

    play(scenario)
