"""Connections to replicas: a request goes out, an answer comes back piece by piece."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from typing import Protocol, cast

import httptools

from corral.model.routes import Backend
from corral.serving.relay.http import Headers, Request

IDLE_S = 2.0
"""Servers close idle connections after 5 s or more (uvicorn's default): one that old is not used again."""

NOT_MODIFIED = 304
NO_CONTENT = 204


class Sink(Protocol):
    """Where the pieces of an answer go once it has been decided that it is the answer."""

    def chunk(self, data: bytes) -> None:
        """Take a piece."""

    def end(self) -> None:
        """Take note that it is whole."""

    def broken(self, reason: str) -> None:
        """Take note that the rest will not come."""


class Answer:
    """What one replica answers to one request. ``begun`` is done with the first byte of the body, or at the end.

    ``failure`` says why there is no answer; ``sent`` that the replica may have got the request.
    """

    def __init__(self, *, head_only: bool) -> None:
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.status = 0
        self.headers: Headers = []
        self.pieces: list[bytes] = []
        self.complete = False
        self.failure: str | None = None
        self.sent = False
        self.head_only = head_only
        self.sink: Sink | None = None

    def give_to(self, sink: Sink) -> None:
        """Let what has come, and what will come, go there."""
        self.sink = sink
        for data in self.pieces:
            sink.chunk(data)
        self.pieces.clear()
        if self.complete:
            sink.end()
        elif self.failure is not None:
            sink.broken(self.failure)

    def header(self, name: bytes) -> bytes:
        """Return a header of the answer, empty when it is not there."""
        return next((value for known, value in self.headers if known == name), b"")

    def body(self, data: bytes) -> None:
        """Take a piece of the body."""
        if self.sink is not None:
            self.sink.chunk(data)
        else:
            self.pieces.append(data)
            self._begin()

    def finish(self) -> None:
        """Take note that it is whole."""
        self.complete = True
        self._begin()
        if self.sink is not None:
            self.sink.end()

    def fail(self, reason: str) -> None:
        """Take note that it will not be whole."""
        if self.complete or self.failure is not None:
            return
        self.failure = reason
        self._begin()
        if self.sink is not None:
            self.sink.broken(reason)

    def _begin(self) -> None:
        if not self.begun.done():
            self.begun.set_result(None)


class Connection(asyncio.Protocol):
    """One connection to a replica; it carries one request at a time."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._answer: Answer | None = None
        self._until_close = False
        self._headers: Headers = []
        self.idle_since = 0.0
        self.alive = True

    def send(self, request: Request, answer: Answer, guard_token: str | None) -> None:
        """Send a request; its answer is filled from now on."""
        assert self._transport is not None, "it is connected"
        self._answer, self._headers = answer, []
        answer.sent = True
        self._transport.write(request.sent_to_replica(guard_token))

    def hold(self, *, on: bool) -> None:
        """Take no more from the replica until the caller has taken what was there."""
        if self._transport is not None and not self._transport.is_closing():
            if on:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def drop(self) -> None:
        """Let go of it, whatever it carries."""
        self._answer = None
        self.alive = False
        if self._transport is not None:
            self._transport.abort()

    # ---- asyncio.Protocol ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        # uvloop's transports are none of asyncio's classes.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Read on."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"it answers no HTTP ({type(error).__name__})")

    def connection_lost(self, exc: Exception | None) -> None:
        """An answer that has no other end ends here."""
        self.alive = False
        self._pool.gone(self)
        answer, self._answer = self._answer, None
        if answer is None:
            return
        if self._until_close and answer.status and exc is None:
            answer.finish()
        else:
            answer.fail("it closed the connection" if exc is None else f"the connection broke ({exc})")

    # ---- httptools -------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Begin an answer, or an interim one (100 to 199)."""
        self._headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header."""
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Keep status and headers of the final answer."""
        answer, status = self._answer, self._parser.get_status_code()
        if answer is None or status < 200:
            return
        answer.status, answer.headers = status, self._headers
        names = {name for name, _ in self._headers}
        bodiless = answer.head_only or status in (NO_CONTENT, NOT_MODIFIED)
        self._until_close = not bodiless and b"content-length" not in names and b"transfer-encoding" not in names
        if answer.head_only:
            self._answer = None
            answer.finish()
            self.drop()

    def on_body(self, data: bytes) -> None:
        """Pass a piece on."""
        if self._answer is not None:
            self._answer.body(data)

    def on_message_complete(self) -> None:
        """The answer is whole: the connection may be used again."""
        answer = self._answer
        if answer is None or not answer.status or self._until_close:
            return
        self._answer = None
        reusable = self._parser.should_keep_alive()
        answer.finish()
        if reusable and self.alive:
            self._parser = httptools.HttpResponseParser(self)
            self._pool.put(self)
        else:
            self.drop()

    def _fail(self, reason: str) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.fail(reason)
        self.drop()


class Pool:
    """Connections to one replica, the idle ones kept for a moment."""

    def __init__(self, backend: Backend, tls: ssl.SSLContext | None, server_name: str) -> None:
        self._backend = backend
        self._tls = tls
        self._server_name = server_name
        self._idle: deque[Connection] = deque()
        self._open: set[Connection] = set()

    async def tunnel(self, protocol: asyncio.Protocol, timeout_s: float) -> asyncio.Transport:
        """Return a new connection for a protocol of its own. Raises ``OSError``."""
        name = self._server_name if self._tls is not None else None
        async with asyncio.timeout(timeout_s):
            transport, _ = await asyncio.get_running_loop().create_connection(
                lambda: protocol, self._backend.address, self._backend.port, ssl=self._tls, server_hostname=name
            )
        return transport

    async def get(self, timeout_s: float) -> Connection:
        """Return a connection. Raises ``OSError`` (``TimeoutError`` included) when there is none in time."""
        now = time.monotonic()
        while self._idle:
            connection = self._idle.pop()
            if connection.alive and now - connection.idle_since < IDLE_S:
                return connection
            connection.drop()
        loop = asyncio.get_running_loop()
        name = self._server_name if self._tls is not None else None
        async with asyncio.timeout(timeout_s):
            _, connection = await loop.create_connection(
                lambda: Connection(self), self._backend.address, self._backend.port, ssl=self._tls, server_hostname=name
            )
        self._open.add(connection)
        return connection

    def put(self, connection: Connection) -> None:
        """Keep one that is idle."""
        connection.idle_since = time.monotonic()
        self._idle.append(connection)

    def gone(self, connection: Connection) -> None:
        """Forget one that is closed."""
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def close(self) -> None:
        """Close those that carry nothing; the others close when they are done."""
        while self._idle:
            self._idle.pop().drop()

    def drop(self) -> None:
        """Close all."""
        for connection in list(self._open):
            connection.drop()
