"""The local engine: agents of this machine over one unix socket, logs straight from the state directory."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

from corral.engines.local.peers import Peer
from corral.model.errors import EngineFault, NotFound
from corral.model.ids import NodeId, TaskKey
from corral.model.messages import AgentSays, ControllerSays, Hello
from corral.ports.engine import AgentGone, LogChunk, Sink
from corral.ports.nodefiles import NodeFiles
from corral.wire.frames import FrameError

_log = logging.getLogger(__name__)

# sockaddr_un.sun_path has 108 bytes, the final NUL included (unix(7)).
SOCKET_PATH_BYTES_MAX = 107
FOLLOW_EVERY_S = 0.05
CHUNK_BYTES = 256 << 10
_BACKLOG = 128


class LocalEngine:
    """Implements ``ports.engine.Engine`` for agents on this machine. All methods belong to one event loop."""

    def __init__(self, socket_path: Path, state_dir: Path, files: NodeFiles, epoch: int | None = None) -> None:
        """``epoch`` is the leader's: what a newer one commands is not fenced."""
        self._path = socket_path
        self._nodes_dir = state_dir / "nodes"
        self._files = files
        self._epoch = epoch
        self._sink: Sink | None = None
        self._server: asyncio.Server | None = None
        self._peers: dict[NodeId, Peer] = {}
        self._all: set[Peer] = set()

    async def start(self, sink: Sink) -> None:
        """Accept agents. Raises ``EngineFault`` when the socket cannot be had."""
        listener = listen(self._path)
        self._sink = sink
        self._server = await asyncio.get_running_loop().create_unix_server(self._accept, sock=listener)

    async def stop(self) -> None:
        """Stop accepting and close the connections. The sink is not called any more."""
        self._sink = None
        if self._server is None:
            return
        self._server.close()
        self._server = None
        self._path.unlink(missing_ok=True)
        self._peers.clear()
        for peer in list(self._all):
            peer.close()

    def send(self, command: ControllerSays) -> bool:
        """Queue a command; False when the node is not connected, or when the command is larger than a frame."""
        peer = self._peers.get(command.node)
        if peer is None:
            return False
        try:
            peer.send(command)
        except FrameError as error:
            _log.error("%s cannot be sent to %s: %s", type(command).__name__, command.node, error)
            return False
        return True

    def connected(self) -> frozenset[NodeId]:
        """Return the nodes that are connected now."""
        return frozenset(self._peers)

    # ---- logs ------------------------------------------------------------------------------------------------------

    async def read_log(self, node: NodeId, task: TaskKey, incarnation: int, offset: int, limit: int) -> LogChunk:
        """Return a piece of a log, also of a node whose agent is dead. Raises ``NotFound``."""
        directory = self._directory(node, task, incarnation)
        return await asyncio.to_thread(self._chunk, directory, max(0, offset), max(0, limit))

    async def follow_log(self, node: NodeId, task: TaskKey, incarnation: int, offset: int) -> AsyncIterator[LogChunk]:
        """Yield chunks as they are written; the last one is complete. Raises ``NotFound``."""
        directory = self._directory(node, task, incarnation)
        position = max(0, offset)
        while True:
            chunk = await asyncio.to_thread(self._chunk, directory, position, CHUNK_BYTES)
            if chunk.data or chunk.complete:
                yield chunk
            if chunk.complete:
                return
            position = chunk.offset + len(chunk.data)
            if not chunk.data:
                await asyncio.sleep(FOLLOW_EVERY_S)

    def _directory(self, node: NodeId, task: TaskKey, incarnation: int) -> Path:
        return self._nodes_dir / node / "tasks" / f"{task}.{incarnation}"

    def _chunk(self, directory: Path, offset: int, limit: int) -> LogChunk:
        # In this order: what an ended task wrote is all there.
        try:
            ended = self._files.has_ended(directory)
            begin, data, end = self._files.read_log(directory, offset, limit)
        except FileNotFoundError:
            raise NotFound(f"there is no log of task {directory.name} on node {directory.parent.parent.name}") from None
        return LogChunk(begin, data, complete=ended and begin + len(data) >= end)

    # ---- fencing ---------------------------------------------------------------------------------------------------

    async def fence(self, node: NodeId, machine: str = "") -> bool | None:
        """Kill the node's agent and all of its tasks; return whether nothing of them is left."""
        peer = self._peers.get(node)
        if peer is not None:
            peer.drop("the node is fenced")
        try:
            return await asyncio.to_thread(self._files.fence, self._nodes_dir / node, machine, self._epoch)
        except OSError as error:
            _log.error("node %s cannot be fenced: %s", node, error)
            return False

    # ---- peers -----------------------------------------------------------------------------------------------------

    def _accept(self) -> Peer:
        peer = Peer(self._take, self._gone)
        self._all.add(peer)
        return peer

    def _take(self, peer: Peer, message: AgentSays) -> None:
        if self._sink is None:
            return
        if isinstance(message, Hello):
            before = self._peers.get(message.node)
            if before is not None and before is not peer:
                self._leave(before, "the agent connected anew")
                before.drop("its agent connected anew")
            self._peers[message.node] = peer
        self._sink(message)

    def _gone(self, peer: Peer, reason: str) -> None:
        self._all.discard(peer)
        self._leave(peer, reason)

    def _leave(self, peer: Peer, reason: str) -> None:
        if peer.node is not None and self._peers.get(peer.node) is peer:
            del self._peers[peer.node]
            if self._sink is not None:
                self._sink(AgentGone(peer.node, reason))


def listen(path: Path) -> socket.socket:
    """Return a listening socket for this user only. A stale one is replaced, a live one is not: ``EngineFault``."""
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
        raise EngineFault(f"a socket path has at most {SOCKET_PATH_BYTES_MAX} bytes: {path}")
    if _answers(path):
        raise EngineFault(f"another daemon listens at {path}")
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
    except OSError as error:
        listener.close()
        raise EngineFault(f"cannot listen at {path}: {error.strerror}") from error
    return listener


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trial:
        trial.settimeout(1.0)
        try:
            trial.connect(str(path))
        except OSError as error:
            # A full queue of connections belongs to somebody who lives.
            return error.errno in (errno.EAGAIN, errno.EISCONN)
    return True
