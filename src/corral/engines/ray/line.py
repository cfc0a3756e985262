"""The line to one relay: keeps a session, and a tunnel to the engine's socket for each agent that connects there."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import cast

from corral.engines.ray.cluster import RelayHandle, RelayLost
from corral.engines.ray.pieces import WAITING_BYTES_MAX, Outbox, Piece
from corral.model.ids import NodeId
from corral.model.messages import Hello
from corral.wire.frames import FrameBuffer, FrameError, agent_message

_log = logging.getLogger(__name__)

TAKE_S = 2.0
RETRY_FIRST_S = 0.1
RETRY_MAX_S = 2.0
DEPOSED_RETRY_S = 5.0
# An engine that does not read for so long that this much of an agent waits loses the agent's connection.
UNREAD_BYTES_MAX = 8 * WAITING_BYTES_MAX


class Line:
    """One relay. ``nodes`` are those whose agents came through it."""

    def __init__(
        self, name: str, connect: Callable[[], Awaitable[RelayHandle]], engine_socket: str, epoch: int
    ) -> None:
        """``connect`` finds the relay, or makes it. Raises ``RelayLost``."""
        self.name = name
        self.nodes: set[NodeId] = set()
        self.relay: RelayHandle | None = None
        self._connect = connect
        self._engine_socket = engine_socket
        self._epoch = epoch
        self._session = ""
        self._tunnels: dict[int, _Tunnel] = {}
        self._outbox = Outbox()
        self._bell = asyncio.Event()

    async def run(self) -> None:
        """Keep the line until cancelled: after every fault with a new session."""
        pause_s = RETRY_FIRST_S
        try:
            while True:
                try:
                    in_session = await self._open()
                    if in_session:
                        pause_s = RETRY_FIRST_S
                        await self._pump()
                    self._close_all()
                    # Another bridge has the relay now: that of a newer leader, or one that took us for dead.
                    await asyncio.sleep(DEPOSED_RETRY_S)
                except RelayLost as error:
                    _log.warning("relay of %s: %s", self.name, error)
                    if error.dead:
                        self.relay = None
                    self._close_all()
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, RETRY_MAX_S)
        finally:
            self._close_all()

    async def _open(self) -> bool:
        if self.relay is None:
            self.relay = await self._connect()
        self._session = secrets.token_hex(8)
        taken = await self.relay.open(self._session, self._epoch)
        if not taken:
            _log.warning("relay of %s: a newer leader than that of epoch %d uses it", self.name, self._epoch)
        return taken

    async def _pump(self) -> None:
        """Carry pieces both ways until the session is over. Raises ``RelayLost``."""
        both = [asyncio.create_task(self._take()), asyncio.create_task(self._give())]
        try:
            done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)
        for task in done:
            task.result()

    async def _take(self) -> None:
        assert self.relay is not None
        while (pieces := await self.relay.take(self._session, TAKE_S)) is not None:
            for number, data in pieces:
                await self._took(number, data)

    async def _give(self) -> None:
        assert self.relay is not None
        while True:
            await self._bell.wait()
            pieces: list[Piece] = self._outbox.take()
            if not self._outbox:
                self._bell.clear()
            if pieces and not await self.relay.give(self._session, pieces):
                return
            self._balance()

    # ---- tunnels ---------------------------------------------------------------------------------------------------

    async def _took(self, number: int, data: bytes) -> None:
        tunnel = self._tunnels.get(number)
        if not data:
            if tunnel is not None:
                del self._tunnels[number]
                tunnel.close()
            return
        if tunnel is None:
            tunnel = _Tunnel(self, number)
            self._tunnels[number] = tunnel
            try:
                await asyncio.get_running_loop().create_unix_connection(lambda: tunnel, self._engine_socket)
            except OSError as error:
                _log.warning("no engine at %s: %s", self._engine_socket, error.strerror)
                self.closed(tunnel)
                return
        tunnel.write(data)

    def gave(self, tunnel: _Tunnel, data: bytes) -> None:
        """Queue bytes of the engine for an agent."""
        if self._tunnels.get(tunnel.number) is tunnel:
            self._outbox.put(tunnel.number, data)
            self._bell.set()
            self._balance()

    def closed(self, tunnel: _Tunnel) -> None:
        """Have a tunnel closed at its other end too, after what waits for it.

        It is kept until the relay tells that end: what the agent said meanwhile must not be taken for a new connection.
        """
        if self._tunnels.get(tunnel.number) is tunnel:
            self._outbox.put(tunnel.number, b"")
            self._bell.set()

    def _balance(self) -> None:
        full = self._outbox.size > WAITING_BYTES_MAX
        for tunnel in self._tunnels.values():
            tunnel.hold(full)

    def _close_all(self) -> None:
        tunnels, self._tunnels = self._tunnels, {}
        self._outbox.clear()
        self._bell.clear()
        for tunnel in tunnels.values():
            tunnel.close()


class _Tunnel(asyncio.Protocol):
    """A connection to the engine, in the name of an agent."""

    def __init__(self, line: Line, number: int) -> None:
        self.number = number
        self._line = line
        self._transport: asyncio.Transport | None = None
        self._held = False
        self._frames: FrameBuffer | None = FrameBuffer()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=UNREAD_BYTES_MAX)

    def pause_writing(self) -> None:
        _log.warning("the engine does not read: dropping the connection of an agent of %s", self._line.name)
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._line.closed(self)

    def data_received(self, data: bytes) -> None:
        self._line.gave(self, data)

    def hold(self, full: bool) -> None:  # noqa: FBT001 - a state, not an option
        if self._transport is None or self._held == full:
            return
        self._held = full
        if full:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def write(self, data: bytes) -> None:
        if self._transport is None:
            return
        if self._frames is not None:
            self._learn_node(self._frames, data)
        self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _learn_node(self, frames: FrameBuffer, data: bytes) -> None:
        """Read the hello, to know where logs of the node are. A frame that is wrong is the engine's business."""
        try:
            for payload in frames.feed(data):
                said = agent_message(payload)
                if isinstance(said, Hello):
                    self._line.nodes.add(said.node)
                self._frames = None
                return
        except FrameError:
            self._frames = None
