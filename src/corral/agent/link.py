"""The agent's side of the connection to the local engine: reconnects for ever, one frame per message, in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from corral.model.messages import AgentSays, ControllerSays
from corral.wire.frames import FrameBuffer, FrameError, Refused, engine_message, frame

_log = logging.getLogger(__name__)

RETRY_FIRST_S = 0.05
RETRY_MAX_S = 0.2
REFUSED_RETRY_S = 5.0
# An engine that does not read for so long that this much waits has to be connected to anew.
WAITING_BYTES_MAX = 32 << 20


class Link:
    """Keeps one connection. ``send`` is only of use between ``on_connected`` and ``on_lost``."""

    def __init__(
        self,
        path: str,
        *,
        on_connected: Callable[[], None],
        on_message: Callable[[ControllerSays], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._path = path
        self._on_connected = on_connected
        self._on_message = on_message
        self._on_lost = on_lost
        self._connection: _Connection | None = None
        self._task: asyncio.Task[None] | None = None
        self._pause_s = RETRY_FIRST_S

    def start(self) -> None:
        """Begin to connect."""
        self._task = asyncio.get_running_loop().create_task(self._keep_connected())

    async def stop(self) -> None:
        """Close the connection and stay away."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        # The event loop closes a transport in its next turn.
        await asyncio.sleep(0)

    def reconnect(self) -> None:
        """Close the connection and make a new one: the node has to introduce itself anew."""
        if self._connection is not None:
            self._connection.close()

    def send(self, message: AgentSays) -> None:
        """Queue a message; without a connection it is dropped: what matters is in the next hello."""
        if self._connection is not None:
            self._connection.send(message)

    async def _keep_connected(self) -> None:
        loop = asyncio.get_running_loop()
        silent = False
        while True:
            lost: asyncio.Future[None] = loop.create_future()
            try:
                _, connection = await loop.create_unix_connection(lambda: _Connection(self, lost), self._path)  # noqa: B023
            except OSError as error:
                if not silent:
                    _log.info("no engine at %s (%s), trying on", self._path, error.strerror)
                    silent = True
            else:
                silent = False
                self._connection = connection
                self._pause_s = RETRY_FIRST_S
                self._on_connected()
                try:
                    await lost
                finally:
                    self._connection = None
                    connection.close()
                self._on_lost()
            await asyncio.sleep(self._pause_s)
            self._pause_s = max(self._pause_s, min(2 * self._pause_s, RETRY_MAX_S))

    def take(self, payload: bytes) -> None:
        """Take a frame of the engine in. Raises :class:`FrameError`."""
        message = engine_message(payload)
        if isinstance(message, Refused):
            _log.error("the engine refuses this agent: %s", message.reason)
            self._pause_s = REFUSED_RETRY_S
        else:
            self._on_message(message)


class _Connection(asyncio.Protocol):
    """One connection; messages of one turn of the event loop are written together."""

    def __init__(self, link: Link, lost: asyncio.Future[None]) -> None:
        self._link = link
        self._lost = lost
        self._frames = FrameBuffer()
        self._transport: asyncio.Transport | None = None
        self._waiting: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=WAITING_BYTES_MAX)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if not self._lost.done():
            self._lost.set_result(None)

    def pause_writing(self) -> None:
        _log.error("the engine does not read: connecting anew")
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        try:
            for payload in self._frames.feed(data):
                self._link.take(payload)
        except FrameError as error:
            _log.error("the engine speaks another language (%s): connecting anew", error)
            self.close()

    def send(self, message: AgentSays) -> None:
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._flush)
        self._waiting.append(frame(message))

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        if self._transport is not None:
            self._transport.write(b"".join(waiting))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
