"""What is said of tasks whose shim died with their node, or because the node left."""

from __future__ import annotations

import pytest

from corral.control.inputs import Administer
from corral.model.ask import JobAsk
from corral.model.events import GangRequeued, NodeCordoned
from corral.model.ids import JobId, NodeId, TaskKey
from corral.model.job import Cause, TaskExit
from corral.model.messages import TaskPhase, TaskReport
from corral.model.state import LEFT
from tests.unit.control.silent import EXCLUSIVE, hello_of, pass_time, place, pool
from tests.unit.control.world import World, node_spec

N1 = NodeId("n1")
LOST = TaskExit(Cause.SHIM_LOST, message="its shim was killed or crashed", started_at=1.0, ended_at=2.0)


def running(world: World) -> TaskReport:
    (job,) = world.submit(JobAsk(argv=("x",), gpu_milli=1000))
    world.start(job)
    world.advance(1.0)
    return TaskReport(TaskKey(job, 0, 0), world.job(job).gangs[0].incarnation, TaskPhase.ENDED, exit=LOST)


def requeued(world: World) -> str:
    return next(fact.reason for fact in reversed(world.journal) if isinstance(fact, GangRequeued))


def told(world: World) -> str:
    gang = world.job("1").gangs[0]
    assert gang.avoid == ()
    assert (gang.restarts, gang.moves) == (0, 1)
    return requeued(world)


@pytest.mark.parametrize("first", ["hello", "hello without the task", "report"])
def test_a_machine_that_was_started_anew_is_named_rather_than_a_shim(first: str) -> None:
    world = World(n1=1)
    end = running(world)
    world.gone("n1")
    live = TaskReport(end.task, end.incarnation, TaskPhase.RUNNING)
    tasks = {"hello": (end,), "hello without the task": (), "report": (live,)}[first]
    world.hello(node_spec("n1", 1, incarnation="boot-2"), tasks)
    if first == "report":
        world.end("1", cause=Cause.SHIM_LOST)
    assert told(world) == "rank 0 on n1 was lost with its node: node n1 restarted"


def test_a_node_that_left_is_named_rather_than_a_shim() -> None:
    world = World(n1=1)
    running(world)
    world.tell(Administer(NodeCordoned(at=0.0, node=N1, by="me", reason=LEFT)))
    world.end("1", cause=Cause.SHIM_LOST)
    assert told(world) == "rank 0 on n1 was lost with its node: node n1 left the pool"


def test_a_shim_that_died_on_a_node_that_stays_is_what_it_is() -> None:
    world = World(n1=1)
    running(world)
    world.end("1", cause=Cause.SHIM_LOST)
    assert requeued(world).startswith("rank 0 on n1 vanished with its shim")
    assert world.job("1").gangs[0].avoid == (N1,)


def test_the_fencing_of_a_silent_node_is_named_rather_than_a_shim() -> None:
    world = pool()
    home, others = place(world, EXCLUSIVE)
    pass_time(world, 20.0, *others)
    assert world.fences == [home]
    gang = world.job("1").gangs[0]
    end = TaskReport(TaskKey(JobId("1"), 0, 0), gang.incarnation, TaskPhase.ENDED, exit=LOST)
    # The agent that came after the one that was killed says hello before it is known that the fencing was done.
    hello_of(world, home, end)
    assert requeued(world) == f"rank 0 on {home} was lost with its node: node {home} did not answer and was fenced"


def test_a_node_that_was_to_be_fenced_and_is_back_has_shims_of_its_own_to_lose() -> None:
    world = pool()
    home, others = place(world, EXCLUSIVE)
    pass_time(world, 20.0, *others)
    live = TaskReport(TaskKey(JobId("1"), 0, 0), world.job("1").gangs[0].incarnation, TaskPhase.RUNNING)
    hello_of(world, home, live)
    world.heartbeat(home)
    world.end("1", cause=Cause.SHIM_LOST)
    assert requeued(world) == f"rank 0 on {home} vanished with its shim"
