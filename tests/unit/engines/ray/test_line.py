"""The line to a relay, with an engine that a test plays."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from corral.engines.ray import line as line_module
from corral.engines.ray.cluster import RelayHandle
from corral.engines.ray.line import Line
from corral.engines.ray.pieces import LogTold, Piece
from tests.waiting import wait_until_async


class Spoken:
    """A relay that says what a test puts into ``says``, and keeps what it is given."""

    def __init__(self) -> None:
        self.says: asyncio.Queue[list[Piece]] = asyncio.Queue()
        self.given: list[Piece] = []

    async def open(self, session: str, epoch: int) -> bool:
        return True

    async def give(self, session: str, pieces: list[Piece]) -> bool:
        self.given += pieces
        return True

    async def take(self, session: str, wait_s: float) -> list[Piece] | None:
        return await self.says.get()

    async def read_log(self, node: str, task: str, offset: int, limit: int, wait_s: float) -> LogTold | None:
        raise AssertionError("nobody asks")

    async def fence(self, node: str, machine: str, epoch: int) -> bool:
        raise AssertionError("nobody asks")


class Engine(asyncio.Protocol):
    """Its end of one connection. ``deaf``: it never reads."""

    def __init__(self, scene: Scene) -> None:
        self.heard = b""
        self.transport: asyncio.Transport
        self._scene = scene

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._scene.connections.append(self)
        if self._scene.deaf:
            transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        self.heard += data


class Scene:
    def __init__(self) -> None:
        self.relay = Spoken()
        self.connections: list[Engine] = []
        self.deaf = False


@pytest.fixture
def play(state_dir: Path) -> Callable[[Callable[[Scene], Awaitable[None]]], None]:
    async def whole(scenario: Callable[[Scene], Awaitable[None]]) -> None:
        scene = Scene()

        async def connect() -> RelayHandle:
            return scene.relay

        place = str(state_dir / "bridge.sock")
        server = await asyncio.get_running_loop().create_unix_server(lambda: Engine(scene), place)
        running = asyncio.create_task(Line("n1", connect, place, 1).run())
        try:
            await asyncio.wait_for(scenario(scene), 30.0)
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
            for connection in scene.connections:
                connection.transport.abort()
            server.close()
            await server.wait_closed()
            await asyncio.sleep(0)

    return lambda scenario: asyncio.run(whole(scenario))


def test_what_an_agent_said_after_the_engine_hung_up_is_no_new_connection(
    play: Callable[[Callable[[Scene], Awaitable[None]]], None],
) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.relay.says.put([(1, b"first")])
        await wait_until_async(lambda: scene.connections and scene.connections[0].heard == b"first")
        scene.connections[0].transport.abort()
        await wait_until_async(lambda: scene.relay.given == [(1, b"")])
        # The relay does not know yet; another agent comes meanwhile.
        await scene.relay.says.put([(1, b"the middle of something"), (2, b"hello")])
        await wait_until_async(lambda: scene.connections[-1].heard == b"hello")
        assert len(scene.connections) == 2
        await scene.relay.says.put([(1, b""), (2, b" again")])
        await wait_until_async(lambda: scene.connections[-1].heard == b"hello again")
        assert scene.relay.given == [(1, b"")], "the relay knows of that end: it told it"

    play(scenario)


def test_an_engine_that_does_not_read_does_not_fill_the_memory(
    play: Callable[[Callable[[Scene], Awaitable[None]]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_module, "UNREAD_BYTES_MAX", 1 << 16)

    async def scenario(scene: Scene) -> None:
        scene.deaf = True
        for _ in range(64):
            await scene.relay.says.put([(1, bytes(1 << 16))])
        await wait_until_async(lambda: (1, b"") in scene.relay.given)
        assert len(scene.connections) == 1

    play(scenario)
