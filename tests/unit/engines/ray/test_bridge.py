"""Engine, bridge and relays in one process; the engine's server is the embedded one, its agents speak by hand."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from corral.agent.nodefiles import NodeFiles
from corral.engines.local import LocalEngine
from corral.engines.ray import RayEngine
from corral.engines.ray import bridge as bridge_module
from corral.engines.ray import engine as engine_module
from corral.engines.ray import line as line_module
from corral.engines.ray.cluster import Machine, RelayLost
from corral.engines.ray.engine import BridgeProcess
from corral.engines.ray.relay import Relay
from corral.model.errors import NotFound, Unavailable
from corral.model.ids import JobId, NodeId, TaskKey
from corral.model.messages import PROTOCOL, AcknowledgeHeartbeat, AgentSays, Heartbeat, Hello
from corral.model.resources import NodeSpec
from corral.ports.engine import AgentGone, EngineSays, LogChunk
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


@pytest.fixture
def play(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    monkeypatch.setattr(bridge_module, "DISCOVER_S", 0.01)
    monkeypatch.setattr(line_module, "RETRY_FIRST_S", 0.01)
    monkeypatch.setattr(line_module, "DEPOSED_RETRY_S", 0.01)
    monkeypatch.setattr(engine_module, "RESTART_FIRST_S", 0.01)
    monkeypatch.setattr(engine_module, "FOLLOW_S", 0.05)

    def run(scenario: Callable[[Scene], Awaitable[None]]) -> None:
        async def whole() -> None:
            scene = Scene(state_dir)
            await scene.engine.start(scene.heard.append)
            try:
                await asyncio.wait_for(scenario(scene), 30.0)
            finally:
                await scene.close()

        asyncio.run(whole())

    return run


def test_messages_go_both_ways_over_one_relay_for_all_agents_of_a_machine(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.machine()
        first = await scene.introduced()
        second = await scene.agent(NODE, hello(NodeId("n1b")))
        await wait_until_async(lambda: scene.engine.connected() == {"n1", "n1b"})
        first.say(beat(1), beat(2))
        second.say(beat(3, NodeId("n1b")))
        await wait_until_async(lambda: len(scene.heard) == 5)
        assert [said for said in scene.heard if isinstance(said, Heartbeat) and said.node == NODE] == [beat(1), beat(2)]
        assert scene.engine.send(heard(1))
        assert scene.engine.send(heard(9, NodeId("n1b")))
        assert await first.hear() == heard(1)
        assert await second.hear() == heard(9, NodeId("n1b"))
        second.writer.close()
        await wait_until_async(lambda: scene.heard[-1] == AgentGone(NodeId("n1b"), "the agent closed the connection"))
        assert scene.engine.connected() == {"n1"}

    play(scenario)


def test_large_messages_arrive_whole_and_in_order(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.machine()
        agent = await scene.introduced()
        large = Heartbeat(node=NODE, sent_boottime_s=1.0, wall_s=0.0, shards=tuple(f"{n:0100}" for n in range(20_000)))
        agent.say(large, beat(2))
        await wait_until_async(lambda: scene.heard[-2:] == [large, beat(2)])
        for number in range(2_000):
            assert scene.engine.send(heard(number))
        for number in range(2_000):
            assert await agent.hear() == heard(number)

    play(scenario)


def test_a_relay_that_does_not_answer_costs_its_agents_the_connection_until_it_does(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        near, other = await scene.machine(), await scene.machine("n2", "b")
        agent = await scene.introduced()
        unharmed = await scene.introduced(NodeId("n2"))
        near.fault = RelayLost("cut off")
        await wait_until_async(lambda: scene.engine.connected() == {"n2"})
        assert isinstance(scene.heard[-1], AgentGone)
        assert not scene.engine.send(heard(1))
        near.fault = None
        # A new session: the agent is to introduce itself anew.
        await agent.until_closed()
        await scene.introduced(pid=2)
        assert scene.engine.connected() == {"n1", "n2"}
        unharmed.say(beat(7, NodeId("n2")))
        await wait_until_async(lambda: scene.heard[-1] == beat(7, NodeId("n2")))
        assert other.fault is None

    play(scenario)


def test_a_machine_that_returns_with_a_new_raylet_gets_a_new_relay(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        near = await scene.machine()
        await scene.introduced()
        near.fault = RelayLost("its raylet died", dead=True)
        await near.relay.stop()
        await wait_until_async(lambda: not scene.engine.connected())
        # The old raylet is still in the books for a while.
        await scene.machine(ray_id="b")
        await scene.introduced(pid=2)
        del scene.cluster.relays[Machine("a", NODE)]
        before = scene.cluster.asked
        await wait_until_async(lambda: scene.cluster.asked > before + 2)
        assert scene.engine.connected() == {NODE}
        scene.files.log = b"said"
        assert await scene.engine.read_log(NODE, TASK, 1, 0, 10) == LogChunk(0, b"said", complete=False)

    play(scenario)


def test_the_leader_with_the_newest_epoch_has_the_agents(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        near = await scene.machine()
        old = await scene.introduced()
        newer, said = scene.new_engine("newer.sock", 2), list[EngineSays]()
        await newer.start(said.append)
        try:
            await old.until_closed()
            await wait_until_async(lambda: not scene.engine.connected())
            calls = near.calls
            # The deposed one tries again and again, and is refused.
            await wait_until_async(lambda: near.calls > calls + 5)
            await scene.agent(NODE, hello(pid=2))
            await wait_until_async(lambda: newer.connected() == {NODE})
            calls = near.calls
            await wait_until_async(lambda: near.calls > calls + 5)
            assert newer.connected() == {NODE}
            assert not scene.engine.connected()
        finally:
            await newer.stop()

    play(scenario)


def test_a_bridge_that_ends_is_started_again(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.machine()
        agent = await scene.introduced()
        scene.bridges[0].kill()
        await wait_until_async(lambda: not scene.engine.connected())
        await agent.until_closed()
        await scene.introduced(pid=2)
        assert len(scene.bridges) == 2

    play(scenario)


def test_a_bridge_that_cannot_be_started_is_tried_again(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.engine.stop()
        starter, failures = scene.engine._start_bridge, 0

        async def fail_twice(desk: socket.socket) -> BridgeProcess:
            nonlocal failures
            failures += 1
            if failures <= 2:
                raise OSError(11, "no more processes")
            return await starter(desk)

        monkeypatch.setattr(scene.engine, "_start_bridge", fail_twice)
        await scene.machine()
        await scene.engine.start(scene.heard.append)
        await scene.introduced()
        assert failures == 3

    play(scenario)


def test_logs_come_from_the_machine_of_the_node(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.machine()
        await scene.introduced()
        scene.files.log = b"one two"
        assert await scene.engine.read_log(NODE, TASK, 1, 4, 2) == LogChunk(4, b"tw", complete=False)
        with pytest.raises(NotFound, match="task 8"):
            await scene.engine.read_log(NODE, TaskKey(JobId("8"), 0, 0), 1, 0, 10)
        with pytest.raises(Unavailable, match="no machine of node elsewhere"):
            await scene.engine.read_log(NodeId("elsewhere"), TASK, 1, 0, 10)
        chunks: list[LogChunk] = []

        async def follow() -> None:
            async for chunk in scene.engine.follow_log(NODE, TASK, 1, 0):
                chunks.append(chunk)  # noqa: PERF401 - the list is looked at while it grows

        following = asyncio.create_task(follow())
        await wait_until_async(lambda: chunks)
        scene.files.log += b" three"
        await wait_until_async(lambda: len(chunks) == 2)
        scene.files.ended = True
        await following
        assert chunks == [
            LogChunk(0, b"one two", complete=False),
            LogChunk(7, b" three", complete=False),
            LogChunk(13, b"", complete=True),
        ]

    play(scenario)


def test_a_dead_agent_s_machine_is_found_by_its_name(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        near = await scene.machine()
        await wait_until_async(lambda: near.calls)
        scene.files.log = b"of long ago"
        assert (await scene.engine.read_log(NODE, TASK, 1, 0, 100)).data == b"of long ago"
        scene.files.fenced = {"n1": True}
        assert await scene.engine.fence(NODE)

    play(scenario)


def test_fencing_is_proven_by_the_machine_or_not_at_all(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        near = await scene.machine()
        await scene.introduced()
        scene.files.fenced = {"n1": False}
        assert not await scene.engine.fence(NODE)
        scene.files.fenced = {"n1": True}
        assert await scene.engine.fence(NODE)
        near.fault = RelayLost("cut off")
        assert not await scene.engine.fence(NODE)
        assert not await scene.engine.fence(NodeId("elsewhere"))

    play(scenario)


def test_a_fence_says_which_machine_is_meant(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.machine()
        await scene.introduced()
        scene.files.fenced = {"n1": True}
        scene.files.machine = "aa"
        assert await scene.engine.fence(NODE, "aa")
        # Another machine is reached under its name.
        assert not await scene.engine.fence(NODE, "bb")

    play(scenario)


def test_a_directory_that_a_node_left_on_the_controller_s_machine_proves_nothing(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        (scene.root / "head/nodes" / NODE / "tasks").mkdir(parents=True)
        (scene.root / "head/machine-id").write_text("head")
        await scene.machine()
        await scene.introduced()
        scene.files.fenced = {"n1": False}
        scene.files.machine = "aa"
        assert not await scene.engine.fence(NODE, "aa")
        scene.files.fenced = {"n1": True}
        assert await scene.engine.fence(NODE, "aa")

    play(scenario)


def test_nodes_of_the_controller_s_machine_need_no_bridge(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        (scene.root / "head/nodes/mine/tasks").mkdir(parents=True)
        with pytest.raises(NotFound):
            await scene.engine.read_log(NodeId("mine"), TASK, 1, 0, 10)
        with pytest.raises(NotFound):
            await anext(aiter(scene.engine.follow_log(NodeId("mine"), TASK, 1, 0)))
        assert await scene.engine.fence(NodeId("mine"))

    play(scenario)


def test_the_directory_that_a_node_left_on_the_controller_s_machine_has_no_logs_of_it_now(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        (scene.root / "head/nodes" / NODE / "tasks").mkdir(parents=True)
        await scene.machine()
        await scene.introduced()
        scene.files.log = b"from where it is now"
        assert (await scene.engine.read_log(NODE, TASK, 1, 0, 100)).data == b"from where it is now"

    play(scenario)


def test_of_two_machines_that_say_they_are_one_node_neither_proves_anything(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        near = await scene.machine()
        other = await scene.machine("n2", "b")
        await scene.introduced(pid=1)
        agent = await scene.agent("n2", hello(NODE, 2))
        await wait_until_async(lambda: hello(NODE, 2) in scene.heard)
        assert not agent.closed
        scene.files.fenced = {NODE: True}
        assert not await scene.engine.fence(NODE)
        assert near.fault is None
        assert other.fault is None

    play(scenario)


def test_without_a_bridge_questions_are_refused_for_now(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        near = await scene.machine()
        await scene.introduced()
        asked = asyncio.ensure_future(anext(aiter(scene.engine.follow_log(NODE, TASK, 1, 0))))
        await wait_until_async(scene.files.looked.is_set)
        scene.bridges[0].kill()
        with pytest.raises(Unavailable, match="the connection to Ray broke"):
            await asked
        await scene.engine.stop()
        with pytest.raises(Unavailable, match="there is no connection to Ray"):
            await scene.engine.read_log(NODE, TASK, 1, 0, 10)
        assert near.fault is None

    play(scenario)


def test_an_engine_that_is_gone_costs_agents_their_connection(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.machine()
        agent = await scene.introduced()
        # The daemon's socket is closed at the other end of the tunnel.
        for peer in list(scene.engine._server._all):  # type: ignore[attr-defined] # it is the embedded one
            peer.close()
        await agent.until_closed()

    play(scenario)
