"""Emptying a node: who gives way, how long it has, and what it costs."""

from __future__ import annotations

from corral.control.inputs import Administer, Quiesce
from corral.model.ask import JobAsk
from corral.model.errors import Refusal
from corral.model.events import GangRequeued, GangStopping, NodeCordoned, NodeUncordoned
from corral.model.ids import NodeId, TaskKey
from corral.model.job import Cause, CheckpointSpec, StopReason
from corral.model.state import LEFT, STOPPED
from corral.model.transitions import fold
from tests.unit.control.world import World, node_spec

SAVES = JobAsk(argv=("train",), gpu_milli=4000, num_nodes=2, checkpoint=CheckpointSpec("USR1", 600.0), lease_s=700.0)
WHOLE = JobAsk(argv=("x",), gpu_milli=4000)
ONE = JobAsk(argv=("x",), gpu_milli=1000)
N1 = NodeId("n1")


def drain(world: World, reason: str = "") -> object:
    return world.tell(Administer(NodeCordoned(at=0.0, node=N1, by="me", reason=reason, drain=True)))


def stoppings(world: World) -> list[GangStopping]:
    return [fact for fact in world.journal if isinstance(fact, GangStopping)]


def test_every_rank_of_a_gang_saves_itself_for_as_long_as_its_job_says() -> None:
    world = World(n1=4, n2=4)
    world.submit(SAVES)
    for rank in (0, 1):
        world.start("1", rank=rank)
    drain(world)
    assert [(stop.task.rank, stop.saving_s) for stop in world.stops()] == [(0, 600.0), (1, 600.0)]
    (told,) = stoppings(world)
    assert (told.reason, told.drained, told.preemption) == (StopReason.PREEMPTED, "n1", None)


def test_who_gave_way_waits_again_without_charge_and_goes_elsewhere() -> None:
    world = World(n1=4, n2=4)
    world.submit(WHOLE, WHOLE)
    here, other = sorted("12", key=world.placed_on)
    for job in (here, other):
        world.start(job)
    drain(world)
    assert [stop.task.job for stop in world.stops()] == [here]
    world.end(other)
    assert world.job(here).gangs[0].incarnation == 1, "it has not ended yet"
    world.end(here, cause=Cause.PREEMPTED)
    (again,) = [fact for fact in world.journal if isinstance(fact, GangRequeued)]
    assert (again.counted, again.avoid) == (False, ())
    gang = world.job(here).gangs[0]
    assert (gang.restarts, gang.moves, gang.preemptions, gang.incarnation) == (0, 1, 1, 2)
    assert world.placed_on(here) == ["n2"]


def test_nobody_comes_to_a_node_that_is_emptied() -> None:
    world = World(n1=4)
    world.submit(ONE)
    world.start("1")
    drain(world)
    world.end("1", cause=Cause.PREEMPTED)
    world.submit(ONE)
    world.advance(5.0)
    assert world.core.book.state.held[N1].gangs == {}
    world.tell(Administer(NodeUncordoned(at=0.0, node=N1, by="me")))
    assert not world.core.book.state.nodes[N1].draining
    assert [world.placed_on(job) for job in "12"] == [["n1"], ["n1"]]


def test_asking_again_stops_nobody_twice() -> None:
    world = World(n1=4)
    world.submit(ONE)
    world.start("1")
    drain(world)
    drain(world)
    assert len(stoppings(world)) == len(world.stops()) == 1


def test_a_node_that_is_not_there_is_not_emptied() -> None:
    world = World(n2=4)
    assert isinstance(drain(world), Refusal)


def test_the_next_controller_goes_on_emptying_it() -> None:
    world = World(n1=4)
    world.submit(ONE)
    world.start("1")
    drain(world)
    again = world.replayed()
    assert again.book.state.nodes[N1].draining
    assert again.book.state.jobs[world.job("1").id].gangs[0].stopping is StopReason.PREEMPTED


def test_a_machine_that_is_started_again_is_a_node_again_but_not_against_an_administrator() -> None:
    for reason, cordoned in ((LEFT, False), (STOPPED, False), ("new disk", True)):
        world = World(n1=4)
        drain(world, reason)
        world.hello(node_spec("n1"))
        assert world.core.book.state.nodes[N1].cordoned, "the same start"
        world.hello(node_spec("n1", incarnation="boot-2"))
        node = world.core.book.state.nodes[N1]
        assert (node.cordoned, node.draining) == (cordoned, cordoned)
        replayed = world.replayed().book.state.nodes[N1]
        assert (replayed.cordoned, replayed.draining) == (cordoned, cordoned)


def test_a_cordon_after_a_drain_leaves_it_one() -> None:
    world = World(n1=4)
    drain(world)
    world.tell(Administer(NodeCordoned(at=0.0, node=N1, by="me", reason="fan")))
    node = world.core.book.state.nodes[N1]
    assert (node.draining, node.cordon_reason) == (True, "fan")


def test_facts_of_before_say_nothing_of_draining() -> None:
    world = World(n1=4)
    fold(world.core.book.state, NodeCordoned(at=0.0, node=N1, by="me"))
    assert not world.core.book.state.nodes[N1].draining


def test_a_pool_that_stops_gives_a_minute() -> None:
    world = World(n1=4, n2=4)
    world.submit(SAVES)
    world.start("1")
    world.tell(Quiesce(stop_tasks=True))
    assert {stop.saving_s for stop in world.stops()} == {60.0}
    assert world.stops()[0].task == TaskKey(world.job("1").id, 0, 0)
