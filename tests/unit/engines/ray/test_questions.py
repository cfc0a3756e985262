"""What the engine asks the machines of nodes: for logs, and whether nothing of a node runs."""

from __future__ import annotations

import asyncio

import pytest

from corral.engines.ray.cluster import RelayLost
from corral.model.errors import NotFound, Unavailable
from corral.model.ids import JobId, NodeId, TaskKey
from corral.ports.engine import LogChunk
from tests.unit.engines.ray.scene import NODE, TASK, Play, Scene, hello
from tests.waiting import wait_until_async


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
        # Its agent lives, and was left alone.
        scene.files.fenced = {"n1": None}
        assert await scene.engine.fence(NODE) is None
        near.fault = RelayLost("cut off")
        assert await scene.engine.fence(NODE) is False
        assert await scene.engine.fence(NodeId("elsewhere")) is False

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


def test_a_fence_says_of_which_leader_it_is(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        near = await scene.machine()
        await scene.introduced()
        scene.files.fenced = {"n1": True}
        assert await scene.engine.fence(NODE)
        assert scene.files.epochs == [1]
        # The line of this bridge has not met the newer leader's yet: its questions still come here.
        assert near.relay.open("newer", 2)
        assert not await scene.engine.fence(NODE)
        assert scene.files.epochs == [1]

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
