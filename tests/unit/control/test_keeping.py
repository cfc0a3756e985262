"""Replicas over time: as many as wanted, drained before they end, replaced when they fail, kept from giving way."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from corral.appmaster.core import AppMasterCore
from corral.control.core import ControlCore
from corral.control.inputs import Administer, Cancel, Serve
from corral.model.ask import JobAsk
from corral.model.events import (
    GangStopping,
    JobCancelRequested,
    JobSubmitted,
    NodeCordoned,
    QueueRemoved,
    QueueSet,
    ReplicaDraining,
    RolloutEnded,
    ServiceRemoved,
    ServiceScaled,
    TenantRemoved,
    TenantSet,
)
from corral.model.ids import GangKey, JobId, NodeId, QueueName, TenantId
from corral.model.job import Cause, StopReason
from corral.model.service import ReplicaPhase, Scaling
from corral.model.tenant import Queue, Tenant
from corral.policy.serving.routing import table_of
from corral.ports.store import Recovered
from tests.unit.control.serving import WEB, Serving, spec
from tests.unit.control.world import World

UP, STARTING, DRAINING = ReplicaPhase.SERVING, ReplicaPhase.STARTING, ReplicaPhase.DRAINING


def scaled(world: Serving, replicas: int) -> None:
    answer = world.tell(Serve(ServiceScaled(at=0.0, service=WEB, replicas=replicas, by="me")))
    assert answer is None, answer


def serving(replicas: int, **changes: Any) -> Serving:
    """Return a world in which so many replicas serve, and a front end tells of them."""
    world = Serving(n1=4, n2=4)
    world.serve(spec(replicas=(replicas, replicas), **changes))
    world.up()
    world.front()
    return world


def test_fewer_replicas_are_routed_away_drained_and_only_then_ended() -> None:
    world = serving(3)
    scaled(world, 2)
    assert world.phases() == [UP, UP, DRAINING]
    assert [one.draining for one in world.table().routes[0].backends] == [False, False, True]
    assert not world.stops()
    world.front(drained=False)
    assert not world.stops()
    world.advance(1.0)
    [stop] = world.stops()
    assert (stop.task.job, stop.saving_s) == ("3", 0.0)
    world.end("3", cause=Cause.CANCELLED)
    assert world.phases() == [UP, UP]
    assert world.service.failures == 0
    assert world.finished[-1].id == "3"


def test_a_front_end_that_keeps_silent_holds_a_drain_up_for_the_declared_time_at_most() -> None:
    world = serving(2)
    scaled(world, 1)
    world.fronted = False
    world.advance(59.0)
    assert not world.stops()
    # After a minute it is forgotten: nobody has the replica's requests any more.
    world.advance(3.0)
    assert [stop.task.job for stop in world.stops()] == ["2"]


def test_streams_may_go_on_as_long_as_the_service_declares() -> None:
    world = serving(2)
    scaled(world, 1)
    for _ in range(298):
        World.advance(world, 1.0)
        world.readiness()
        world.front(drained=False)
    assert not world.stops()
    world.advance(3.0)
    assert [stop.task.job for stop in world.stops()] == ["2"]


def test_without_a_front_end_nothing_is_waited_for_once_one_would_have_reported() -> None:
    world = Serving(n1=4)
    world.serve(spec(replicas=(2, 2)))
    world.up()
    scaled(world, 1)
    assert not world.stops()
    world.advance(11.0)
    assert [stop.task.job for stop in world.stops()] == ["2"]


def test_a_replica_that_fails_is_replaced_at_once_and_again_and_again_more_slowly() -> None:
    world = serving(1)
    world.end("1", code=1)
    assert [replica.job for replica in world.replicas] == ["2"]
    begun = []
    for job in range(2, 7):
        world.begin()
        world.end(str(job), code=1)
        ended = world.now
        while str(job + 1) not in [replica.job for replica in world.replicas]:
            world.advance(1.0)
        begun.append(round(world.now - ended))
    assert begun == [10, 20, 40, 80, 160]


def test_a_replica_that_served_for_long_is_no_part_of_a_crash_loop() -> None:
    world = serving(1)
    for job in range(1, 5):
        world.up()
        world.advance(61.0)
        world.end(str(job), code=1)
        assert [replica.job for replica in world.replicas] == [str(job + 1)]


def test_what_somebody_ends_by_hand_is_replaced_and_is_no_failure() -> None:
    world = serving(2)
    world.tell(Cancel(JobId("1"), "me"))
    # It goes on with what it has, and its place is taken already.
    [stop] = world.stops()
    assert (stop.task.job, stop.saving_s) == ("1", 300.0)
    assert [one.draining for one in world.table().routes[0].backends] == [True, False]
    assert [replica.job for replica in world.replicas] == ["1", "2", "3"]
    world.front(drained=False)
    assert len(world.stops()) == 1
    world.advance(1.0)
    assert [(stop.task.job, stop.saving_s) for stop in world.stops()] == [("1", 300.0), ("1", 0.0)]
    world.end("1", cause=Cause.CANCELLED)
    assert world.service.failures == 0


def test_the_floor_is_not_asked_to_give_way_and_what_is_above_is() -> None:
    world = Serving(n1=4, n2=4, n3=4)
    world.serve(spec(scaling=Scaling(1, 4, target_outstanding=4.0)))
    scaled(world, 3)
    world.up()
    holdings = world.core.book.board.holdings
    assert [holdings[GangKey(JobId(job), 0)].preemptible for job in ("1", "2", "3")] == [False, True, True]
    world.end("1", code=1)
    assert [holdings[GangKey(JobId(job), 0)].preemptible for job in ("2", "3")] == [False, True]
    # The floor goes before its tenant's other work.
    assert [world.job(job).spec.priority for job in ("2", "3", "4")] == [0, 0, 0]


def test_a_replica_of_the_floor_goes_before_its_tenants_other_work() -> None:
    world = Serving(n1=4)
    world.serve(spec(replicas=(1, 4)))
    assert world.job("1").spec.priority == 100
    scaled(world, 2)
    assert world.job("2").spec.priority == 0


def test_one_that_gives_way_ends_its_requests_and_waits_again() -> None:
    world = serving(2)
    gang = world.job("1").gangs[0]
    fact = GangStopping(at=world.now, job=JobId("1"), gang=0, incarnation=1, reason=StopReason.PREEMPTED)
    assert gang.stopping is None
    world.core.book.record(fact)
    world.settle()
    assert [(stop.task.job, stop.saving_s) for stop in world.stops()] == [("1", 60.0)]
    world.advance(1.0)
    assert [(stop.task.job, stop.saving_s) for stop in world.stops()] == [("1", 60.0), ("1", 0.0)]


def test_a_node_that_is_emptied_is_left_only_when_another_replica_serves() -> None:
    world = serving(1)
    [node] = world.placed_on("1")
    world.tell(Administer(NodeCordoned(at=0.0, node=NodeId(node), by="me", drain=True)))
    assert not world.stops()
    assert world.phases() == [UP, STARTING]
    world.up()
    assert world.phases() == [DRAINING, UP]
    assert world.placed_on("2") != [node]
    world.advance(1.0)
    assert [stop.task.job for stop in world.stops()] == ["1"]


def test_a_revision_follows_and_the_old_one_leaves_when_the_new_one_was_watched() -> None:
    world = serving(2)
    world.serve(spec(replicas=(2, 2), argv="new"))
    assert [replica.revision for replica in world.replicas] == [1, 1, 2]
    world.up()
    world.advance(9.0)
    assert world.phases() == [UP, UP, UP]
    world.advance(2.0)
    # The one beside which the new one stands is drained, and ends when the front end says so; the next one begins.
    assert world.placed_on("1") == world.placed_on("3")
    assert [stop.task.job for stop in world.stops()] == ["1"]
    world.end("1", cause=Cause.CANCELLED)
    world.up()
    world.advance(2.0)
    assert [stop.task.job for stop in world.stops()] == ["1", "2"]
    world.end("2", cause=Cause.CANCELLED)
    world.advance(1.0)
    assert (world.service.stable, world.service.rollout) == (2, None)
    assert [(replica.revision, replica.phase) for replica in world.replicas] == [(2, UP), (2, UP)]
    assert world.core.services.waits_for(world.now, world.service) == ""


def test_a_revision_that_is_never_ready_is_undone_and_the_old_one_serves_all_the_time() -> None:
    world = serving(2)
    world.serve(spec(replicas=(2, 2), argv="bad"))
    world.begin()
    world.sick = {"j3": False}
    world.advance(601.0)
    ended = [fact for fact in world.journal if isinstance(fact, RolloutEnded)]
    assert [(one.revision, one.undone) for one in ended] == [(1, True)]
    assert "replica 3 was not ready in 600 s" in world.service.message
    assert [stop.task.job for stop in world.stops()] == ["3"]
    world.end("3", cause=Cause.CANCELLED)
    world.advance(1.0)
    assert [(replica.revision, replica.phase) for replica in world.replicas] == [(1, UP), (1, UP)]
    assert any("given up" in told for told in world.notices)


def test_a_revision_that_answers_badly_is_undone() -> None:
    world = serving(2)
    world.serve(spec(replicas=(2, 2), argv="bad"))
    world.up()
    world.front(backends={"3": {"requests": 40, "errors": 3}, "1": {"requests": 900, "errors": 0}})
    assert world.service.rollout is None
    assert world.service.message == "revision 2 was given up: 3 of 40 requests failed"
    assert world.phases() == [UP, UP, DRAINING]


def test_a_canary_gets_its_share_and_stays_until_it_is_widened() -> None:
    world = serving(2)
    world.serve(spec(replicas=(2, 2), argv="new"), canary_percent=10)
    assert world.table().routes[0].shares == {}
    world.up()
    assert world.table().routes[0].shares == {1: 90, 2: 10}
    assert [(one.revision, one.draining) for one in world.table().routes[0].backends] == [
        (1, True),
        (1, False),
        (2, False),
    ]
    world.advance(60.0)
    assert world.service.stable == 1
    undo = RolloutEnded(at=0.0, service=WEB, revision=9, undone=True, by="me")
    assert world.tell(Serve(undo)) is None
    assert (world.service.stable, world.table().routes[0].shares) == (1, {})


def test_load_asks_for_more_at_once_and_gives_them_back_later() -> None:
    world = Serving(n1=4, n2=4)
    world.serve(spec(scaling=Scaling(1, 6, target_outstanding=4.0)))
    world.up()
    world.front(outstanding=15, requests=100)
    assert (world.service.wanted, len(world.replicas)) == (4, 4)
    assert world.service.message == "15 requests under way or waiting"
    world.up()
    world.traffic = {"outstanding": 2, "requests": 100}
    world.advance(70.0)
    assert world.service.wanted == 1
    assert world.phases() == [UP, DRAINING, DRAINING, DRAINING]


def test_a_service_rests_and_wakes() -> None:
    world = Serving(n1=4)
    world.serve(spec(scaling=Scaling(0, 2, idle_s=30.0)))
    assert len(world.replicas) == 1
    world.up()
    world.front()
    world.advance(31.0)
    assert world.service.wanted == 0
    world.end("1", cause=Cause.CANCELLED)
    assert world.table().routes[0].reason == "it is at rest: nobody asked for it lately"
    assert world.replicas == []
    world.front(waiting=1)
    assert [replica.job for replica in world.replicas] == ["2"]


def test_a_removed_service_drains_and_is_gone() -> None:
    world = serving(2)
    assert world.tell(Serve(ServiceRemoved(at=0.0, service=WEB, by="me"))) is None
    assert world.phases() == [DRAINING, DRAINING]
    answer = world.tell(Serve(ServiceScaled(at=0.0, service=WEB, replicas=3, by="me")))
    assert getattr(answer, "code", None) == "NOT_FOUND"
    world.advance(1.0)
    for job in ("1", "2"):
        world.end(job, cause=Cause.CANCELLED)
    assert not world.core.book.state.services
    assert world.table().routes == ()
    assert world.core.services.table() is None


def test_after_a_change_of_leader_routes_stay_and_replicas_go_on() -> None:
    world = serving(2)
    scaled(world, 1)
    told = table_of(world.core.book.state, 1).digest
    again = world.replayed()
    assert table_of(again.book.state, 2).digest == told
    before = len(world.journal)
    again.settle(world.now)
    # Nothing is known of front ends yet: what drains is not ended, nothing else is started or drained.
    facts = again.drain().facts
    assert not [f for f in facts if isinstance(f, JobSubmitted | ReplicaDraining | JobCancelRequested)]
    assert len(world.journal) == before


def test_after_two_failures_the_next_replica_tries_other_nodes_first() -> None:
    world = Serving(n1=1, n2=1)
    world.serve(spec(replicas=(1, 1)))
    [first] = world.placed_on("1")
    world.begin()
    world.end("1", code=1)
    # One failure says nothing against a node.
    world.begin()
    [second] = world.placed_on("2")
    world.end("2", code=1)
    world.advance(11.0)
    serving = world.job("3").spec.serving
    assert serving is not None
    assert serving.avoid == tuple(dict.fromkeys((first, second)))


def test_replicas_stand_on_nodes_of_their_own_and_a_fixed_port_is_never_given_twice() -> None:
    world = Serving(n1=4, n2=4, n3=4)
    world.serve(spec(replicas=(3, 3)))
    assert sorted(world.placed_on(job)[0] for job in ("1", "2", "3")) == ["n1", "n2", "n3"]
    other = Serving(n1=4, n2=4)
    # All nodes of this world have one address: they are one machine to whoever calls.
    other.serve(spec(replicas=(2, 2), port=8000))
    assert [bool(other.placed_on(job)) for job in ("1", "2")] == [True, False]
    other.up()
    assert [one.port for one in other.table().routes[0].backends] == [8000]
    other.end("1", code=1)
    assert [bool(other.placed_on(job)) for job in ("2", "3")] == [True, False]


def test_a_snapshot_keeps_services_as_they_are() -> None:
    world = serving(3)
    world.serve(spec(replicas=(3, 3), argv="new"), canary_percent=40)
    scaled(world, 2)
    again = ControlCore(Recovered(9, world.core.image(), ()), world.config, AppMasterCore, epoch=2)
    assert again.book.state.services == world.core.book.state.services
    assert table_of(again.book.state, 1) == world.table()


def test_a_queue_and_a_tenant_that_a_service_needs_are_not_removed_while_it_rests() -> None:
    world = Serving(n1=4)
    world.tell(Administer(QueueSet(at=0.0, queue=Queue(QueueName("online")), by="me"), create=True))
    world.tell(Administer(TenantSet(at=0.0, tenant=Tenant(TenantId("shop")), by="me"), create=True))
    ask = JobAsk(argv=("x",), gpu_milli=1000, queue="online")
    world.serve(replace(spec(replica=ask, replicas=(1, 1)), tenant=TenantId("shop")))
    scaled(world, 0)
    world.begin()
    world.end("1", cause=Cause.CANCELLED)
    assert world.replicas == []
    for fact in (QueueRemoved(at=0.0, queue=QueueName("online"), by="me"),
                 TenantRemoved(at=0.0, tenant=TenantId("shop"), by="me")):  # fmt: skip
        assert getattr(world.tell(Administer(fact)), "code", None) == "CONFLICT"


def test_people_are_told_what_a_service_waits_for() -> None:
    def said() -> str:
        return world.core.services.waits_for(world.now, world.service)

    world = Serving(n1=2)
    world.serve(spec(replicas=(2, 2)))
    assert said() == "replicas are starting"
    world.up()
    assert said() == ""
    # On a full pool the next revision finds no room beside the old one.
    world.serve(spec(replicas=(2, 2), argv="new"))
    assert said() == "replicas wait for room: see `corral why 3`"
    world.sick = {"j2": False}
    scaled(world, 3)
    world.advance(1.0)
    assert "wait for room" in said()
    crashing = Serving(n1=1)
    crashing.serve(spec())
    for job in ("1", "2"):
        crashing.begin()
        crashing.end(job, code=1)
    words = crashing.core.services.waits_for(crashing.now, crashing.service)
    assert words == "replicas ended by themselves: the next is started in 10 s"
