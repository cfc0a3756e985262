"""Asking the fork server for shims: many requests under way on one connection, each answered once."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable

import msgspec

_log = logging.getLogger(__name__)

ALREADY_FORKED = "already-forked"
UNREACHABLE = "unreachable"
RETRY_FIRST_S = 0.05
RETRY_MAX_S = 0.2


class ForkAnswer(msgspec.Struct, frozen=True):
    """The fork server's word on one request: the shim's pid, or a code and a message."""

    ok: bool
    pid: int | None = None
    code: str = ""
    message: str = ""


class _Request(msgspec.Struct):
    directory: str
    on_answer: Callable[[ForkAnswer], None]
    asked_at: float


_decoder = msgspec.json.Decoder(ForkAnswer)


class ForkLink:
    """One connection to the fork server.

    A connection that breaks leaves open which requests were served. They are sent again: a directory is forked at most
    once, so the worst answer is ``already-forked``. While no server answers, requests wait ``patience_s``.
    """

    def __init__(self, path: str, patience_s: float = 10.0) -> None:
        self._path = path
        self._patience_s = patience_s
        self._waiting: deque[_Request] = deque()
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()

    def start(self) -> None:
        """Begin to connect."""
        self._task = asyncio.get_running_loop().create_task(self._keep_connected())

    async def stop(self) -> None:
        """Close the connection. Requests that have no answer yet get none."""
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        # The event loop closes a transport in its next turn.
        await asyncio.sleep(0)

    def launch(self, directory: str, on_answer: Callable[[ForkAnswer], None]) -> None:
        """Ask for the shim of a task directory; ``on_answer`` is called exactly once."""
        request = _Request(directory, on_answer, asyncio.get_running_loop().time())
        self._waiting.append(request)
        if self._transport is not None:
            self._transport.write(_line(request))
        else:
            self._wanted.set()

    def take(self, line: bytes) -> None:
        """Take one answer in. Raises ``ValueError`` when it is none, or nobody asked."""
        answer = _decoder.decode(line)
        if not self._waiting:
            raise ValueError("an answer that nobody asked for")
        self._waiting.popleft().on_answer(answer)

    async def _keep_connected(self) -> None:
        loop = asyncio.get_running_loop()
        pause_s = RETRY_FIRST_S
        while True:
            lost: asyncio.Future[None] = loop.create_future()
            try:
                transport, _ = await loop.create_unix_connection(lambda: _Connection(self, lost), self._path)  # noqa: B023
            except OSError as error:
                self._give_up(loop.time(), error.strerror or os.strerror(error.errno or 0))
            else:
                pause_s = RETRY_FIRST_S
                self._transport = transport
                if self._waiting:
                    transport.write(b"".join(map(_line, self._waiting)))
                try:
                    await lost
                finally:
                    self._transport = None
                    transport.abort()
                _log.warning("the fork server closed the connection")
            if not self._waiting:
                self._wanted.clear()
                await self._wanted.wait()
            else:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_MAX_S)

    def _give_up(self, now: float, why: str) -> None:
        """Answer the requests that have waited too long."""
        while self._waiting and now - self._waiting[0].asked_at > self._patience_s:
            message = f"the fork server at {self._path} does not answer: {why}"
            self._waiting.popleft().on_answer(ForkAnswer(ok=False, code=UNREACHABLE, message=message))


class _Connection(asyncio.Protocol):
    def __init__(self, client: ForkLink, lost: asyncio.Future[None]) -> None:
        self._client = client
        self._lost = lost
        self._rest = b""
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            try:
                self._client.take(line)
            except ValueError as error:
                _log.error("the fork server speaks another language: %s", error)
                if isinstance(self._transport, asyncio.Transport):
                    self._transport.abort()
                return

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._lost.done():
            self._lost.set_result(None)


def _line(request: _Request) -> bytes:
    return msgspec.json.encode({"op": "launch", "dir": request.directory}) + b"\n"
