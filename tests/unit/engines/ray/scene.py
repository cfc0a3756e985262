"""A controller with its bridge and machines with their relays in one process; agents speak by hand."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

from corral.agent.nodefiles import NodeFiles
from corral.engines.local import LocalEngine
from corral.engines.ray import RayEngine
from corral.engines.ray.cluster import Machine
from corral.engines.ray.engine import BridgeProcess
from corral.engines.ray.relay import Relay
from corral.model.ids import JobId, NodeId, TaskKey
from corral.model.messages import PROTOCOL, AcknowledgeHeartbeat, AgentSays, Heartbeat, Hello
from corral.model.resources import NodeSpec
from corral.ports.engine import EngineSays
from corral.wire.frames import EngineAnswers, FrameBuffer, engine_message, frame
from tests.unit.engines.ray.near import Files, NearBridge, NearCluster, NearRelay
from tests.waiting import wait_until_async

NODE = NodeId("n1")
TASK = TaskKey(JobId("7"), 0, 0)


def hello(node: NodeId = NODE, pid: int = 1) -> Hello:
    spec = NodeSpec(node, "host", "127.0.0.1", 1000, 1000)
    return Hello(node=node, protocol=PROTOCOL, spec=spec, agent_pid=pid, supervisor_start="", tasks=(), devices=())


def beat(number: int, node: NodeId = NODE) -> Heartbeat:
    return Heartbeat(node=node, sent_boottime_s=float(number), wall_s=0.0)


def heard(number: int, node: NodeId = NODE) -> AcknowledgeHeartbeat:
    return AcknowledgeHeartbeat(node=node, epoch=1, sent_boottime_s=float(number))


class Agent:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._frames = FrameBuffer()
        self._got: list[EngineAnswers] = []

    def say(self, *messages: AgentSays) -> None:
        self.writer.writelines(frame(message) for message in messages)

    @property
    def closed(self) -> bool:
        return self.reader.at_eof() or self.reader.exception() is not None

    async def until_closed(self) -> None:
        with contextlib.suppress(ConnectionResetError):
            assert await self.reader.read() == b""

    async def hear(self) -> EngineAnswers:
        while not self._got:
            data = await self.reader.read(1 << 16)
            assert data, "the connection was closed"
            self._got += [engine_message(payload) for payload in self._frames.feed(data)]
        return self._got.pop(0)


class Scene:
    """A controller's engine of epoch 1, and machines that a test adds."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cluster = NearCluster()
        self.heard: list[EngineSays] = []
        self.bridges: list[NearBridge] = []
        self.agents: list[Agent] = []
        self.files = Files()
        self.engine = self.new_engine("bridge.sock", 1)
        self._relays: list[Relay] = []

    def new_engine(self, name: str, epoch: int) -> RayEngine:
        async def start_bridge(desk: socket.socket) -> BridgeProcess:
            self.bridges.append(NearBridge(self.cluster, self.root / name, epoch, desk))
            return self.bridges[-1]

        server = LocalEngine(self.root / name, self.root / "head", NodeFiles())
        return RayEngine(server, start_bridge, [NodeId("mine")])

    async def machine(self, node: str = NODE, ray_id: str = "a") -> NearRelay:
        relay = Relay(self.root / f"{node}.sock", self.root / node / "nodes", self.files)
        await relay.start()
        self._relays.append(relay)
        (self.root / node / "nodes" / NODE).mkdir(parents=True, exist_ok=True)
        near = NearRelay(relay)
        self.cluster.relays[Machine(ray_id, node)] = near
        return near

    async def agent(self, node: str = NODE, *messages: AgentSays) -> Agent:
        agent = Agent(*await asyncio.open_unix_connection(self.root / f"{node}.sock"))
        self.agents.append(agent)
        agent.say(*messages)
        return agent

    async def introduced(self, node: NodeId = NODE, pid: int = 1) -> Agent:
        """Return an agent that the engine has heard: it connects anew until the session is there."""
        while True:
            agent = await self.agent(node, hello(node, pid))
            await wait_until_async(lambda: agent.closed or hello(node, pid) in self.heard)  # noqa: B023
            if not agent.closed:
                return agent

    async def close(self) -> None:
        await self.engine.stop()
        for relay in self._relays:
            await relay.stop()
        for agent in self.agents:
            agent.writer.close()
            await asyncio.gather(agent.writer.wait_closed(), return_exceptions=True)


Play = Callable[[Callable[[Scene], Awaitable[None]]], None]
