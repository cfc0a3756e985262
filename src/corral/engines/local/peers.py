"""The connections of agents to the local engine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import cast

from corral.model.ids import NodeId
from corral.model.messages import PROTOCOL, AgentSays, ControllerSays, Hello
from corral.wire.frames import FrameBuffer, FrameError, Refused, agent_message, frame

_log = logging.getLogger(__name__)

# Who connects has this long to say hello.
HELLO_S = 10.0
# An agent that does not read loses its connection; all that matters comes again after its next hello.
WAITING_BYTES_MAX = 64 << 20


class Peer(asyncio.Protocol):
    """One connection. It has a node from its hello on; messages of one turn of the event loop are written together."""

    def __init__(
        self,
        on_message: Callable[[Peer, AgentSays], None],
        on_gone: Callable[[Peer, str], None],
    ) -> None:
        """``on_message`` gets the hello first; ``on_gone`` is called once, also for a peer that never said hello."""
        self.node: NodeId | None = None
        self._on_message = on_message
        self._on_gone = on_gone
        self._frames = FrameBuffer()
        self._transport: asyncio.Transport | None = None
        self._waiting: list[bytes] = []
        self._reason = "the agent closed the connection"
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the hello."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WAITING_BYTES_MAX)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(HELLO_S, self.drop, f"no hello within {HELLO_S:g} s")

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell that it is gone."""
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        self._on_gone(self, self._reason if exc is None else str(exc))

    def data_received(self, data: bytes) -> None:
        """Take messages in; who breaks the protocol is dropped."""
        try:
            for payload in self._frames.feed(data):
                if self._transport is None or self._transport.is_closing():
                    return
                self._take(agent_message(payload))
        except FrameError as error:
            self.drop(str(error))

    def pause_writing(self) -> None:
        """Give a peer up that does not read."""
        self.drop("the agent does not read")

    def send(self, command: ControllerSays | Refused) -> None:
        """Queue a message."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._flush)
        self._waiting.append(frame(command))

    def drop(self, reason: str) -> None:
        """Close the connection at once; what waits to be sent is lost."""
        self._reason = reason
        if self._transport is not None:
            _log.warning("dropping the connection of %s: %s", self.node or "an unknown peer", reason)
            self._transport.abort()

    def refuse(self, reason: str) -> None:
        """Tell the peer why, and close."""
        _log.error("refusing the connection of %s: %s", self.node or "an unknown peer", reason)
        self._reason = reason
        if self._transport is not None:
            self._transport.write(frame(Refused(reason)))
            self._transport.close()

    def close(self) -> None:
        """Send what waits, then close."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def _take(self, message: AgentSays) -> None:
        if self.node is None:
            if not isinstance(message, Hello):
                raise FrameError(f"the first message must be a hello, not {type(message).__name__}")
            if message.protocol != PROTOCOL or message.spec.id != message.node:
                self.refuse(
                    f"the agent of node {message.node} speaks protocol {message.protocol}, this daemon {PROTOCOL}: "
                    "restart both with the same release of corral"
                )
                return
            self.node = message.node
            if self._timer is not None:
                self._timer.cancel()
        elif message.node != self.node:
            raise FrameError(f"a message in the name of {message.node}")
        self._on_message(self, message)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting and self._transport is not None:
            self._transport.write(b"".join(waiting))
