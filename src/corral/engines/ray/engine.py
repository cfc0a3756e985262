"""The engine of many machines: the server of an embedded engine, which a bridge connects to in the agents' names."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import Protocol, cast

from corral.engines.ray.pieces import (
    FenceNode,
    LogRead,
    NodeFenced,
    NotReached,
    Question,
    ReadLog,
    Reply,
    framed,
    reply_decoder,
)
from corral.model.errors import NotFound, Unavailable
from corral.model.ids import NodeId, TaskKey
from corral.model.messages import ControllerSays
from corral.ports.engine import Engine, LogChunk, Sink
from corral.wire.frames import FrameBuffer

_log = logging.getLogger(__name__)

CHUNK_BYTES = 64 << 10
FOLLOW_S = 5.0
REPLY_S = 12.0
FENCE_S = 32.0
RESTART_FIRST_S = 0.1
RESTART_MAX_S = 2.0
STEADY_S = 10.0
END_S = 2.0


class BridgeProcess(Protocol):
    """A started bridge."""

    async def wait(self) -> int:
        """Return its exit code when it has ended."""

    def terminate(self) -> None:
        """Tell it to end."""

    def kill(self) -> None:
        """End it."""


StartBridge = Callable[[socket.socket], Awaitable[BridgeProcess]]
"""Starts a bridge that answers questions over this end of a connection. Raises ``OSError``."""


class RayEngine:
    """Implements ``ports.engine.Engine``. All methods belong to one event loop.

    ``server`` is the engine to whose socket the bridge connects. The nodes ``here`` are of this machine: their logs and
    their fencing need no bridge. That a node has a directory here is not enough: it may have moved to another machine,
    and that nothing of it is left here proves nothing.
    """

    def __init__(self, server: Engine, start_bridge: StartBridge, here: Collection[NodeId]) -> None:
        self._server = server
        self._start_bridge = start_bridge
        self._here = frozenset(here)
        self._keeping: asyncio.Task[None] | None = None
        self._desk: _Desk | None = None
        self._numbers = itertools.count(1)

    async def start(self, sink: Sink) -> None:
        """Accept agents, and keep a bridge. Raises ``EngineFault``."""
        await self._server.start(sink)
        self._keeping = asyncio.create_task(self._keep_bridge(), name="bridge")

    async def stop(self) -> None:
        """End the bridge and close the connections."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
            self._keeping = None
        await self._server.stop()

    def send(self, command: ControllerSays) -> bool:
        """Queue a command; False when the node is not connected."""
        return self._server.send(command)

    def connected(self) -> frozenset[NodeId]:
        """Return the nodes that are connected now."""
        return self._server.connected()

    # ---- logs and fencing ------------------------------------------------------------------------------------------

    async def read_log(self, node: NodeId, task: TaskKey, incarnation: int, offset: int, limit: int) -> LogChunk:
        """Return a piece of a log. Raises ``NotFound``, and ``Unavailable`` when the node's machine does not answer."""
        if node in self._here:
            return await self._server.read_log(node, task, incarnation, offset, limit)
        return await self._read(node, task, incarnation, offset, limit, 0.0)

    async def follow_log(self, node: NodeId, task: TaskKey, incarnation: int, offset: int) -> AsyncIterator[LogChunk]:
        """Yield chunks as they are written. Raises ``NotFound`` and ``Unavailable``."""
        if node in self._here:
            async for chunk in self._server.follow_log(node, task, incarnation, offset):
                yield chunk
            return
        position = max(0, offset)
        while True:
            chunk = await self._read(node, task, incarnation, position, CHUNK_BYTES, FOLLOW_S)
            if chunk.data or chunk.complete:
                yield chunk
            if chunk.complete:
                return
            position = chunk.offset + len(chunk.data)

    async def fence(self, node: NodeId, machine: str = "") -> bool | None:
        """Have the node's machine kill everything of it; False when it does not answer, ``None`` when it lives."""
        # Its name may be another machine's by now: that one is not proven dead here.
        if node in self._here:
            proven = await self._server.fence(node, machine)
            if proven is not False:
                return proven
        try:
            reply = await self._ask(FenceNode(next(self._numbers), node, machine), FENCE_S)
        except Unavailable as error:
            _log.warning("node %s cannot be fenced: %s", node, error)
            return False
        return reply.proven if isinstance(reply, NodeFenced) else False

    async def _read(
        self, node: NodeId, task: TaskKey, incarnation: int, offset: int, limit: int, wait_s: float
    ) -> LogChunk:
        question = ReadLog(
            number=next(self._numbers),
            node=node,
            task=task,
            incarnation=incarnation,
            offset=offset,
            limit=min(limit, CHUNK_BYTES),
            wait_s=wait_s,
        )
        reply = await self._ask(question, wait_s + REPLY_S)
        assert isinstance(reply, LogRead)
        if reply.told is None:
            raise NotFound(f"there is no log of task {task}.{incarnation} on node {node}")
        return LogChunk(*reply.told)

    async def _ask(self, question: Question, timeout_s: float) -> Reply:
        if self._desk is None:
            raise Unavailable(f"node {question.node} cannot be reached now: there is no connection to Ray")
        try:
            reply = await asyncio.wait_for(self._desk.ask(question), timeout_s)
        except TimeoutError:
            raise Unavailable(f"node {question.node} cannot be reached now: no answer") from None
        if isinstance(reply, NotReached):
            raise Unavailable(f"node {question.node} cannot be reached now: {reply.reason}")
        return reply

    # ---- the bridge ------------------------------------------------------------------------------------------------

    async def _keep_bridge(self) -> None:
        loop = asyncio.get_running_loop()
        pause_s = RESTART_FIRST_S
        while True:
            began = loop.time()
            try:
                code = await self._run_bridge()
            except OSError as error:
                _log.error("the bridge to Ray cannot be started: %s", error)
            else:
                _log.warning("the bridge to Ray ended with %d", code)
            pause_s = RESTART_FIRST_S if loop.time() - began > STEADY_S else min(2 * pause_s, RESTART_MAX_S)
            await asyncio.sleep(pause_s)

    async def _run_bridge(self) -> int:
        """Start a bridge and return its exit code; end it when cancelled. Raises ``OSError``."""
        mine, its = socket.socketpair()
        try:
            bridge = await self._start_bridge(its)
        except BaseException:
            mine.close()
            raise
        finally:
            its.close()
        try:
            _, self._desk = await asyncio.get_running_loop().create_connection(_Desk, sock=mine)
            return await bridge.wait()
        finally:
            if self._desk is not None:
                self._desk.close()
                self._desk = None
            await _ended(bridge)


