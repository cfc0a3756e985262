"""Priorities within a tenant count whatever work is lost, and take nothing from other tenants."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from corral.model.market import PreemptionKind
from corral.model.offer import Bid, Holding
from corral.policy.market.solve import solve
from tests.unit.policy.building import NOW, node_spec, place_on, shape, tenant
from tests.unit.policy.market.scenes import PLAIN, evicted, nodes_of, plan, runs, waits, winners
from tests.unit.policy.market.worlds import market_of

ONE = Bid(shape(1), restart_cost_s=30.0)
TEN_HOURS = 36_000.0
NODE = [node_spec("n", 1)]


def unsaved(job: int, *devices: int, node: str = "n", lost: float = TEN_HOURS, **more: object) -> Holding:
    """Return a gang on devices of a node whose work of ``lost`` seconds is not saved."""
    bid = Bid(shape(len(devices)), restart_cost_s=30.0)
    return runs(job, bid, place_on(node, *devices), ran=100_000, unsaved=lost, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("lost", [0.0, 1_000.0, TEN_HOURS, 10**9])
def test_a_higher_priority_gets_its_room_whatever_a_lower_one_loses(lost: float) -> None:
    found = plan(NODE, [waits(2, ONE, remaining=10_000, priority=1)], running=[unsaved(1, 0, lost=lost)])
    assert (winners(found), evicted(found)) == ([2], [1])
    preemption = found.evictions[0].preemption
    assert (preemption.kind, preemption.beneficiary) == (PreemptionKind.PRIORITY, "2")
    assert 0.0 <= found.gap < 1e-9
    # The same priority has to be worth what is lost.
    if lost >= TEN_HOURS:
        assert evicted(plan(NODE, [waits(2, ONE, remaining=100)], running=[unsaved(1, 0)])) == []


def test_no_other_tenant_gives_way_to_a_priority_nor_gains_by_it() -> None:
    both = [unsaved(1, 0, tenant="a"), unsaved(2, 1, tenant="b", lost=20_000)]
    found = plan([node_spec("n", 2)], [waits(3, ONE, tenant="a", priority=9)], running=both)
    assert evicted(found) == [1]
    # Without anybody below it in its own tenant it waits.
    found = plan([node_spec("n", 2)], [waits(3, ONE, tenant="c", priority=9)], running=both)
    assert evicted(found) == []
    # What b's short job could not have before, it cannot have because a's waits.
    jobs = [waits(3, ONE, tenant="a", priority=9), waits(4, ONE, tenant="b", remaining=1)]
    found = plan(NODE, jobs, running=[unsaved(1, 0, tenant="a")])
    assert winners(found) == [3]


def test_the_lowest_priority_gives_way_and_of_these_who_loses_least() -> None:
    running = [unsaved(1, 0, priority=2, lost=3_000), unsaved(2, 1, lost=90_000), unsaved(3, 2, lost=20_000)]
    found = plan([node_spec("n", 3)], [waits(4, ONE, priority=3)], running=running)
    assert evicted(found) == [3]


def test_devices_are_taken_together_where_least_is_lost() -> None:
    specs = [node_spec("n1", 2), node_spec("n2", 2)]
    running = [
        unsaved(1, 0, node="n1"),
        unsaved(2, 1, node="n1", lost=70_000),
        unsaved(3, 0, node="n2"),
        unsaved(4, 1, node="n2", lost=50_000),
    ]
    found = plan(specs, [waits(5, Bid(shape(2)), priority=1)], running=running)
    assert evicted(found) == [3, 4]
    assert nodes_of(found, 5) == ["n2"]


def test_a_limit_is_room_too() -> None:
    # Three devices are free, but the tenant may hold one.
    found = plan(
        [node_spec("n", 4)], [waits(2, ONE, priority=1)], running=[unsaved(1, 0)], tenants=[tenant("a", limit=1)]
    )
    assert (winners(found), evicted(found)) == ([2], [1])


def test_shares_and_cpus_are_room_too() -> None:
    half, cpus = Bid(shape(0.5)), Bid(shape(0, cpus=64))
    held = runs(1, half, place_on("n", 0, milli=500), ran=100_000, unsaved=TEN_HOURS)
    other = runs(2, half, place_on("n", 0, milli=500), ran=100_000, unsaved=TEN_HOURS, priority=1)
    found = plan(NODE, [waits(3, half, priority=1)], running=[held, other])
    assert (winners(found), evicted(found)) == ([3], [1])
    found = plan(NODE, [waits(3, cpus, priority=1)], running=[held])
    assert (winners(found), evicted(found)) == ([3], [1])


def test_a_guarantee_that_a_lower_priority_fills_is_the_tenants_own() -> None:
    tenants = [tenant("a", guaranteed=1), tenant("b")]
    found = plan(NODE, [waits(2, ONE, priority=1)], running=[unsaved(1, 0)], tenants=tenants)
    assert (winners(found), evicted(found)) == ([2], [1])


def test_who_would_waste_most_of_what_it_frees_waits() -> None:
    # One device of eight is worth 4/8 of what a large gang of lower priority makes of all of them.
    found = plan([node_spec("n", 8)], [waits(2, ONE, priority=1)], running=[unsaved(1, *range(8))])
    assert evicted(found) == []
    two = waits(2, Bid(shape(3)), priority=1)
    assert evicted(plan([node_spec("n", 8)], [two], running=[unsaved(1, *range(8))])) == [1]


def test_in_any_pool_who_asks_for_what_a_lower_priority_holds_gets_room() -> None:
    seen = 0
    for seed in range(120):
        one = market_of(seed, reserve=False)
        ripe = [h for h in one.snapshot.holdings if not h.stopping and h.preemptible and h.tenure_until <= NOW]
        if not ripe or not one.pending:
            continue
        # Of one rank: several may lie where nobody could be put any more, as in a rack of which a node is gone.
        lower = next((h for h in ripe if h.won is not None and h.won.shape.ranks == 1), None)
        if lower is None or lower.won is None:
            continue
        seen += 1
        running = tuple(replace(h, started_at=NOW - 10**6, saved_at=None) for h in one.snapshot.holdings)
        higher = replace(waits(500, lower.won, tenant=lower.tenant, priority=9), queue=lower.queue)
        found = solve(replace(one, snapshot=replace(one.snapshot, holdings=running), pending=(higher,)), PLAIN)
        paused = one.queues[lower.queue].queue.paused
        assert (500 in winners(found)) is not paused, seed
    assert seen > 50
