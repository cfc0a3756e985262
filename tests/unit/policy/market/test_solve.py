"""Rounds whose right answer is worked out by hand. Worth is the share of the pool over the remaining seconds."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from corral.model.ids import NodeId
from corral.model.market import PreemptionKind
from corral.model.offer import Bid, Locality, Preference, Reservation
from corral.model.resources import Placement
from corral.policy.config import SchedulingConfig
from tests.unit.policy.building import NOW, node_spec, place_on, queue, shape, tenant
from tests.unit.policy.market.scenes import devices_of, evicted, nodes_of, plan, reason_of, runs, waits, winners

ONE = Bid(shape(1), restart_cost_s=30.0)
TWO = Bid(shape(2), restart_cost_s=30.0)


def test_the_best_that_fit_together_win() -> None:
    # On 4 devices: 3/4 / 100 beats 2/4 / 200 + 2/4 / 300 (0.0075 > 0.0042), and one device is left.
    jobs = [waits(1, Bid(shape(3)), remaining=100), waits(2, TWO, remaining=200), waits(3, TWO, remaining=300)]
    found = plan([node_spec("n", 4)], jobs)
    assert winners(found) == [1]
    assert found.value == pytest.approx(0.75 / 100)
    assert found.gap == 0.0
    # With 200 s left the pair is worth more: 0.0042 > 0.75 / 200.
    jobs[0] = waits(1, Bid(shape(3)), remaining=200)
    found = plan([node_spec("n", 4)], jobs)
    assert winners(found) == [2, 3]
    assert found.value == pytest.approx(0.5 / 200 + 0.5 / 300)
    assert reason_of(found, 1) == "price"


def test_a_running_gang_gives_way_when_the_gain_exceeds_what_is_lost() -> None:
    # It is worth 1/1000, and giving way loses 30 + 90 s of 600 s (a tenure): 1/1000 * 0.2. The newcomer needs 1/833.
    running = [runs(1, ONE, place_on("n", 0), remaining=1_000, unsaved=90)]
    assert evicted(plan([node_spec("n", 1)], [waits(2, ONE, remaining=850)], running=running)) == []
    found = plan([node_spec("n", 1)], [waits(2, ONE, remaining=800)], running=running)
    assert winners(found) == [2]
    (eviction,) = found.evictions
    assert eviction.incarnation == 3
    assert eviction.preemption.kind is PreemptionKind.ROOM
    assert eviction.preemption.beneficiary == "2"
    assert eviction.preemption.tenant == "a"
    assert eviction.preemption.lost_s == pytest.approx(120)
    # What is lost counts against the value: 1/800 - 0.2/1000.
    assert found.value == pytest.approx(1 / 800 - 0.2 / 1_000)


def test_what_nothing_saved_is_lost_since_the_start() -> None:
    lone = replace(runs(1, ONE, place_on("n", 0), ran=700), saved_at=None)
    found = plan([node_spec("n", 1)], [waits(2, ONE, remaining=1)], running=[lone])
    assert found.evictions[0].preemption.lost_s == pytest.approx(30 + 700)


def test_tenure_protects_and_the_loss_says_until_when() -> None:
    running = [runs(1, ONE, place_on("n", 0), tenure_until=NOW + 60)]
    found = plan([node_spec("n", 1)], [waits(2, ONE, remaining=1)], running=running)
    assert (winners(found), evicted(found)) == ([], [])
    (loss,) = found.losses.values()
    assert (loss.reason, loss.protected_until) == ("tenure", NOW + 60)


def test_what_fits_beside_leaves_everybody_alone() -> None:
    running = [runs(1, ONE, place_on("n", 0), remaining=10**6)]
    found = plan([node_spec("n", 2)], [waits(2, ONE, remaining=1)], running=running)
    assert (winners(found), evicted(found)) == ([2], [])
    assert devices_of(found, 2) == ["n-1"]


def test_least_lost_work_gives_way() -> None:
    running = [
        runs(1, ONE, place_on("n", 0), unsaved=500),
        runs(2, ONE, place_on("n", 1), unsaved=10),
        runs(3, ONE, place_on("n", 2), unsaved=500),
    ]
    found = plan([node_spec("n", 3)], [waits(4, ONE, remaining=50)], running=running)
    assert evicted(found) == [2]
    assert devices_of(found, 4) == ["n-1"]


def test_a_gang_starts_whole_or_not_at_all() -> None:
    specs = [node_spec("n1", 2), node_spec("n2", 2)]
    assert winners(plan(specs, [waits(1, Bid(shape(2, ranks=3)))])) == []
    found = plan(specs, [waits(1, Bid(shape(2, ranks=2)))])
    assert nodes_of(found, 1) == ["n1", "n2"]


def test_a_cell_is_cleared_for_a_gang_that_fits_nowhere_together() -> None:
    # Each node has one device free; the gang needs two on one node and is worth more than one small gang.
    specs = [node_spec("n1", 2), node_spec("n2", 2)]
    running = [
        runs(1, ONE, place_on("n1", 0), remaining=1_000),
        runs(2, ONE, place_on("n2", 0), remaining=2_000),
    ]
    found = plan(specs, [waits(3, TWO, remaining=100)], running=running)
    assert winners(found) == [2, 3]
    assert nodes_of(found, 3) == ["n2"]
    # The cheaper one moves over to the device that is free on the other node.
    assert evicted(found) == [2]
    assert nodes_of(found, 2) == ["n1"]
    assert found.evictions[0].preemption.kind is PreemptionKind.DEFRAGMENT
    assert found.evictions[0].preemption.beneficiary == "3"


def test_a_guarantee_is_taken_back() -> None:
    tenants = [tenant("a"), tenant("b", guaranteed=2)]
    running = [runs(i, ONE, place_on("n", i), remaining=10, tenant="a") for i in range(4)]
    jobs = [waits(10 + i, ONE, remaining=10_000, tenant="b") for i in range(3)]
    found = plan([node_spec("n", 4)], jobs, running=running, tenants=tenants)
    assert len(found.evictions) == 2
    assert {e.preemption.kind for e in found.evictions} == {PreemptionKind.RECLAIM}
    assert {e.preemption.tenant for e in found.evictions} == {"b"}


def test_priority_goes_first_in_a_tenant() -> None:
    running = [runs(1, ONE, place_on("n", 0), remaining=10)]
    found = plan([node_spec("n", 1)], [waits(2, ONE, remaining=10_000, priority=5)], running=running)
    assert evicted(found) == [1]
    assert found.evictions[0].preemption.kind is PreemptionKind.PRIORITY


def test_limits_of_tenants_and_queues_and_pauses_hold() -> None:
    jobs = [waits(i, ONE) for i in range(3)]
    found = plan([node_spec("n", 4)], jobs, tenants=[tenant("a", limit=2)])
    assert len(found.awards) == 2
    assert {loss.reason for loss in found.losses.values()} == {"limit"}
    found = plan([node_spec("n", 4)], jobs, queues=[queue(limit=1)])
    assert len(found.awards) == 1
    found = plan([node_spec("n", 4)], jobs, queues=[queue(paused=True)])
    assert found.awards == ()
    assert reason_of(found, 1) == "limit"


def test_alike_tenants_get_alike_parts_however_many_jobs_they_have() -> None:
    many = [waits(i, ONE, tenant="a") for i in range(40)]
    few = [waits(100 + i, ONE, tenant="b") for i in range(8)]
    found = plan([node_spec("n", 8)], [*many, *few])
    assert sum(award.tenant == "a" for award in found.awards) == 4


def test_a_job_takes_another_model_when_its_best_is_dear() -> None:
    # Both want the one H100; the first loses little on the A100 (sqrt 0.9), the second much (sqrt 0.1).
    def bids(other: float) -> tuple[Bid, ...]:
        return (Bid(shape(1, model="H100"), throughput=1.0), Bid(shape(1, model="A100"), throughput=other))

    specs = [node_spec("h", 1, "H100"), node_spec("a", 1, "A100")]
    found = plan(specs, [waits(1, *bids(0.9)), waits(2, *bids(0.1))])
    assert nodes_of(found, 1) == ["a"]
    assert nodes_of(found, 2) == ["h"]
    assert found.value == pytest.approx(0.5 * (1 + 0.9**0.5) / 1_000)


@pytest.mark.parametrize("remaining", [0.0, 1e-9, 1e30])
def test_no_remaining_time_upsets_a_round_of_gangs_that_choose(remaining: float) -> None:
    # With the critical path on: who has nothing left, as after its last checkpoint, does not divide by nothing.
    bids = (Bid(shape(1, model="H100"), throughput=4.0), Bid(shape(1, model="A100"), throughput=1.0))
    specs = [node_spec("h", 1, "H100"), node_spec("a", 1, "A100")]
    found = plan(specs, [waits(1, *bids, remaining=remaining)], config=SchedulingConfig())
    assert nodes_of(found, 1) == ["h"]


def test_a_gang_grows_when_it_gains_more_than_the_restart_costs() -> None:
    small, large = (
        Bid(shape(1), throughput=1.0, restart_cost_s=30.0),
        Bid(shape(4), throughput=3.0, restart_cost_s=30.0),
    )
    running = [runs(1, small, place_on("n", 0), bids=(large, small))]
    found = plan([node_spec("n", 4)], [], running=running)
    assert found.evictions[0].preemption.kind is PreemptionKind.RESIZE
    assert found.evictions[0].preemption.beneficiary is None
    assert sorted(devices_of(found, 1)) == ["n-0", "n-1", "n-2", "n-3"]
    # A gain of a hundredth is not worth losing 30 of 600 s.
    slightly = replace(large, throughput=1.01)
    assert plan([node_spec("n", 4)], [], running=[replace(running[0], bids=(slightly, small))]).evictions == ()


def test_a_gang_moves_to_a_model_that_is_much_faster() -> None:
    slow = Bid(shape(1, model="A100"), throughput=1.0, restart_cost_s=30.0)
    fast = Bid(shape(1, model="H100"), throughput=4.0, restart_cost_s=30.0)
    running = [runs(1, slow, place_on("a", 0), bids=(fast, slow))]
    found = plan([node_spec("h", 1, "H100"), node_spec("a", 1, "A100")], [], running=running)
    assert found.evictions[0].preemption.kind is PreemptionKind.MOVE
    assert nodes_of(found, 1) == ["h"]


def test_claims_that_were_not_true_before_are_believed_less() -> None:
    # Both of tenant b's bids claim; measured is half of it, so that 4 claimed are 2 believed, and 3 measured are more.
    claimed = Bid(shape(1, model="H100"), throughput=4.0, confidence=0.0)
    measured = Bid(shape(1, model="A100"), throughput=3.0, confidence=1.0)
    specs = [node_spec("h", 1, "H100"), node_spec("a", 1, "A100")]
    jobs = [waits(1, claimed, measured, tenant="b")]
    assert nodes_of(plan(specs, jobs), 1) == ["h"]
    assert nodes_of(plan(specs, jobs, trust={"b": 0.5}), 1) == ["a"]


def test_a_shape_that_never_fits_is_told_so() -> None:
    found = plan([node_spec("n", 2)], [waits(1, Bid(shape(3))), waits(2, Bid(shape(1, model="B200")))])
    assert (reason_of(found, 1), reason_of(found, 2)) == ("unplaceable", "unplaceable")


def test_a_reservation_is_kept_for_its_gang() -> None:
    kept = Reservation(waits(1, TWO).key, waits(1, TWO).tenant, (place_on("n", 0, 1),), NOW + 100, NOW)
    large, small = waits(1, TWO, remaining=100), waits(2, TWO, remaining=1)
    # Somebody else cannot have it, however short; the gang itself starts on it.
    found = plan([node_spec("n", 2)], [small], reservations=(kept,))
    assert winners(found) == []
    found = plan([node_spec("n", 2)], [large, small], reservations=(kept,))
    assert winners(found) == [1]
    assert found.awards[0].placements == kept.placements


def test_a_gang_on_its_reservation_displaces_what_is_worth_less() -> None:
    kept = Reservation(waits(1, TWO).key, waits(1, TWO).tenant, (place_on("n", 0, 1),), None, NOW)
    running = [runs(5, ONE, place_on("n", 0), remaining=1_000)]
    found = plan([node_spec("n", 2)], [waits(1, TWO, remaining=100)], running=running, reservations=(kept,))
    assert (winners(found), evicted(found)) == ([1], [5])
    found = plan([node_spec("n", 2)], [waits(1, TWO, remaining=5_000)], running=running, reservations=(kept,))
    assert (winners(found), evicted(found)) == ([], [])


def test_shares_and_jobs_without_devices_are_placed_too() -> None:
    half, cpus = Bid(shape(0.5)), Bid(shape(0, cpus=60))
    found = plan([node_spec("n", 1)], [waits(1, half), waits(2, half), waits(3, half), waits(4, cpus)])
    assert len(found.awards) == 3
    assert {p.gpu_milli for a in found.awards for p in a.placements} == {0, 500}


def test_a_share_makes_a_running_share_give_way() -> None:
    half = Bid(shape(0.5), restart_cost_s=30.0)
    running = [
        runs(1, half, place_on("n", 0, milli=500), remaining=1_000),
        runs(2, half, place_on("n", 0, milli=500), remaining=100),
    ]
    found = plan([node_spec("n", 1)], [waits(3, half, remaining=10)], running=running)
    assert (winners(found), evicted(found)) == ([3], [1])


def test_localities_hold() -> None:
    specs = [node_spec("n1", 4, rack="r1", island=2), node_spec("n2", 4, rack="r2", island=4)]
    island = plan(specs, [waits(1, Bid(shape(1, ranks=4), Locality.NVLINK))])
    assert nodes_of(island, 1) == ["n2"] * 4
    assert winners(plan(specs, [waits(1, Bid(shape(4, ranks=2), Locality.RACK))])) == []
    assert winners(plan(specs, [waits(1, Bid(shape(4, ranks=2), Locality.ANY))])) == [1]
    assert winners(plan(specs, [waits(1, Bid(shape(1, ranks=5), Locality.NODE))])) == []


def test_data_draws_a_gang_to_its_node() -> None:
    specs = [node_spec("n1", 4), node_spec("n2", 4)]
    near = Bid(shape(1), preferred=(Preference(NodeId("n2"), 0.0),))
    assert nodes_of(plan(specs, [waits(1, near)]), 1) == ["n2"]


def test_a_retry_avoids_the_node_where_it_failed() -> None:
    specs = [node_spec("n1", 1), node_spec("n2", 1)]
    again = waits(1, ONE, avoid=("n1",), queued_at=NOW)
    assert nodes_of(plan(specs, [again]), 1) == ["n2"]
    # Until its back-off is over it does not come back, even when nothing else is there.
    assert winners(plan(specs[:1], [again])) == []
    assert nodes_of(plan(specs[:1], [waits(1, ONE, avoid=("n1",), queued_at=NOW - 60)]), 1) == ["n1"]


def test_holdings_on_nodes_that_are_not_offered_do_no_harm() -> None:
    gone: tuple[Placement, ...] = (place_on("away", 0),)
    found = plan([node_spec("n", 1)], [waits(2, ONE)], running=[runs(1, ONE, *gone)])
    assert (winners(found), evicted(found)) == ([2], [])


def test_nothing_to_do_is_no_fault() -> None:
    found = plan([node_spec("n", 2)])
    assert (found.awards, found.evictions, found.value, found.gap) == ((), (), 0.0, 0.0)
    assert plan([], [waits(1, ONE)]).awards == ()
