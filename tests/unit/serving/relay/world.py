"""A relay in this process with real replicas: asyncio servers that do what each test tells them."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from msgspec.structs import replace

from corral.model.ids import JobId, ServiceName, TenantId
from corral.model.routes import Backend, Route, RoutingTable
from corral.model.service import Guard, Scaling, Secrets, Traffic
from corral.serving.relay.board import Place
from corral.serving.relay.checks import Checks
from corral.serving.relay.downstream import Caller, Counters, Shared
from corral.serving.relay.main import Relay

Serve = Callable[["Heard", asyncio.StreamWriter], Awaitable[None]]
CHAT = ServiceName("chat")


class Heard:
    """A request as a replica got it."""

    def __init__(self, line: str, headers: dict[str, str], body: bytes, reader: asyncio.StreamReader) -> None:
        self.reader = reader
        self.method, self.target, _ = line.split(" ")
        self.headers = headers
        self.body = body


class Replica:
    """A server on a port of its own. ``heard`` are its requests."""

    def __init__(self, name: str, serve: Serve) -> None:
        self.name = name
        self.serve = serve
        self.heard: list[Heard] = []
        self.port = 0
        self.open = 0
        self._server: asyncio.Server | None = None
        self._talks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._talk, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def stop(self) -> None:
        assert self._server is not None
        self._server.close()

    async def end(self) -> None:
        self.stop()
        for talk in self._talks:
            talk.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._talks.add(task)
        self.open += 1
        try:
            await self._serve(reader, writer)
        except asyncio.CancelledError:
            # The streams of Python 3.11 make noise about a handler that was cancelled.
            pass
        finally:
            self.open -= 1
            writer.close()
            self._talks.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while line := (await reader.readline()).decode().strip():
                headers: dict[str, str] = {}
                while field := (await reader.readline()).decode().strip():
                    name, _, value = field.partition(":")
                    headers[name.lower()] = value.strip()
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                heard = Heard(line, headers, body, reader)
                self.heard.append(heard)
                await self.serve(heard, writer)
                await writer.drain()


class Reply:
    """What a caller got. ``cut``: the connection ended before the answer was whole."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes, *, cut: bool) -> None:
        self.status, self.headers, self.body, self.cut = status, headers, body, cut

    def json(self) -> dict[str, object]:
        return json.loads(self.body)


class World:
    """The relay, and calls to it."""

    def __init__(self, directory: Path) -> None:
        self.relay = Relay(directory / "relay.sock", directory / "control.sock")
        self.path = directory / "calls.sock"
        self.route = Route(CHAT, TenantId("t"), Traffic(guard=Guard.NONE), Scaling(), Secrets("s"))
        self.replicas: list[Replica] = []
        self.checks = Checks(self.relay.board, self.relay.pool)
        self._server: asyncio.Server | None = None

    @property
    def place(self) -> Place:
        return self.relay.board.places[CHAT]

    async def start(self) -> None:
        shared = Shared(self.relay.board, self.relay.pool, Counters())
        self._server = await asyncio.get_running_loop().create_unix_server(lambda: Caller(shared), str(self.path))

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        await self.checks.close()
        await self.relay.close()
        for replica in self.replicas:
            await replica.end()
        # Transports close in the loop's next turns.
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def replica(self, name: str, serve: Serve) -> Replica:
        replica = Replica(name, serve)
        await replica.start()
        self.replicas.append(replica)
        return replica

    def tell(self, *replicas: Replica, draining: bool = False, **traffic: object) -> None:
        """Route to these replicas from now on."""
        backends = tuple(
            Backend(one.name, JobId("1"), 1, 1, "127.0.0.1", one.port, draining=draining) for one in replicas
        )
        self.route = replace(self.route, traffic=replace(self.route.traffic, **traffic), backends=backends)
        self.relay.board.apply(RoutingTable(1, "d", (self.route,)))

    async def open(
        self, method: str, target: str, headers: dict[str, str] | None = None, body: bytes = b""
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_unix_connection(str(self.path))
        said = {"Host": "chat", "X-Corral-Service": "chat", **(headers or {})}
        if body:
            said["Content-Length"] = str(len(body))
        lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in said.items() if value), "", ""]
        writer.write("\r\n".join(lines).encode() + body)
        return reader, writer

    async def call(
        self, method: str, target: str = "/", headers: dict[str, str] | None = None, body: bytes = b""
    ) -> Reply:
        reader, writer = await self.open(method, target, headers, body)
        try:
            return await read_reply(reader, head_only=method == "HEAD")
        finally:
            writer.close()


async def read_reply(reader: asyncio.StreamReader, *, head_only: bool = False) -> Reply:
    line = await reader.readline()
    if not line:
        return Reply(0, {}, b"", cut=True)
    status = int(line.split()[1])
    headers: dict[str, str] = {}
    while field := (await reader.readline()).decode().strip():
        name, _, value = field.partition(":")
        headers[name.lower()] = value.strip()
    body, cut = b"", False
    try:
        if head_only:
            pass
        elif headers.get("transfer-encoding") == "chunked":
            while size := int(await reader.readuntil(b"\r\n"), 16):
                body += await reader.readexactly(size)
                await reader.readuntil(b"\r\n")
        else:
            body = await reader.readexactly(int(headers.get("content-length", "0")))
    except (asyncio.IncompleteReadError, ConnectionError):
        cut = True
    return Reply(status, headers, body, cut=cut)


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds; the test's own limit ends it."""
    while not holds():  # noqa: ASYNC110 - what is looked at tells nobody
        await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def world(directory: Path) -> AsyncIterator[World]:
    made = World(directory)
    await made.start()
    try:
        yield made
    finally:
        await made.close()


# ---- what replicas do ----------------------------------------------------------------------------------------------


def answers(text: str, status: int = 200) -> Serve:
    async def serve(heard: Heard, writer: asyncio.StreamWriter) -> None:
        body = b"" if heard.method == "HEAD" else text.encode()
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(text)}\r\n\r\n".encode() + body)

    return serve


async def closes(heard: Heard, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def hangs(heard: Heard, writer: asyncio.StreamWriter) -> None:
    """Say nothing until the other side has gone."""
    await heard.reader.read()


def streams(*events: str, then: str = "end", gate: asyncio.Event | None = None) -> Serve:
    """Send events piece by piece; then end well, or close, or go silent."""

    async def serve(heard: Heard, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        await writer.drain()
        for number, event in enumerate(events):
            if gate is not None and number:
                await gate.wait()
            writer.write(f"{len(event):x}\r\n{event}\r\n".encode())
            await writer.drain()
        if then == "end":
            writer.write(b"0\r\n\r\n")
        elif then == "close":
            writer.close()
        else:
            await hangs(heard, writer)

    return serve
