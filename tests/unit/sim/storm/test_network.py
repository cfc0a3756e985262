"""The virtual network, gates and the database: order, cuts, stalls, answers that get lost."""

from __future__ import annotations

import asyncio

import pytest

from corral.model.errors import StoreAway, StoreConflict
from corral.model.events import NodeCordoned
from corral.model.ids import NodeId
from corral.ports.leadership import Candidate, Claim, LeaderRow, Look, Renew, Resign
from corral.ports.store import Batch
from corral.sim.storm.clocks import HostClock
from corral.sim.storm.course import Course
from corral.sim.storm.database import HOST, PATIENCE_S, Calls, Database, Session
from corral.sim.storm.gate import Gate
from corral.sim.storm.network import Line, Network
from corral.sim.storm.process import Process


def fact(at: float = 1.0) -> NodeCordoned:
    return NodeCordoned(at=at, node=NodeId("n1"), by="me")


def run(course: Course, until: float) -> None:
    while course.step(until):
        pass


def test_messages_of_a_connection_arrive_in_order_however_late_each_is() -> None:
    course = Course(3)
    network = Network(course)
    network.slowness = 500.0
    heard: list[bytes] = []
    line = Line(course, network, "a", "b", heard.append)
    sent = [bytes([number]) for number in range(50)]
    for message in sent:
        line.send(message)
    run(course, 60.0)
    assert heard == sent


def test_a_cut_stalls_one_direction_until_it_is_mended_as_often_as_it_was_made() -> None:
    course = Course(3)
    network = Network(course)
    heard: list[tuple[float, bytes]] = []
    there = Line(course, network, "a", "b", lambda m: heard.append((course.now, m)))
    back = Line(course, network, "b", "a", lambda m: heard.append((course.now, m)))
    network.cut("a", "b")
    network.cut("a", "b")
    there.send(b"there")
    back.send(b"back")
    course.after(10.0, lambda: network.mend("a", "b"))
    course.after(20.0, lambda: network.mend("a", "b"))
    run(course, 60.0)
    assert [message for _, message in heard] == [b"back", b"there"]
    assert heard[0][0] < 2.0
    assert 20.0 <= heard[1][0] < 21.0


def test_what_is_under_way_on_a_closed_connection_never_arrives() -> None:
    course = Course(3)
    network = Network(course)
    heard: list[bytes] = []
    line = Line(course, network, "a", "b", heard.append)
    line.send(b"lost")
    line.close()
    line.send(b"never sent")
    run(course, 60.0)
    assert heard == []


def test_what_meets_a_closed_gate_happens_in_order_once_it_is_open_as_often_as_it_was_closed() -> None:
    course, done = Course(1), list[int]()
    gate = Gate(course)
    gate.stop()
    gate.stop()
    for number in range(3):
        gate.let(lambda number=number: done.append(number))  # type: ignore[misc]
    gate.go_on()
    run(course, 1.0)
    assert done == []
    gate.go_on()
    gate.let(lambda: done.append(3))
    run(course, 2.0)
    assert done == [0, 1, 2, 3]
    gate.shut()
    gate.let(lambda: done.append(4))
    assert done == [0, 1, 2, 3]


def test_a_batch_is_appended_once_and_only_by_the_epoch_that_leads() -> None:
    appended: list[Batch] = []
    database = Database(lambda _, batch: appended.append(batch))
    first = database.campaign(Candidate("one"), Claim(LeaderRow()))
    assert (first.done, first.row.epoch) == (True, 1)
    assert database.append(0, 1, Batch((fact(),))) == 1
    # Its answer got lost: it is asked again, and known.
    assert database.append(0, 1, Batch((fact(),))) == 1
    assert len(appended) == 1
    with pytest.raises(StoreConflict):
        database.append(0, 1, Batch((fact(2.0),)))
    database.campaign(Candidate("two"), Claim(database.row))
    with pytest.raises(StoreConflict):
        database.append(1, 1, Batch((fact(),)))
    assert database.append(1, 2, Batch((fact(),))) == 2


def test_the_row_is_changed_by_compare_and_set_alone() -> None:
    database = Database(lambda *_: None)
    one, two = Candidate("one"), Candidate("two")
    seen = database.campaign(one, Look()).row
    assert database.campaign(one, Claim(seen)).done
    assert not database.campaign(two, Claim(seen)).done
    assert database.campaign(one, Renew(1)).row.beat == 2
    assert not database.campaign(two, Renew(1)).done
    assert not database.campaign(two, Resign(1)).done
    assert database.campaign(one, Resign(1)).row == LeaderRow(1, 3)


@pytest.mark.parametrize("way", [("h1", HOST), (HOST, "h1")], ids=["no request arrives", "no answer arrives"])
def test_a_call_without_an_answer_fails_and_may_have_been_carried_out(way: tuple[str, str]) -> None:
    course = Course(1)
    network, database = Network(course), Database(lambda *_: None)
    clock = HostClock(course, rate=1.0, boot_s=0.0, ahead_s=0.0)
    process = Process(course, clock, Calls(course, network, database, "h1").call)
    database.campaign(Candidate("one"), Claim(LeaderRow()))
    network.cut(*way)
    failed: list[float] = []

    async def main() -> None:
        session = Session(database)
        with pytest.raises(StoreAway):
            await process.run_in_executor(None, session.append, 0, 1, Batch((fact(),)))
        failed.append(course.now)
        network.mend(*way)
        assert await asyncio.wait_for(process.run_in_executor(None, session.append, 0, 1, Batch((fact(),))), 5.0) == 1

    task = process.create_task(main())
    run(course, 60.0)
    assert task.done()
    assert failed[0] >= PATIENCE_S
    assert len(database.entries) == 1
