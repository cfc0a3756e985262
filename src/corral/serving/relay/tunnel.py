"""Connections that change their protocol (WebSocket, RFC 6455): bytes both ways, whatever the replica answers."""

from __future__ import annotations

import asyncio

from corral.serving.relay.board import Live
from corral.serving.relay.upstream import Pool


class Tunnel(asyncio.Protocol):
    """Bytes between a caller and a replica. What the replica answers, also a refusal, goes to the caller as it is."""

    def __init__(self, caller: asyncio.Transport, live: Live) -> None:
        self._caller = caller
        self._live = live
        self._replica: asyncio.Transport | None = None
        self._open = False

    async def open(self, pool: Pool, request: bytes, timeout_s: float) -> None:
        """Connect and send the request. Raises ``OSError``."""
        self._replica = await pool.tunnel(self, timeout_s)
        self._live.outstanding += 1
        self._open = True
        self._replica.write(request)

    def from_caller(self, data: bytes) -> None:
        """Pass bytes on."""
        if self._replica is not None and not self._replica.is_closing():
            self._replica.write(data)

    def data_received(self, data: bytes) -> None:
        """Pass bytes back."""
        if not self._caller.is_closing():
            self._caller.write(data)

    def pause_writing(self) -> None:
        """The replica reads slower than the caller writes."""
        if not self._caller.is_closing():
            self._caller.pause_reading()

    def resume_writing(self) -> None:
        """The replica has caught up."""
        if not self._caller.is_closing():
            self._caller.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """The replica has gone."""
        self._release()
        if not self._caller.is_closing():
            self._caller.close()

    def close(self) -> None:
        """The caller has gone."""
        self._release()
        if self._replica is not None:
            self._replica.close()

    def _release(self) -> None:
        if self._open:
            self._open = False
            self._live.outstanding -= 1
            self._live.answers += 1
