"""Rounds: what is committed, what has become stale, ports, and what starts a round."""

from __future__ import annotations

from msgspec.structs import replace

from corral.control.config import ControlConfig
from corral.control.inputs import Administer, Cancel
from corral.model.ask import JobAsk
from corral.model.events import DeviceFailed, GangPlaced, NodeCordoned, NodeUncordoned
from corral.model.ids import GangKey, JobId, NodeId
from corral.model.job import JobState
from corral.model.messages import LaunchTask, TaskPhase, TaskReport, TaskReported
from corral.model.offer import Allocation, Proposal, VerdictKind
from tests.unit.control.world import World, node_spec

ONE = JobAsk(argv=("x",), gpu_milli=1000)
PAIR = JobAsk(argv=("x",), gpu_milli=1000, num_nodes=2)


def placements_of(world: World, job: str) -> Allocation:
    """Return what a job was given, as an arbitration would."""
    gang = world.job(job).gangs[0]
    return Allocation(GangKey(JobId(job), 0), tuple(replace(p, port=None) for p in gang.placements))


def test_allocations_on_an_old_snapshot_are_answered_node_by_node() -> None:
    world = World(n1=2, n2=2)
    world.submit(JobAsk(argv=("x",), gpu_milli=1000, num_nodes=4))
    given = placements_of(world, "1")
    world.tell(Cancel(JobId("1"), "me"))
    for rank in range(4):
        world.end("1", rank=rank)
    book, cycle = world.core.book, world.core.cycle
    cycle.paused = True
    world.submit(PAIR, PAIR, ONE, ONE)
    cycle.paused = False
    snapshot = book.board.snapshot(world.now)
    first, second = given.placements[:2], given.placements[2:]
    moved = tuple(replace(p, rank=i) for i, p in enumerate(second))
    alone = (replace(first[0], rank=0),)
    asked = [
        Allocation(GangKey(JobId("2"), 0), first),
        # Twice the same devices: what the first has taken is not there for the second.
        Allocation(GangKey(JobId("3"), 0), first),
        Allocation(GangKey(JobId("4"), 0), (replace(moved[0], rank=0),)),
        Allocation(GangKey(JobId("4"), 0), (replace(moved[1], rank=0),)),
        Allocation(GangKey(JobId("9"), 0), ()),
    ]
    lost = moved[1].devices[0].uuid
    verdicts = cycle.commit(world.now, snapshot, asked)
    assert [verdict.kind for verdict in verdicts] == [
        VerdictKind.COMMITTED,
        VerdictKind.STALE,
        VerdictKind.COMMITTED,
        VerdictKind.STALE,
        VerdictKind.STALE,
    ]
    assert "was taken" in verdicts[1].reason
    assert "does not wait" in verdicts[3].reason
    assert "does not wait" in verdicts[4].reason
    # The pool moves on while a round is computed elsewhere.
    book.record(DeviceFailed(at=world.now, node=moved[1].node, device=lost, reason="drill"))
    verdicts = cycle.commit(world.now, snapshot, [Allocation(GangKey(JobId("5"), 0), (replace(moved[1], rank=0),))])
    assert (verdicts[0].kind, verdicts[0].refresh_to) == (VerdictKind.STALE, book.board.version)
    assert lost in verdicts[0].reason
    verdicts = cycle.commit(world.now, snapshot, [Allocation(GangKey(JobId("5"), 0), alone)])
    assert verdicts[0].kind is VerdictKind.STALE
    world.settle()
    assert [world.job(n).state for n in "2345"] == ["running", "pending", "running", "pending"]


def test_a_gang_waits_for_a_port_and_a_single_rank_does_without() -> None:
    world = World(ControlConfig(port_first=20_000, port_last=20_001), n1=4, n2=4)
    world.submit(ONE, ONE, ONE, PAIR)
    ports = [world.launched[key].master_port for key in sorted(world.launched)]
    assert sorted(ports) == [0, 20_000, 20_001]
    assert world.job("4").state is JobState.PENDING
    assert world.core.cycle.last_verdicts[-1].kind is VerdictKind.INFEASIBLE
    holder = next(n for n in "123" if world.job(n).gangs[0].placements[0].port == 20_000)
    world.end(holder)
    assert world.job("4").gangs[0].placements[0].port == 20_000


def test_ports_are_leased_by_address_not_by_node() -> None:
    config = ControlConfig(port_first=20_000, port_last=20_000)
    shared, apart = World(config, n1=1, n2=1), World(config, n1=1)
    apart.hello(replace(node_spec("n2", 1), address="10.0.0.2"))
    for world in (shared, apart):
        world.submit(ONE, ONE)
    assert sorted(c.master_port for c in shared.launched.values()) == [0, 20_000]
    assert [c.master_port for c in apart.launched.values()] == [20_000, 20_000]


def test_a_start_is_no_reason_for_a_round_and_an_end_is() -> None:
    world = World(n1=1)
    world.submit(ONE, ONE)
    book = world.core.book
    launch = next(c for c in world.launched.values() if c.task.job == "1")
    running = TaskReport(launch.task, launch.incarnation, TaskPhase.RUNNING, 4)
    world.core.handle(world.now, TaskReported(node=launch.node, report=running))
    assert not book.dirty
    world.end("1")
    assert world.job("2").state is JobState.RUNNING


def test_a_cordoned_node_gets_nothing_new_and_keeps_what_it_has() -> None:
    world = World(n1=2)
    world.submit(ONE)
    node = NodeId("n1")
    world.tell(Administer(NodeCordoned(at=0.0, node=node, by="me", reason="new disk")))
    world.submit(ONE)
    assert [world.job(n).state for n in "12"] == [JobState.RUNNING, JobState.PENDING]
    world.tell(Administer(NodeUncordoned(at=0.0, node=node, by="me")))
    assert world.job("2").state is JobState.RUNNING
    assert len([f for f in world.journal if isinstance(f, GangPlaced)]) == 2
    dates = [fact.at for fact in world.journal]
    assert dates == sorted(dates)
    assert len([c for c in world.commands if isinstance(c, LaunchTask)]) == 2


def test_a_job_without_a_bid_is_no_candidate_until_it_bids_again() -> None:
    world = World(n1=1)
    world.submit(ONE, ONE)
    waiting, job = world.core.book.waiting, world.job("2")
    bids = waiting.proposals[job.id]
    assert waiting.count() == 1
    waiting.propose(job, Proposal(job.id, 1, ()))
    assert waiting.count() == 0
    assert world.core.cycle.run(world.now) is None
    waiting.propose(job, bids)
    waiting.propose(job, bids)
    assert waiting.count() == 1
    world.end("1")
    assert world.job("2").state is JobState.RUNNING