async def _ended(bridge: BridgeProcess) -> None:
    with contextlib.suppress(ProcessLookupError):
        bridge.terminate()
    ending = asyncio.ensure_future(bridge.wait())
    # Not wait_for, which loses a cancellation that comes together with the end (before Python 3.12).
    await asyncio.wait({ending}, timeout=END_S)
    if not ending.done():
        bridge.kill()
        await ending


class _Desk(asyncio.Protocol):
    """The engine's end of the connection on which it asks the bridge."""

    def __init__(self) -> None:
        self._frames = FrameBuffer()
        self._transport: asyncio.Transport | None = None
        self._open: dict[int, asyncio.Future[Reply]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        for number, future in self._open.items():
            if not future.done():
                future.set_result(NotReached(number, "the connection to Ray broke"))
        self._open.clear()

    def data_received(self, data: bytes) -> None:
        for payload in self._frames.feed(data):
            reply = reply_decoder.decode(payload)
            future = self._open.pop(reply.number, None)
            if future is not None and not future.done():
                future.set_result(reply)

    async def ask(self, question: Question) -> Reply:
        if self._transport is None:
            return NotReached(question.number, "the connection to Ray broke")
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._open[question.number] = future
        self._transport.write(framed(question))
        try:
            return await future
        finally:
            self._open.pop(question.number, None)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
