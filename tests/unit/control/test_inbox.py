"""The order of letters, and what is left of what nodes say while nothing is taken out."""

from __future__ import annotations

import asyncio

import pytest

from corral.control.core import Input
from corral.control.inbox import Inbox, Letter
from corral.model.errors import StoreAway
from corral.model.ids import JobId, NodeId, TaskKey
from corral.model.messages import PROTOCOL, Heartbeat, Hello, TaskPhase, TaskReport, TaskReported
from corral.model.resources import NodeSpec
from corral.ports.engine import AgentGone, EngineSays

N1, N2 = NodeId("n1"), NodeId("n2")


def hello(node: NodeId, pid: int = 1) -> Hello:
    spec = NodeSpec(node, node, "10.0.0.1", 1000, 1024)
    return Hello(node=node, protocol=PROTOCOL, spec=spec, agent_pid=pid, supervisor_start="s", tasks=(), devices=())


def beat(node: NodeId, at: float) -> Heartbeat:
    return Heartbeat(node=node, sent_boottime_s=at, wall_s=at)


def report(node: NodeId, rank: int) -> TaskReported:
    return TaskReported(node=node, report=TaskReport(TaskKey(JobId("1"), 0, rank), 1, TaskPhase.RUNNING, 5))


def gone(node: NodeId) -> AgentGone:
    return AgentGone(node, "it broke")


def items(inbox: Inbox) -> list[Input]:
    inbox.flow()
    return [letter.item for letter in inbox.take(1_000)]


def test_letters_are_taken_in_order() -> None:
    inbox = Inbox()
    said: list[EngineSays] = [beat(N1, 1.0), beat(N1, 2.0), gone(N1), hello(N1)]
    for one in said:
        inbox.hear(one)
    assert [letter.item for letter in inbox.take(3)] == said[:3]
    assert len(inbox) == 1
    assert items(inbox) == said[3:]
    assert inbox.take(1) == []


def test_of_heartbeats_in_a_row_the_last_one_stays() -> None:
    inbox = Inbox()
    inbox.hear(beat(N1, 1.0))
    inbox.stick()
    for at in (2.0, 3.0):
        inbox.hear(beat(N1, at))
        inbox.hear(beat(N2, at))
    inbox.hear(report(N1, 0))
    inbox.hear(beat(N1, 4.0))
    assert items(inbox) == [beat(N1, 1.0), beat(N1, 3.0), beat(N2, 3.0), report(N1, 0), beat(N1, 4.0)]


def test_a_node_that_comes_and_goes_leaves_no_more_than_its_last_connection() -> None:
    inbox = Inbox()
    inbox.put(Letter(before := report(N1, 7)))
    inbox.stick()
    inbox.hear(report(N1, 0))
    inbox.hear(hello(N2))
    for turn in range(1_000):
        inbox.hear(gone(N1))
        inbox.hear(hello(N1, turn))
        inbox.hear(beat(N1, float(turn)))
        inbox.hear(report(N1, 1))
        assert len(inbox) <= 6
    # That it broke is told, for what was known by the connection before is known no more.
    assert items(inbox) == [before, hello(N2), gone(N1), hello(N1, 999), beat(N1, 999.0), report(N1, 1)]


def test_what_was_folded_once_is_not_touched_again() -> None:
    inbox = Inbox()
    inbox.stick()
    inbox.hear(hello(N1))
    inbox.flow()
    assert [letter.item for letter in inbox.take(1)] == [hello(N1)]
    inbox.stick()
    inbox.hear(gone(N1))
    assert items(inbox) == [gone(N1)]


def test_who_waits_is_refused_and_the_rest_stays() -> None:
    async def scenario() -> None:
        inbox = Inbox()
        inbox.stick()
        reply = asyncio.get_running_loop().create_future()
        inbox.hear(hello(N1))
        inbox.put(Letter(beat(N2, 1.0), reply))
        inbox.refuse(StoreAway("the database does not answer"))
        with pytest.raises(StoreAway):
            await reply
        inbox.hear(gone(N1))
        assert items(inbox) == [gone(N1)]

    asyncio.run(scenario())
