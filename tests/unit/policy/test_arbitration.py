"""Rounds by hand: who starts, where, and what is kept for whom."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from corral.model.ids import DeviceId, GangKey, JobId, NodeId
from corral.model.offer import Allocation, Bid, Candidate, VerdictKind
from corral.policy.arbitration import arbitrate, verify, verify_all
from corral.policy.pending import PendingIndex
from tests.unit.policy.building import (
    CONFIG,
    NOW,
    candidate,
    devices_of,
    holding,
    node_spec,
    nodes_of,
    place_on,
    queue,
    run_round,
    shape,
    snapshot,
    started,
    tenant,
)

FOUR = [node_spec(f"node-{i}") for i in range(4)]


def test_an_empty_pool_takes_what_waits_in_order_of_submission() -> None:
    verdict = run_round([node_spec("node-0", 2)], [candidate(3), candidate(1), candidate(2)])
    assert started(verdict) == [1, 2]


def test_job_and_queue_priorities_add_up_before_submission_counts() -> None:
    pending = [candidate(1), candidate(2, priority=5), candidate(3, queue="urgent", priority=-1)]
    verdict = run_round([node_spec("node-0", 3)], pending, queues=[queue(), queue("urgent", priority=10)])
    assert started(verdict) == [3, 2, 1]


def test_tenants_are_filled_by_weight_whatever_the_order_of_submission() -> None:
    pending = [candidate(i, tenant=t) for t, base in (("a", 0), ("b", 100), ("c", 200)) for i in range(base, base + 40)]
    tenants = [tenant("a", 1), tenant("b", 2), tenant("c", 3)]
    verdict = run_round(FOUR, pending, tenants=tenants)
    owner = [i // 100 for i in started(verdict)]
    # Sainte-Lague of 32 seats by 1:2:3 (quotas 5.33, 10.67, 16).
    assert [owner.count(t) for t in range(3)] == [5, 11, 16]


def test_who_used_more_than_due_in_the_past_stands_behind() -> None:
    pending = [candidate(i, tenant="a") for i in range(8)] + [candidate(100 + i, tenant="b") for i in range(8)]
    verdict = run_round([node_spec("node-0")], pending, past={"a": 0.8, "b": 0.1})
    # held + 0.5 * past is level at 8/16 +- (0.8 - 0.1) / 4: a gets 2.6 of 8 devices, b 5.4.
    assert sorted(i // 100 for i in started(verdict)) == [0, 0, 0, 1, 1, 1, 1, 1]


def test_a_guarantee_comes_before_weights() -> None:
    pending = [candidate(i, tenant="a") for i in range(8)] + [candidate(100 + i, tenant="b") for i in range(8)]
    tenants = [tenant("a", 100), tenant("b", 1, guaranteed=3)]
    verdict = run_round([node_spec("node-0", 4)], pending, tenants=tenants)
    assert started(verdict) == [100, 101, 102, 0]


def test_the_smallest_weight_still_gets_its_first_device() -> None:
    pending = [candidate(i, tenant="a") for i in range(32)] + [candidate(100, tenant="b")]
    verdict = run_round(FOUR, pending, tenants=[tenant("a", 1_000), tenant("b", 1)])
    assert 100 in started(verdict)


def test_a_tenants_limit_holds_even_when_the_pool_is_idle() -> None:
    verdict = run_round(FOUR, [candidate(i) for i in range(8)], tenants=[tenant("a", limit=3)])
    assert started(verdict) == [0, 1, 2]
    running = [holding(90, place_on("node-0", 0, 1))]
    verdict = run_round(FOUR, [candidate(1, shape(2)), candidate(2)], holdings=running, tenants=[tenant("a", limit=3)])
    assert started(verdict) == [2]
    assert verdict.reservations == ()


def test_a_queues_limit_is_shared_by_its_tenants_and_a_paused_queue_gives_nothing() -> None:
    pending = [candidate(i, tenant="ab"[i % 2], queue="small") for i in range(6)] + [candidate(9, queue="off")]
    verdict = run_round(FOUR, pending, queues=[queue("small", limit=3), queue("off", paused=True)])
    assert sorted(started(verdict)) == [0, 1, 2]


def test_a_gang_starts_whole_or_not_at_all() -> None:
    busy = [holding(90, place_on("node-3", 0))]
    verdict = run_round(FOUR, [candidate(1, shape(8, ranks=4))], holdings=busy)
    assert started(verdict) == []
    verdict = run_round(FOUR, [candidate(1, shape(8, ranks=4))])
    assert nodes_of(verdict, 1) == ["node-0", "node-1", "node-2", "node-3"]


def test_the_first_that_does_not_fit_is_reserved_for_the_time_of_the_last_end_that_it_needs() -> None:
    running = [
        holding(90, place_on("node-0", *range(8)), ends_at=NOW + 60),
        holding(91, place_on("node-1", *range(8)), ends_at=NOW + 90),
        holding(92, place_on("node-2", *range(8)), ends_at=NOW + 30),
    ]
    verdict = run_round(FOUR, [candidate(1, shape(8, ranks=3))], holdings=running)
    (kept,) = verdict.reservations
    assert kept.start_at == NOW + 60
    assert sorted(p.node for p in kept.placements) == ["node-0", "node-2", "node-3"]


def test_backfill_takes_reserved_devices_only_when_it_ends_in_time() -> None:
    nodes = FOUR[:2]
    running = [holding(90, place_on("node-0", *range(8)), ends_at=NOW + 60)]
    gang = candidate(1, shape(8, ranks=2), tenant="b")
    pending = [gang, candidate(2, lasts=60.0), candidate(3, lasts=61.0), candidate(4), candidate(5, lasts=1.0)]
    verdict = run_round(nodes, pending, holdings=running)
    assert verdict.reservations[0].start_at == NOW + 60
    assert sorted(started(verdict)) == [2, 5]


def test_without_declared_ends_the_devices_are_kept_as_they_come_free() -> None:
    nodes = FOUR[:2]
    gang = candidate(1, shape(8, ranks=2))
    running = [holding(90, place_on("node-0", *range(8))), holding(91, place_on("node-1", 0, 1, 2, 3))]
    verdict = run_round(nodes, [gang, candidate(2, lasts=1.0), candidate(3)], holdings=running)
    assert started(verdict) == []
    assert verdict.reservations[0].start_at is None
    verdict = run_round(nodes, [gang, candidate(3)], holdings=running[:1], reservations=verdict.reservations)
    assert started(verdict) == []
    verdict = run_round(nodes, [gang, candidate(3)], reservations=verdict.reservations)
    assert started(verdict) == [1]


def test_what_a_reservation_does_not_need_is_free_to_all() -> None:
    running = [holding(90, place_on("node-0", 0))]
    gang = candidate(1, shape(8, ranks=3, cpus=32))
    pending = [gang, *(candidate(i, shape(1, cpus=32)) for i in range(2, 6))]
    verdict = run_round(FOUR[:3], pending, holdings=running)
    assert started(verdict) == []
    verdict = run_round(FOUR, pending, holdings=running)
    assert nodes_of(verdict, 1) == ["node-1", "node-2", "node-3"]
    # node-0 has 7 devices but only 63 CPUs left.
    assert len(started(verdict)) == 2


def test_a_reservation_is_kept_over_rounds_and_gets_earlier_only() -> None:
    running = [
        holding(90, place_on("node-0", *range(8)), ends_at=NOW + 60),
        holding(91, place_on("node-1", *range(8)), ends_at=NOW + 90),
    ]
    gang = candidate(1, shape(8))
    first = run_round(FOUR[:2], [gang], holdings=running)
    again = run_round(FOUR[:2], [gang, candidate(2, shape(4))], holdings=running, reservations=first.reservations)
    assert again.reservations == first.reservations
    sooner = [running[0], holding(91, place_on("node-1", *range(8)), ends_at=NOW + 20)]
    third = run_round(FOUR[:2], [gang], holdings=sooner, reservations=first.reservations, at=NOW + 1)
    assert third.reservations[0].start_at == NOW + 20
    assert third.reservations[0].made_at == NOW


def test_a_reservation_moves_when_its_node_disappears() -> None:
    running = [holding(90, place_on("node-0", *range(8)), ends_at=NOW + 60)]
    late = holding(91, place_on("node-1", *range(8)), ends_at=NOW + 90)
    gang = candidate(1, shape(8))
    first = run_round(FOUR[:2], [gang], holdings=[*running, late])
    assert first.reservations[0].placements[0].node == "node-0"
    second = run_round(FOUR[1:2], [gang], holdings=[late], reservations=first.reservations)
    assert second.reservations[0].placements[0].node == "node-1"
    assert second.reservations[0].start_at == NOW + 90


def test_a_reservation_without_known_start_leaves_a_holder_that_goes_on_for_ever() -> None:
    # A service of a week on node-0 and young jobs on node-1: the gang waits for the young ones.
    old = holding(90, place_on("node-0", *range(8)), started_at=NOW - 604_800)
    young = holding(91, place_on("node-1", *range(8)), started_at=NOW - 5)
    verdict = run_round(FOUR[:2], [candidate(1, shape(8))], holdings=[old, young])
    assert [p.node for p in verdict.reservations[0].placements] == ["node-1"]


def test_a_reservation_ends_with_its_candidate_and_at_the_limit_of_its_tenant() -> None:
    running = [holding(90, place_on("node-0", *range(8)), ends_at=NOW + 60, tenant="b")]
    first = run_round(FOUR[:1], [candidate(1, shape(8), tenant="b")], holdings=running)
    assert run_round(FOUR[:1], [], holdings=running, reservations=first.reservations).reservations == ()
    capped = run_round(
        FOUR[:1],
        [candidate(1, shape(8), tenant="b")],
        holdings=running,
        reservations=first.reservations,
        tenants=[tenant("b", limit=8)],
    )
    assert capped.reservations == ()


def test_a_candidate_of_higher_priority_of_the_same_tenant_takes_the_reservation_over() -> None:
    running = [holding(90, place_on("node-0", *range(8)), ends_at=NOW + 60)]
    first = run_round(FOUR[:1], [candidate(1, shape(8))], holdings=running)
    pending = [candidate(1, shape(8)), candidate(2, shape(8), priority=1)]
    second = run_round(FOUR[:1], pending, holdings=running, reservations=first.reservations)
    assert [r.key.job for r in second.reservations] == ["2"]


def test_the_first_blocked_in_the_order_of_claims_gets_the_reservation_however_small() -> None:
    running = [holding(90 + i, place_on("node-0", i), ends_at=NOW + 9 - i) for i in range(8)]
    pending = [candidate(1, shape(2)), candidate(2, tenant="b")]
    (kept,) = run_round(FOUR[:1], pending, holdings=running).reservations
    assert (kept.key.job, kept.start_at, kept.placements[0].devices[0].uuid) == ("2", NOW + 2, "node-0-7")


def test_impossible_gangs_get_no_reservation_and_hold_nobody_up() -> None:
    verdict = run_round(FOUR[:1], [candidate(1, shape(8, ranks=2)), candidate(2)])
    assert started(verdict) == [2]
    assert verdict.reservations == ()


def test_a_retry_goes_to_another_node_and_comes_back_when_none_could_ever_take_it() -> None:
    two = FOUR[:2]
    verdict = run_round(two, [candidate(1, avoid=["node-0"])])
    assert nodes_of(verdict, 1) == ["node-1"]
    verdict = run_round(FOUR[:1], [candidate(1, avoid=["node-0"], queued_at=NOW)])
    assert nodes_of(verdict, 1) == ["node-0"]


def test_a_retry_backs_off_before_it_returns_to_the_node_where_it_failed() -> None:
    two = FOUR[:2]
    busy = [holding(90, place_on("node-1", *range(8)))]
    retry = candidate(1, avoid=["node-0"], queued_at=NOW)
    assert started(run_round(two, [retry, candidate(2)], holdings=busy)) == [2]
    assert started(run_round(two, [retry], holdings=busy, at=NOW + 4.9)) == []
    assert nodes_of(run_round(two, [retry], holdings=busy, at=NOW + 5.0), 1) == ["node-0"]
    # One that waits longer does not stand behind one of the same kind that backs off still.
    older = candidate(2, avoid=["node-0"], queued_at=NOW - 10)
    assert started(run_round(two, [retry, older], holdings=busy)) == [2]


def test_the_first_bid_that_fits_is_taken() -> None:
    bids = (Bid(shape(8)), Bid(shape(4)), Bid(shape(2)))
    busy = [holding(90, place_on("node-0", 0, 1))]
    verdict = run_round(FOUR[:1], [candidate(1, bids=bids)], holdings=busy)
    assert len(devices_of(verdict, 1)) == 4


def test_the_bid_that_won_is_named_and_its_ranks_are_placed() -> None:
    bids = (Bid(shape(4, ranks=3)), Bid(shape(4, ranks=2), throughput=0.7))
    verdict = run_round(FOUR[:1], [candidate(1, bids=bids)])
    (won,) = verdict.allocations
    assert (won.bid, [p.rank for p in won.placements]) == (bids[1], [0, 1])


def test_within_a_tenant_urgency_goes_before_order_and_priority_before_urgency() -> None:
    def named(number: int, urgency: float, priority: int = 0) -> Candidate:
        return replace(candidate(number, shape(1 + number % 2), priority=priority), urgency=urgency)

    pending = [named(1, 9.0), named(2, -1.0), named(3, 0.5), named(4, 0.5), named(5, 99.0, 1)]
    assert started(run_round(FOUR, pending)) == [5, 2, 3, 4, 1]


def test_a_bid_beyond_the_limit_of_one_tenant_does_not_speak_for_another() -> None:
    bids = (Bid(shape(8)), Bid(shape(4, model="A100")))
    pending = [candidate(1, bids=bids, tenant="a"), candidate(2, bids=bids, tenant="b")]
    verdict = run_round(FOUR[:1], pending, tenants=[tenant("a", limit=4), tenant("b")])
    assert started(verdict) == [2]


def test_unknown_tenants_and_queues_have_usual_standing() -> None:
    index = PendingIndex([candidate(1, tenant="new", queue="new")])
    assert started(arbitrate(snapshot(FOUR), index, {}, {}, (), CONFIG)) == [1]


def test_a_round_changes_nothing_that_it_was_given() -> None:
    index = PendingIndex(candidate(i) for i in range(3))
    shot = snapshot(FOUR[:1])
    first = arbitrate(shot, index, {}, {}, (), CONFIG)
    assert arbitrate(shot, index, {}, {}, (), CONFIG) == first
    assert len(index) == 3
    assert first.version == shot.version


@pytest.mark.parametrize(
    "placement, reason",
    [
        (place_on("node-9", 0), "node-9 is not offered any more"),
        (place_on("node-0", 11), "node-0 has no device node-0-11 any more"),
        (place_on("node-0", 0), "node-0-0 on node-0 was taken"),
        (place_on("node-0", 1, cpus=64), "the CPUs of node-0 were taken"),
        (place_on("node-0", 1, memory=64_000), "the memory of node-0 were taken"),
    ],
)
def test_a_stale_allocation_is_answered_with_what_to_refresh_to(placement: object, reason: str) -> None:
    newest = snapshot(FOUR, [holding(90, place_on("node-0", 0))])
    verdict = verify(Allocation(GangKey(JobId("1"), 0), (placement,)), newest)  # type: ignore[arg-type]
    assert (verdict.kind, verdict.refresh_to, verdict.reason) == (VerdictKind.STALE, 1, reason)


def test_ranks_of_one_allocation_and_several_allocations_are_checked_together() -> None:
    newest = snapshot(FOUR)
    both = (place_on("node-0", 0), place_on("node-0", 0, rank=1))
    assert verify(Allocation(GangKey(JobId("1"), 0), both), newest).kind is VerdictKind.STALE
    allocations = [Allocation(GangKey(JobId(str(i)), 0), (place_on("node-0", 0),)) for i in range(2)]
    verdicts = verify_all(allocations, newest)
    assert [v.kind for v in verdicts] == [VerdictKind.COMMITTED, VerdictKind.STALE]
    assert verdicts[0].key == GangKey(JobId("0"), 0)
    assert (NodeId("node-0"), DeviceId("node-0-0")) == (both[0].node, both[0].devices[0].uuid)
