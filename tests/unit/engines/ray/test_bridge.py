"""What goes between agents and engine through relays and a bridge, and what happens when one of them fails."""

from __future__ import annotations

import socket

import pytest

from corral.engines.ray.cluster import Machine, RelayLost
from corral.engines.ray.engine import BridgeProcess
from corral.model.ids import NodeId
from corral.model.messages import Heartbeat
from corral.ports.engine import AgentGone, EngineSays, LogChunk
from tests.unit.engines.ray.scene import NODE, TASK, Play, Scene, beat, heard, hello
from tests.waiting import wait_until_async


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
        await wait_until_async(lambda: scene.engine.connected() == {NODE})
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


def test_an_engine_that_is_gone_costs_agents_their_connection(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.machine()
        agent = await scene.introduced()
        # The daemon's socket is closed at the other end of the tunnel.
        for peer in list(scene.engine._server._all):  # type: ignore[attr-defined] # it is the embedded one
            peer.close()
        await agent.until_closed()

    play(scenario)
