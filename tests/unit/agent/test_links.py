"""The two connections of an agent, against servers that the tests hold in their hands."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from corral.agent import link
from corral.agent.forklink import ALREADY_FORKED, UNREACHABLE, ForkAnswer, ForkLink
from corral.agent.link import Link
from corral.model.messages import AcknowledgeHeartbeat, AgentSays, ControllerSays, Heartbeat
from corral.wire.frames import FrameBuffer, Refused, agent_message, frame
from tests.unit.agent.words import NODE
from tests.waiting import wait_until_async


def play(scenario: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        await asyncio.wait_for(scenario(), 30.0)

    asyncio.run(whole())


def beat(number: int) -> Heartbeat:
    return Heartbeat(node=NODE, sent_boottime_s=float(number), wall_s=0.0)


class Engine:
    """Accepts connections and remembers what comes on each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.connections: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def start(self) -> None:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.connections.append((reader, writer))

        self.server = await asyncio.start_unix_server(accept, self.path)

    async def stop(self) -> None:
        self.server.close()
        for _, writer in self.connections:
            writer.close()
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)

    async def heard(self, connection: int, count: int) -> list[Heartbeat]:
        frames = FrameBuffer()
        messages: list[AgentSays] = []
        while len(messages) < count:
            data = await self.connections[connection][0].read(1 << 16)
            assert data
            messages += [agent_message(payload) for payload in frames.feed(data)]
        assert all(isinstance(message, Heartbeat) for message in messages)
        return messages  # type: ignore[return-value] # just asserted


class Ears:
    def __init__(self) -> None:
        self.events: list[str] = []
        self.messages: list[ControllerSays] = []

    def link(self, path: Path) -> Link:
        return Link(
            str(path),
            on_connected=lambda: self.events.append("connected"),
            on_message=self.messages.append,
            on_lost=lambda: self.events.append("lost"),
        )


def test_messages_go_both_ways_in_order_and_a_lost_connection_is_made_anew(state_dir: Path) -> None:
    async def scenario() -> None:
        ears, engine = Ears(), Engine(state_dir / "e.sock")
        link = ears.link(engine.path)
        link.start()
        # Nobody listens yet; what is said meanwhile is lost, as it must be.
        link.send(beat(0))
        await engine.start()
        await wait_until_async(lambda: ears.events == ["connected"] and engine.connections)
        for number in range(1, 201):
            link.send(beat(number))
        assert [said.sent_boottime_s for said in await engine.heard(0, 200)] == list(range(1, 201))
        answers = [AcknowledgeHeartbeat(node=NODE, epoch=1, sent_boottime_s=float(n)) for n in range(50)]
        data = b"".join(map(frame, answers))
        writer = engine.connections[0][1]
        for begin in range(0, len(data), 7):
            writer.write(data[begin : begin + 7])
        await wait_until_async(lambda: ears.messages == answers)
        writer.close()
        await wait_until_async(lambda: ears.events == ["connected", "lost", "connected"])
        link.reconnect()
        await wait_until_async(lambda: ears.events[3:] == ["lost", "connected"])
        await link.stop()
        await engine.stop()

    play(scenario)


@pytest.mark.parametrize("garbage", [b"\xff\xff\xff\xff", b"\0\0\0\0", b"\0\0\0\x03abc"])
def test_an_engine_that_speaks_nonsense_is_left(state_dir: Path, garbage: bytes) -> None:
    async def scenario() -> None:
        ears, engine = Ears(), Engine(state_dir / "e.sock")
        await engine.start()
        link = ears.link(engine.path)
        link.start()
        await wait_until_async(lambda: engine.connections)
        engine.connections[0][1].write(garbage)
        await wait_until_async(lambda: len(engine.connections) == 2)
        assert ears.events[:2] == ["connected", "lost"]
        await link.stop()
        await engine.stop()

    play(scenario)


