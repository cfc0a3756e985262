"""The bridge: a process beside the controller that has the driver of Ray in it.

A driver dies with its raylet, and Ray brings threads: neither is for the controller. The engine asks over a connection
of its own for what does not come from agents (logs, fencing); when that connection ends, so does the bridge.
"""

from __future__ import annotations

import asyncio
import logging
from typing import assert_never, cast

from corral.engines.ray.cluster import Cluster, Machine, RelayHandle, RelayLost
from corral.engines.ray.line import Line
from corral.engines.ray.pieces import (
    FenceNode,
    LogRead,
    NodeFenced,
    NotReached,
    Question,
    ReadLog,
    Reply,
    framed,
    question_decoder,
)
from corral.model.ids import NodeId
from corral.wire.frames import FrameBuffer

_log = logging.getLogger(__name__)

DISCOVER_S = 0.5


class Bridge:
    """Keeps a line to the relay of each machine."""

    def __init__(self, cluster: Cluster, engine_socket: str, epoch: int) -> None:
        self._cluster = cluster
        self._engine_socket = engine_socket
        self._epoch = epoch
        self._lines: dict[str, tuple[Line, asyncio.Task[None]]] = {}

    async def run(self) -> None:
        """Find machines until cancelled."""
        try:
            while True:
                self._follow(await self._cluster.machines())
                await asyncio.sleep(DISCOVER_S)
        finally:
            for ray_id in list(self._lines):
                self._end(ray_id)

    async def answer(self, question: Question) -> Reply:
        """Answer the engine."""
        try:
            match question:
                case ReadLog(number, node, task, incarnation, offset, limit, wait_s):
                    relay = self._relay_of(node, only=False)
                    told = await relay.read_log(node, f"{task}.{incarnation}", offset, limit, wait_s)
                    return LogRead(number, told)
                case FenceNode(number, node, machine):
                    # A machine that knows who was meant proves nothing of another.
                    relay = self._relay_of(node, only=not machine)
                    return NodeFenced(number, await relay.fence(node, machine, self._epoch))
                case _:
                    assert_never(question)
        except RelayLost as error:
            return NotReached(question.number, str(error))

    def _relay_of(self, node: NodeId, *, only: bool) -> RelayHandle:
        """Return the relay through which the node's agent came, else that of the machine which is named like it.

        Of several the one of the newest raylet: the older one may be gone and not known to be. Where it has to be the
        ``only`` one, several are none.
        """
        lines = [line for line, _ in reversed(self._lines.values()) if line.relay is not None]
        found = [line for line in lines if node in line.nodes] or [line for line in lines if line.name == node]
        if not found:
            raise RelayLost(f"no machine of node {node} is connected")
        if only and len(found) > 1:
            raise RelayLost(f"{len(found)} machines say that they are node {node}")
        relay = found[0].relay
        assert relay is not None
        return relay

    def _follow(self, machines: list[Machine]) -> None:
        living = {machine.ray_id: machine for machine in machines}
        for ray_id in self._lines.keys() - living.keys():
            _log.info("the raylet of %s is gone", self._lines[ray_id][0].name)
            self._end(ray_id)
        for ray_id, (line, task) in list(self._lines.items()):
            if task.done():
                _log.error("the line to %s ended; it begins anew", line.name, exc_info=task.exception())
                del self._lines[ray_id]
        for ray_id, machine in living.items():
            if ray_id not in self._lines:
                _log.info("node %s has a raylet (%s)", machine.node, ray_id)
                self._begin(machine)

    def _begin(self, machine: Machine) -> None:
        line = Line(machine.node, lambda: self._cluster.relay(machine), self._engine_socket, self._epoch)
        self._lines[machine.ray_id] = (line, asyncio.create_task(line.run(), name=f"line-{machine.node}"))

    def _end(self, ray_id: str) -> None:
        _, task = self._lines.pop(ray_id)
        task.cancel()


class Desk(asyncio.Protocol):
    """The bridge's end of the connection on which the engine asks; ``gone`` is set when that ends."""

    def __init__(self, bridge: Bridge) -> None:
        self.gone = asyncio.Event()
        self._bridge = bridge
        self._frames = FrameBuffer()
        self._transport: asyncio.Transport | None = None
        self._answering: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Let the process end."""
        self._transport = None
        self.gone.set()

    def data_received(self, data: bytes) -> None:
        """Take questions in; each is answered when its answer is there."""
        for payload in self._frames.feed(data):
            task = asyncio.create_task(self._answer(question_decoder.decode(payload)))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

    async def _answer(self, question: Question) -> None:
        reply = await self._bridge.answer(question)
        if self._transport is not None:
            self._transport.write(framed(reply))
