from __future__ import annotations

import asyncio
import contextlib
import random
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from corral.engines.ray import relay as relay_module
from corral.engines.ray.pieces import Piece
from corral.engines.ray.relay import Relay
from tests.unit.engines.ray.near import Files
from tests.waiting import wait_until_async


class Scene:
    def __init__(self, root: Path) -> None:
        self.path = root / "engine.sock"
        self.files = Files()
        self.replaced: list[str] = []
        self.relay = Relay(self.path, root / "nodes", self.files, lambda: self.replaced.append("once"))
        self.writers: list[asyncio.StreamWriter] = []

    async def agent(self, data: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_unix_connection(self.path)
        self.writers.append(writer)
        writer.write(data)
        return reader, writer

    async def closed(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""

    async def take(self, session: str = "s") -> list[Piece]:
        """Take until something came."""
        while True:
            pieces = await self.relay.take(session, 0.05)
            assert pieces is not None
            if pieces:
                return pieces


Play = Callable[[Callable[[Scene], Awaitable[None]]], None]


@pytest.fixture
def play(state_dir: Path) -> Play:
    def run(scenario: Callable[[Scene], Awaitable[None]]) -> None:
        async def whole() -> None:
            scene = Scene(state_dir)
            await scene.relay.start()
            try:
                await asyncio.wait_for(scenario(scene), 30.0)
            finally:
                await scene.relay.stop()
                for writer in scene.writers:
                    writer.close()
                    await asyncio.gather(writer.wait_closed(), return_exceptions=True)

        asyncio.run(whole())

    return run


def test_bytes_go_both_ways_and_closing_too(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        assert stat.S_IMODE(scene.path.stat().st_mode) == 0o600
        assert scene.relay.open("s", 1)
        reader, writer = await scene.agent(b"hello")
        [(number, data)] = await scene.take()
        assert data == b"hello"
        assert scene.relay.give("s", [(number, b"wel"), (number, b"come"), (99, b"nobody")])
        assert await reader.readexactly(7) == b"welcome"
        writer.close()
        assert await scene.take() == [(number, b"")]
        second, _ = await scene.agent(b"again")
        [(other, data)] = await scene.take()
        assert other != number
        assert scene.relay.give("s", [(other, b"bye"), (other, b"")])
        assert await second.read() == b"bye"

    play(scenario)


def test_a_new_session_disconnects_all_agents_and_ends_the_old_one(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        assert scene.relay.open("old", 3)
        reader, _ = await scene.agent(b"of the old session")
        await wait_until_async(lambda: scene.relay._outbox)
        waiting = asyncio.create_task(scene.relay.take("old", 30.0))
        assert await waiting == [(1, b"of the old session")]
        waiting = asyncio.create_task(scene.relay.take("old", 30.0))
        await asyncio.sleep(0)
        assert scene.relay.open("new", 3)
        assert await waiting is None
        await scene.closed(reader)
        assert not scene.relay.give("old", [(1, b"late")])
        assert await scene.relay.take("new", 0.0) == []

    play(scenario)


def test_the_bridge_of_an_older_leader_is_refused(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        assert scene.relay.open("leader", 5)
        reader, _ = await scene.agent(b"x")
        [(number, _)] = await scene.take("leader")
        assert not scene.relay.open("deposed", 4)
        assert not scene.relay.give("deposed", [(number, b"steal")])
        assert await scene.relay.take("deposed", 0.0) is None
        assert scene.relay.give("leader", [(number, b"still here")])
        assert await reader.readexactly(10) == b"still here"

    play(scenario)


def test_the_end_of_a_connection_is_told_after_all_that_was_said_on_it(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        assert scene.relay.open("s", 1)
        reader, _ = await scene.agent(b"said before")
        await wait_until_async(lambda: scene.relay._outbox.size)
        assert scene.relay.give("s", [(1, b"")])
        await scene.closed(reader)
        told: list[Piece] = []
        while not told or told[-1][1]:
            told += await scene.take()
        assert told == [(1, b"said before"), (1, b"")]
        assert scene.relay.give("s", [(1, b"")]), "a close that crossed the other end's"

    play(scenario)


def test_what_came_before_a_session_is_not_carried_into_it(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        reader, _ = await scene.agent(b"stale")
        await wait_until_async(lambda: scene.relay._outbox)
        assert scene.relay.open("s", 1)
        await scene.closed(reader)
        await scene.agent(b"fresh")
        assert [data for _, data in await scene.take()] == [b"fresh"]

    play(scenario)


def test_an_agent_that_says_much_is_held_back_and_loses_nothing(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "WAITING_BYTES_MAX", 1 << 20)

    async def scenario(scene: Scene) -> None:
        assert scene.relay.open("s", 1)
        data = random.Random(1).randbytes(8 << 20)
        await scene.agent(data)
        await wait_until_async(lambda: scene.relay._outbox.size > 1 << 20)
        # Much more does not come in than was allowed to wait: what one read may bring.
        assert scene.relay._outbox.size < 2 << 20
        got = b""
        while len(got) < len(data):
            got += b"".join(piece for _, piece in await scene.take())
            assert scene.relay._outbox.size < 2 << 20
        assert got == data

    play(scenario)


def test_a_socket_that_was_removed_is_made_again(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "LOOK_S", 0.01)

    async def scenario(scene: Scene) -> None:
        scene.relay.open("s", 1)
        scene.path.unlink()
        await wait_until_async(scene.path.exists)
        await scene.agent(b"found it")
        assert [data for _, data in await scene.take()] == [b"found it"]
        assert scene.replaced == []

    play(scenario)


def test_a_relay_gives_way_to_the_one_that_took_its_place(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "LOOK_S", 0.01)

    async def scenario(scene: Scene) -> None:
        reader, _ = await scene.agent()
        successor = Relay(scene.path, scene.path.parent, Files())
        await successor.start()
        try:
            await scene.closed(reader)
            await wait_until_async(lambda: scene.replaced == ["once"])
            await scene.relay.stop()
            assert scene.path.exists()
        finally:
            await successor.stop()
        assert not scene.path.exists()

    play(scenario)


def test_who_asks_for_a_log_waits_for_what_is_new(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        scene.files.log = b"first"
        assert await scene.relay.read_log("n", "7.0.0.1", 0, 100, 30.0) == (0, b"first", False)
        assert await scene.relay.read_log("n", "7.0.0.1", 5, 100, 0.0) == (5, b"", False)
        scene.files.looked.clear()
        waiting = asyncio.create_task(scene.relay.read_log("n", "7.0.0.1", 5, 3, 30.0))
        await wait_until_async(scene.files.looked.is_set)
        scene.files.log += b" then"
        assert await waiting == (5, b" th", False)
        scene.files.ended = True
        assert await scene.relay.read_log("n", "7.0.0.1", 8, 100, 30.0) == (8, b"en", True)
        assert await scene.relay.read_log("n", "7.0.0.1", 10, 100, 30.0) == (10, b"", True)
        assert await scene.relay.read_log("n", "8.0.0.1", 0, 100, 30.0) is None

    play(scenario)


def test_fencing_says_what_is_proven(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        scene.files.fenced = {"dead": True, "alive": False, "wiped": True}
        for node in ("dead", "alive"):
            (scene.path.parent / "nodes" / node).mkdir(parents=True)
        assert await scene.relay.fence("dead", "", 0)
        assert not await scene.relay.fence("alive", "", 0)
        assert not await scene.relay.fence("wiped", "", 0), "what ran there may run on"

    play(scenario)


def test_a_leader_that_is_older_than_one_that_was_here_fences_nobody(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        scene.files.fenced = {"n1": True}
        (scene.path.parent / "nodes" / "n1").mkdir(parents=True)
        assert scene.relay.open("s", 7)
        assert not await scene.relay.fence("n1", "", 6)
        assert scene.files.epochs == []
        assert await scene.relay.fence("n1", "", 7)
        # A newer one need not have a session here yet; the node itself may have heard of one that is newer still.
        assert await scene.relay.fence("n1", "", 8)
        assert scene.files.epochs == [7, 8]

    play(scenario)


def test_agents_that_come_and_go_while_nobody_takes_do_not_pile_up(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        assert scene.relay.open("s", 1)
        for turn in range(50):
            _, writer = await scene.agent(b"hello %d" % turn)
            writer.close()
        _, writer = await scene.agent(b"I stay")
        await wait_until_async(lambda: scene.relay._number == 51)
        await wait_until_async(lambda: len(scene.relay._tunnels) == 1)
        assert len(scene.relay._outbox._pieces) <= 2 * relay_module.UNHEARD_MAX + 1
        told = await scene.take()
        # Each of them with its end, and in order.
        assert told[-1] == (51, b"I stay")
        ended = [number for number, data in told if not data]
        assert ended == list(range(43, 51))
        assert [number for number, data in told if data] == [*ended, 51]
        assert scene.relay._outbox.size == 0
        writer.close()
        assert await scene.take() == [(51, b"")]

    play(scenario)
