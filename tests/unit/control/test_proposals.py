"""What AppMasters on nodes believe and measure, and what is left of gangs that are requeued."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from corral.control.inputs import Administer
from corral.control.stopping import stop_gang
from corral.model.ask import JobAsk
from corral.model.events import NodeCordoned, NodeUncordoned
from corral.model.experience import Measurement, WorkSpec
from corral.model.ids import JobId, NodeId, TaskKey, TenantId
from corral.model.job import Cause, CheckpointSpec, JobState, StopReason
from corral.model.messages import Heartbeat, MasterProposed, Usage
from corral.model.offer import Outlook, Proposal
from tests.unit.control.offers import ONE, OTHER, bids_of, candidate_bids, submit
from tests.unit.control.world import World, node_spec

DEFAULT = TenantId("default")


def propose(world: World, of: str, outlook: Outlook | None = None, *measured: Measurement, **changes: object) -> None:
    """Let the AppMaster of a running job say what it believes."""
    job = JobId(of)
    node, generation, _ = world.masters[job]
    outlooks = {} if outlook is None else {0: outlook}
    said = MasterProposed(
        node=node,
        job=job,
        generation=generation,
        proposal=Proposal(job, 0, (), outlooks, measured),
        at=world.now,
    )
    world.tell(replace(said, **changes))


def measured(units: float, seconds: float = 600.0, gang: int = 0, incarnation: int = 1) -> Measurement:
    return Measurement("what it says", "what it says", 99, units, seconds, gang, incarnation)


# ---- AppMasters on nodes -------------------------------------------------------------------------------------------


def test_what_a_master_believes_reaches_the_holding_of_its_gang() -> None:
    world = World(n1=2)
    world.submit(ONE)
    world.start("1")
    world.now += 100.0
    propose(world, "1", Outlook(remaining_s=50.0, saved_at=world.now - 5.0))
    [holding] = world.core.book.board.holdings.values()
    assert (holding.remaining_s, holding.known_at, holding.saved_at) == (50.0, world.now, world.now - 5.0)


def test_times_of_a_node_are_brought_to_those_of_the_controller() -> None:
    world = World(n1=2)
    world.submit(ONE)
    world.start("1")
    world.now += 100.0
    # The node's clock is an hour ahead.
    propose(world, "1", Outlook(saved_at=world.now + 3_595.0), at=world.now + 3_600.0)
    [holding] = world.core.book.board.holdings.values()
    assert holding.saved_at == pytest.approx(world.now - 5.0)
    # What is said to lie in the future is of now.
    propose(world, "1", Outlook(saved_at=world.now + 60.0))
    [holding] = world.core.book.board.holdings.values()
    assert holding.saved_at == world.now


@pytest.mark.parametrize(
    "changes",
    [{"generation": 1}, {"node": NodeId("n9")}, {"job": JobId("9")}, {"proposal": Proposal(JobId("2"), 0, ())}],
)
def test_words_of_an_older_host_or_of_another_job_are_dropped(changes: dict[str, object]) -> None:
    world = World(n1=2)
    world.submit(ONE)
    world.start("1")
    before = dict(world.core.book.waiting.proposals)
    propose(world, "1", Outlook(remaining_s=50.0), measured(600.0), **changes)
    assert world.core.book.waiting.proposals == before
    assert world.core.book.experience.rates(world.job("1").spec) == ()


numbers = st.none() | st.floats()


@given(numbers, numbers, st.floats(), st.floats(), st.floats(allow_nan=False, allow_infinity=False))
def test_no_number_of_a_node_breaks_anything(
    remaining: float | None, saved: float | None, units: float, seconds: float, at: float
) -> None:
    world = World(n1=2)
    work = WorkSpec(total=100.0, throughput={"H100": 1.0})
    submit(world, replace(ONE, checkpoint=CheckpointSpec(), work=work), replace(ONE, work=work))
    world.start("1")
    world.now += 100.0
    propose(world, "1", Outlook(remaining_s=remaining, saved_at=saved), measured(units, seconds), at=at)
    for holding in world.core.rounds.market(world.now).snapshot.holdings:
        assert holding.remaining_s is None or 0.0 <= holding.remaining_s < math.inf
        assert holding.saved_at is None or holding.saved_at <= world.now
        assert all(0.0 < bid.throughput < math.inf and 0.0 <= bid.confidence <= 1.0 for bid in holding.bids)
    preempted(world, "1")


def test_words_about_a_job_that_has_ended_are_dropped() -> None:
    world = World(n1=2)
    world.submit(ONE)
    world.start("1")
    world.end("1")
    propose(world, "1", Outlook(remaining_s=50.0))
    assert world.core.book.waiting.proposals == {}


def test_measurements_count_for_what_the_gang_really_holds() -> None:
    world = World(n1=2)
    world.submit(replace(ONE, gpu_milli=2000, work=WorkSpec(family="resnet")))
    world.start("1")
    spec = world.job("1").spec
    propose(world, "1", Outlook(), measured(1_200.0), measured(9_999.0, gang=7), measured(9_999.0, incarnation=2))
    [rate] = world.core.book.experience.rates(spec)
    assert (rate.model, rate.devices) == ("H100", 2)
    assert rate.units_per_s == pytest.approx(2.0)


def test_jobs_of_the_family_bid_again_with_what_was_measured() -> None:
    world = World(n1=1)
    submit(world, ONE, replace(OTHER, work=WorkSpec(total=3_600.0, family="net")), OTHER)
    world.start("1")
    assert bids_of(world, "2")[0].remaining_s is None
    propose(world, "1", Outlook(), measured(1_200.0))
    [bid] = candidate_bids(world, "2")
    assert bid.throughput == pytest.approx(2.0, rel=0.01)
    assert bid.remaining_s == pytest.approx(1_800.0, rel=0.01)
    assert bid.confidence > 0.7
    assert bids_of(world, "3")[0].confidence == 0.0


def test_claims_are_audited_where_they_were_made_for() -> None:
    world = World(n1=2)
    world.submit(replace(ONE, work=WorkSpec(throughput={"h100": 10.0})))
    world.start("1")
    assert world.core.rounds.market(world.now).trust == {}
    propose(world, "1", Outlook(), measured(3_000.0))
    # Measured 5 units/s where 10 were claimed.
    assert world.core.rounds.market(world.now).trust == {DEFAULT: pytest.approx(0.5**0.2)}


def test_a_round_is_shown_the_history_of_finished_gangs() -> None:
    world = World(n1=2)
    world.submit(ONE)
    world.start("1")
    world.now += 9.0
    world.end("1")
    assert set(world.core.rounds.market(world.now).history.durations.values()) == {(9.0,)}


def test_gangs_away_from_their_master_are_watched_from_their_heartbeats() -> None:
    world = World(n1=1, n2=1)
    world.submit(replace(ONE, indices=(0, 1), work=WorkSpec(total=1_000.0)))
    world.start("1", 0)
    world.start("1", 1)
    node, _, _ = world.masters[JobId("1")]
    away = next(task for task, launch in world.launched.items() if launch.node != node)
    began = world.now
    for second in (100.0, 110.0, 150.0):
        world.now = began + second
        usage = (Usage(away, 1, progress=second), Usage(TaskKey(JobId("9"), 0, 0), 1, progress=1.0))
        name = world.launched[away].node
        world.tell(Heartbeat(node=name, sent_boottime_s=1.0, wall_s=world.now, usage=usage))
    holdings = {key.gang: holding for key, holding in world.core.book.board.holdings.items()}
    # The other one is thought to be as fast, and to have done nothing.
    assert holdings[1 - away.gang].remaining_s == pytest.approx(1_000.0)
    assert holdings[away.gang].remaining_s == pytest.approx(850.0)
    [rate] = world.core.book.experience.rates(world.job("1").spec)
    assert rate.units_per_s == pytest.approx(1.0)


def test_a_gang_that_its_master_sees_is_not_watched_twice() -> None:
    world = World(n1=1, n2=1)
    world.submit(replace(ONE, num_nodes=2, work=WorkSpec(total=1_000.0)))
    for rank in range(2):
        world.start("1", 0, rank)
    node, _, _ = world.masters[JobId("1")]
    [away] = [task for task, launch in world.launched.items() if launch.node != node]
    for second in (100.0, 110.0, 150.0):
        world.now += 50.0
        usage = (Usage(away, 1, progress=second),)
        world.tell(Heartbeat(node=world.launched[away].node, sent_boottime_s=1.0, wall_s=world.now, usage=usage))
    [holding] = world.core.book.board.holdings.values()
    assert holding.remaining_s is None
    assert world.core.book.experience.rates(world.job("1").spec) == ()


def test_a_model_that_was_away_when_jobs_bid_is_bid_for_when_it_is_back() -> None:
    world = World()
    for name, model in (("a1", "A100"), ("v1", "V100"), ("h1", "H100")):
        world.hello(node_spec(name, 1, model))
    world.tell(Administer(NodeCordoned(at=world.now, node=NodeId("h1"), by="me", reason="new disk")))
    work = WorkSpec(throughput={"H100": 4.0, "A100": 2.0, "V100": 1.0})
    submit(world, *[replace(ONE, work=work)] * 3)
    assert [bid.shape.demand.gpu_model for bid in bids_of(world, "3")] == ["A100", "V100"]
    assert world.job("3").state is JobState.PENDING
    world.tell(Administer(NodeUncordoned(at=world.now, node=NodeId("h1"), by="me")))
    assert [bid.shape.demand.gpu_model for bid in bids_of(world, "3")] == ["H100", "A100", "V100"]
    assert world.placed_on("3") == ["h1"]
    # Nodes that come and go every second make nobody bid every second.
    before = world.core.book.waiting.proposals[JobId("1")].version
    for _ in range(2):
        world.now += 1.0
        world.tell(Administer(NodeCordoned(at=world.now, node=NodeId("v1"), by="me", reason="")))
        world.tell(Administer(NodeUncordoned(at=world.now, node=NodeId("v1"), by="me")))
    assert world.core.book.waiting.proposals[JobId("1")].version == before


def test_after_a_restart_jobs_bid_for_the_nodes_that_come_back_later() -> None:
    world = World()
    specs = [node_spec(name, 1, model) for name, model in (("a1", "A100"), ("v1", "V100"), ("h1", "H100"))]
    for spec in specs:
        world.hello(spec)
    work = WorkSpec(throughput={"H100": 4.0, "A100": 2.0, "V100": 1.0})
    submit(world, *[replace(ONE, work=work)] * 4)
    world.core = world.replayed()
    world.settle()
    for spec in specs:
        world.now += 6.0
        world.hello(spec)
    assert [bid.shape.demand.gpu_model for bid in bids_of(world, "4")] == ["H100", "A100", "V100"]


def test_a_new_model_in_the_pool_makes_jobs_that_know_models_bid_again() -> None:
    world = World(n1=1)
    claims = WorkSpec(total=100.0, throughput={"H100": 10.0, "V100": 1.0})
    submit(world, ONE, replace(ONE, work=claims), OTHER)
    assert [bid.shape.demand.gpu_model for bid in bids_of(world, "2")] == [None]
    other = world.core.book.waiting.proposals[JobId("3")]
    world.hello(node_spec("n2", 0, "V100"))
    assert [bid.shape.demand.gpu_model for bid in bids_of(world, "2")] == [None]
    world.hello(node_spec("n3", 1, "V100"))
    assert [bid.shape.demand.gpu_model for bid in bids_of(world, "2")] == ["H100", "V100"]
    assert world.core.book.waiting.proposals.get(JobId("3"), other) is other


# ---- requeued gangs ------------------------------------------------------------------------------------------------


def preempted(world: World, job: str) -> None:
    stop_gang(world.core.book, world.now, world.job(job), 0, StopReason.PREEMPTED)
    world.settle()
    world.end(job, cause=Cause.PREEMPTED)


def remaining_of(world: World, job: str) -> float | None:
    """Return what is believed to be left of a gang that waits: its pool has no room for it."""
    return next(c.remaining_s for c in world.core.book.waiting.index if c.key.job == job)


def full_world(ask: JobAsk) -> World:
    """Return a world where one gang runs since 1,000 s and nothing can be placed any more."""
    world = World(n1=1)
    world.submit(ask)
    world.start("1")
    world.now += 1_000.0
    world.core.cycle.paused = True
    return world


def test_who_saves_itself_when_asked_to_has_lost_nothing() -> None:
    world = full_world(replace(ONE, checkpoint=CheckpointSpec()))
    propose(world, "1", Outlook(remaining_s=500.0))
    world.now += 100.0
    preempted(world, "1")
    assert remaining_of(world, "1") == pytest.approx(400.0)


def test_who_saves_nothing_begins_again() -> None:
    world = full_world(ONE)
    propose(world, "1", Outlook(remaining_s=500.0))
    world.now += 100.0
    preempted(world, "1")
    assert remaining_of(world, "1") == pytest.approx(1_500.0)


def test_who_saved_itself_last_goes_on_from_there() -> None:
    world = full_world(ONE)
    propose(world, "1", Outlook(remaining_s=500.0, saved_at=world.now - 60.0))
    world.now += 100.0
    preempted(world, "1")
    assert remaining_of(world, "1") == pytest.approx(560.0)


def test_declared_work_counts_down_without_any_report() -> None:
    work = WorkSpec(total=3_000.0, throughput={"H100": 2.0})
    world = full_world(replace(ONE, checkpoint=CheckpointSpec(), work=work))
    preempted(world, "1")
    # 1,500 s in all, 1,000 of them done.
    assert remaining_of(world, "1") == pytest.approx(500.0)


def test_what_is_left_is_carried_over_to_another_model() -> None:
    world = World()
    world.specs = {"n1": node_spec("n1", 1, "V100"), "n2": node_spec("n2", 0, "H100")}
    world.hello(world.specs["n1"])
    work = WorkSpec(throughput={"V100": 1.0, "H100": 4.0})
    world.submit(replace(ONE, checkpoint=CheckpointSpec(), work=work))
    world.start("1")
    world.now += 1_000.0
    propose(world, "1", Outlook(remaining_s=400.0))
    world.hello(node_spec("n2", 1, "H100"))
    world.core.cycle.paused = True
    preempted(world, "1")
    # 400 s on the V100 are 100 s on the H100, on which it bids first now.
    assert candidate_bids(world, "1")[0].shape.demand.gpu_model == "H100"
    assert remaining_of(world, "1") == pytest.approx(100.0)
    world.core.cycle.paused = False
    world.core.book.dirty = True
    world.settle()
    assert world.placed_on("1") == ["n2"]
    [holding] = world.core.book.board.holdings.values()
    assert holding.remaining_s == pytest.approx(100.0)
    assert holding.known_at == world.now