def test_a_refused_agent_says_why_and_keeps_trying(
    state_dir: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "REFUSED_RETRY_S", 0.01)

    async def scenario() -> None:
        ears, engine = Ears(), Engine(state_dir / "e.sock")
        await engine.start()
        refused = ears.link(engine.path)
        refused.start()
        await wait_until_async(lambda: engine.connections)
        engine.connections[0][1].write(frame(Refused("update corral")))
        engine.connections[0][1].close()
        await wait_until_async(lambda: len(engine.connections) == 2)
        assert ears.messages == []
        assert "the engine refuses this agent: update corral" in caplog.text
        await refused.stop()
        await engine.stop()

    play(scenario)


# ---- the fork server -------------------------------------------------------------------------------------------------


class Forks:
    """A fork server in the hands of the test: it reads requests, the test answers them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.asked: list[str] = []
        self.writers: list[asyncio.StreamWriter] = []

    async def start(self) -> None:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.writers.append(writer)
            while line := await reader.readline():
                request = json.loads(line)
                assert request["op"] == "launch"
                self.asked.append(request["dir"])

        self.server = await asyncio.start_unix_server(accept, self.path)

    async def stop(self) -> None:
        self.server.close()
        for writer in self.writers:
            writer.close()
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)


def test_requests_under_way_are_answered_in_order(state_dir: Path) -> None:
    async def scenario() -> None:
        forks = Forks(state_dir / "f.sock")
        await forks.start()
        client = ForkLink(str(forks.path))
        client.start()
        answers: list[tuple[str, ForkAnswer]] = []
        for name in "abc":
            client.launch(f"/{name}", lambda answer, name=name: answers.append((name, answer)))  # type: ignore[misc]
        await wait_until_async(lambda: forks.asked == ["/a", "/b", "/c"])
        forks.writers[0].write(b'{"ok": true, "pid": 5}\n{"ok": false, "code": "bad-spec", "mess')
        forks.writers[0].write(b'age": "no"}\n')
        await wait_until_async(lambda: len(answers) == 2)
        assert answers == [
            ("a", ForkAnswer(ok=True, pid=5)),
            ("b", ForkAnswer(ok=False, code="bad-spec", message="no")),
        ]
        # The server dies before it has answered; a new one is asked again, and may know the directory already.
        forks.writers[0].close()
        await wait_until_async(lambda: forks.asked[3:] == ["/c"])
        forks.writers[1].write(b'{"ok": false, "code": "already-forked", "message": ""}\n')
        await wait_until_async(lambda: len(answers) == 3)
        assert answers[2] == ("c", ForkAnswer(ok=False, code=ALREADY_FORKED))
        await client.stop()
        await forks.stop()

    play(scenario)


def test_a_server_that_comes_late_is_waited_for(state_dir: Path) -> None:
    async def scenario() -> None:
        forks = Forks(state_dir / "f.sock")
        client = ForkLink(str(forks.path))
        client.start()
        client.launch("/a", lambda _: None)
        await forks.start()
        await wait_until_async(lambda: forks.asked == ["/a"])
        await client.stop()
        await forks.stop()

    play(scenario)


def test_without_a_server_a_request_is_given_up(state_dir: Path) -> None:
    async def scenario() -> None:
        client = ForkLink(str(state_dir / "nobody.sock"), patience_s=0.1)
        client.start()
        answers: list[ForkAnswer] = []
        client.launch("/a", answers.append)
        await wait_until_async(lambda: answers)
        assert answers[0].code == UNREACHABLE
        assert "nobody.sock does not answer: No such file or directory" in answers[0].message
        await client.stop()

    play(scenario)


def test_a_server_that_speaks_nonsense_is_left(state_dir: Path) -> None:
    async def scenario() -> None:
        forks = Forks(state_dir / "f.sock")
        await forks.start()
        client = ForkLink(str(forks.path))
        client.start()
        client.launch("/a", lambda _: None)
        await wait_until_async(lambda: forks.asked == ["/a"])
        forks.writers[0].write(b"what?\n")
        await wait_until_async(lambda: forks.asked == ["/a", "/a"])
        await client.stop()
        await forks.stop()

    play(scenario)
