"""The relay: agents of a machine connect to it, and it passes their bytes on to the bridge that is in session.

It runs as an actor of Ray and knows nothing of Ray, of nodes, or of what the bytes mean. It outlives no raylet: agents
do, and connect anew. A session belongs to one bridge; a bridge of an older leader is refused, and with every new
session all agents are disconnected, so that they introduce themselves to whoever listens now.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import cast

from corral.engines.ray.pieces import WAITING_BYTES_MAX, LogTold, Outbox, Piece
from corral.ports.nodefiles import NodeFiles

_log = logging.getLogger(__name__)

LOOK_S = 1.0
LOG_AGAIN_S = 0.05
_BACKLOG = 128
UNHEARD_MAX = 8
"""Of so many connections that came and went before the bridge took anything of them what they said is kept."""


class Relay:
    """Listens at ``socket_path``. All methods belong to one event loop."""

    def __init__(
        self, socket_path: Path, nodes_dir: Path, files: NodeFiles, on_replaced: Callable[[], None] = lambda: None
    ) -> None:
        """``on_replaced`` is called when another relay has taken the socket's place: this one is of no use any more."""
        self._path = socket_path
        self._nodes_dir = nodes_dir
        self._files = files
        self._on_replaced = on_replaced
        self._epoch = 0
        self._session = ""
        self._number = 0
        self._tunnels: dict[int, _Tunnel] = {}
        self._outbox = Outbox()
        self._unheard: list[int] = []
        self._bell = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._inode = -1
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen, in the place of whoever listened there. Raises ``OSError``."""
        await self._listen()
        self._watch = asyncio.get_running_loop().create_task(self._stay())

    async def stop(self) -> None:
        """Close everything."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        if self._server is not None:
            self._server.close()
        self._drop_all()
        with contextlib.suppress(OSError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()

    # ---- the bridge's calls ----------------------------------------------------------------------------------------

    def open(self, session: str, epoch: int) -> bool:
        """Begin a session; False when the epoch is older than one that was here."""
        if epoch < self._epoch:
            return False
        self._epoch, self._session = epoch, session
        self._drop_all()
        return True

    def give(self, session: str, pieces: list[Piece]) -> bool:
        """Pass pieces on to agents; False when the session is over. The next call may come after the answer."""
        if session != self._session:
            return False
        for number, data in pieces:
            tunnel = self._tunnels.get(number)
            if tunnel is None:
                continue
            if data:
                tunnel.write(data)
            else:
                # Its end is told when it is there: after all that the agent said before.
                tunnel.close()
        return True

    async def take(self, session: str, wait_s: float) -> list[Piece] | None:
        """Return pieces of agents, none when there are none for ``wait_s``; ``None`` when the session is over.

        The first piece with a new number is a new connection.
        """
        if not self._outbox and session == self._session:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._bell.wait(), wait_s)
        if session != self._session:
            return None
        pieces = self._outbox.take()
        for number in {number for number, _ in pieces}:
            if number in self._tunnels:
                self._tunnels[number].told = True
            elif number in self._unheard:
                self._unheard.remove(number)
        if not self._outbox:
            self._bell.clear()
        self._balance()
        return pieces

    async def read_log(self, node: str, task: str, offset: int, limit: int, wait_s: float) -> LogTold | None:
        """Return a piece of the log of a task (its directory's name), waiting for it while there is nothing new."""
        directory = self._nodes_dir / node / "tasks" / task
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        while True:
            try:
                told = await asyncio.to_thread(self._look, directory, max(0, offset), max(0, limit))
            except FileNotFoundError:
                return None
            if told[1] or told[2] or loop.time() >= until:
                return told
            await asyncio.sleep(LOG_AGAIN_S)

    async def fence(self, node: str, machine: str, epoch: int) -> bool | None:
        """Kill the agent of a node and all of its tasks; return whether nothing of them is left (``None``: it lives).

        A machine with another id than ``machine`` only has the node's name: it does nothing and proves nothing. Nor
        does any machine for a leader that is older than one that was here.
        """
        if epoch < self._epoch:
            _log.warning("node %s is not fenced for epoch %d: epoch %d was here", node, epoch, self._epoch)
            return False
        directory = self._nodes_dir / node
        if not directory.is_dir():
            _log.error("node %s cannot be fenced: %s is gone, so nobody knows what runs", node, directory)
            return False
        try:
            return await asyncio.to_thread(self._files.fence, directory, machine, epoch)
        except OSError as error:
            _log.error("node %s cannot be fenced: %s", node, error)
            return False

    def _look(self, directory: Path, offset: int, limit: int) -> LogTold:
        # In this order: what an ended task wrote is all there.
        ended = self._files.has_ended(directory)
        begin, data, end = self._files.read_log(directory, offset, limit)
        return begin, data, ended and begin + len(data) >= end

    # ---- agents ----------------------------------------------------------------------------------------------------

    def took(self, tunnel: _Tunnel, data: bytes) -> None:
        """Queue bytes of an agent; none at all: it has closed the connection."""
        if self._tunnels.get(tunnel.number) is not tunnel:
            return
        if not data:
            del self._tunnels[tunnel.number]
            if not tunnel.told:
                self._unheard.append(tunnel.number)
        self._outbox.put(tunnel.number, data)
        while len(self._unheard) > UNHEARD_MAX:
            self._outbox.forget(self._unheard.pop(0))
        self._bell.set()
        self._balance()

    def _accept(self) -> _Tunnel:
        self._number += 1
        tunnel = _Tunnel(self, self._number)
        self._tunnels[self._number] = tunnel
        return tunnel

    def _balance(self) -> None:
        full = self._outbox.size > WAITING_BYTES_MAX
        for tunnel in self._tunnels.values():
            tunnel.hold(full)

    def _drop_all(self) -> None:
        tunnels, self._tunnels = self._tunnels, {}
        self._outbox.clear()
        self._unheard.clear()
        # Who waits for pieces of an older session has to look.
        self._bell.set()
        for tunnel in tunnels.values():
            tunnel.abort()

    # ---- the socket ------------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        listener = _bound(self._path)
        self._inode = self._path.stat().st_ino
        self._server = await asyncio.get_running_loop().create_unix_server(self._accept, sock=listener)

    async def _stay(self) -> None:
        """Listen anew where somebody removed the socket; give way to whoever has put another in its place."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                mine = self._path.stat().st_ino == self._inode
            except FileNotFoundError:
                if self._server is not None:
                    self._server.close()
                with contextlib.suppress(OSError):
                    await self._listen()
                continue
            if not mine:
                _log.warning("another relay listens at %s", self._path)
                self._drop_all()
                self._on_replaced()
                return


class _Tunnel(asyncio.Protocol):
    """The connection of one agent. ``told``: the bridge has heard of it."""

    def __init__(self, relay: Relay, number: int) -> None:
        self.number = number
        self.told = False
        self._relay = relay
        self._transport: asyncio.Transport | None = None
        self._held = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=8 * WAITING_BYTES_MAX)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._relay.took(self, b"")

    def data_received(self, data: bytes) -> None:
        self._relay.took(self, data)

    def pause_writing(self) -> None:
        _log.warning("an agent does not read: dropping its connection")
        self.abort()

    def hold(self, full: bool) -> None:  # noqa: FBT001 - a state, not an option
        if self._transport is None or self._held == full:
            return
        self._held = full
        if full:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def _bound(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.unlink(missing_ok=True)
        mask = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(mask)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener
