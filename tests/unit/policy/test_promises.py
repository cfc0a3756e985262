"""What the fill may not give away and may count on: awards of global rounds, and tenures that end."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from corral.model.ids import GangKey, JobId, TenantId
from corral.model.market import Award
from corral.model.offer import Arbitration, Bid, Candidate, Holding
from corral.model.resources import NodeSpec, Placement
from corral.policy.arbitration import arbitrate
from corral.policy.pending import PendingIndex
from tests.unit.policy.building import (
    CONFIG,
    NOW,
    candidate,
    devices_of,
    holding,
    node_spec,
    place_on,
    queue,
    run_round,
    shape,
    snapshot,
    standings,
    started,
    tenant,
)

FOUR = [node_spec(f"node-{i}") for i in range(4)]


def awarded(number: int, *placements: Placement, tenant: str = "a") -> Award:
    return Award(GangKey(JobId(str(number)), 0), TenantId(tenant), Bid(shape(len(placements[0].devices))), placements)


def fill(
    specs: Sequence[NodeSpec], pending: Sequence[Candidate], awards: Sequence[Award], *holdings: Holding
) -> Arbitration:
    stand = standings(tenant("a"), tenant("b", limit=4), holdings=holdings)
    return arbitrate(snapshot(specs, holdings), PendingIndex(pending), stand, dict([queue()]), (), CONFIG, awards)


def test_nobody_gets_what_was_awarded_however_short_the_job_and_its_gang_starts_by_its_award_only() -> None:
    # Devices 0 to 5 are awarded to job 1: 0 to 3 are still held by who gives way, 4 and 5 are free already.
    victim = replace(holding(90, place_on("node-0", 0, 1, 2, 3)), stopping=True)
    award = awarded(1, place_on("node-0", 0, 1, 2, 3, 4, 5))
    pending = [candidate(1, shape(6)), *(candidate(n, shape(1), lasts=1.0) for n in (2, 3, 4))]
    verdict = fill(FOUR[:1], pending, [award], victim)
    assert started(verdict) == [2, 3]
    assert {devices_of(verdict, n)[0] for n in (2, 3)} == {"node-0-6", "node-0-7"}
    # Without the award, they would go where it is.
    assert started(fill(FOUR[:1], pending[1:], [], victim)) == [2, 3, 4]


def test_an_award_holds_cpus_and_memory_too() -> None:
    award = awarded(1, place_on("node-0", 0, cpus=60))
    assert started(fill(FOUR[:1], [candidate(2, shape(1, cpus=5))], [award])) == []
    assert started(fill(FOUR[:1], [candidate(3, shape(1, cpus=4))], [award])) == [3]


def test_what_is_awarded_counts_for_the_limit_of_who_waits_for_it() -> None:
    award = awarded(1, place_on("node-0", 0, 1, 2), tenant="b")
    waits = candidate(1, shape(3), tenant="b")
    pending = [waits, candidate(2, shape(2), tenant="b"), candidate(3, shape(1), tenant="b")]
    assert started(fill(FOUR[:1], pending, [award])) == [3]
    # A gang that moves holds what it has until then, and nothing twice.
    moves = holding(1, place_on("node-0", 5, 6, 7), tenant="b")
    assert started(fill(FOUR[:1], pending[1:], [award], moves)) == [3]


def test_a_reservation_is_planned_behind_the_awards() -> None:
    award = awarded(1, place_on("node-0", 0, 1, 2, 3))
    holder = holding(90, place_on("node-0", 4, 5, 6, 7), ends_at=NOW + 50)
    verdict = fill(FOUR[:1], [candidate(1, shape(4)), candidate(2, shape(4))], [award], holder)
    (kept,) = verdict.reservations
    assert (kept.key.job, kept.start_at) == ("2", NOW + 50)
    assert {s.uuid for p in kept.placements for s in p.devices} == {f"node-0-{i}" for i in range(4, 8)}


def lasting(job: int, *placements: Placement, tenure_s: float, priority: int = 0, of: str = "a") -> Holding:
    """Return a holder without a declared end, in its tenure for so long still."""
    held = holding(job, *placements, tenant=of, started_at=NOW - 5)
    return replace(held, tenure_until=NOW + tenure_s, priority=priority)


ROUND_S = CONFIG.round_s


@pytest.mark.parametrize(
    "waits, holder, start_at",
    [
        (candidate(1, shape(8), priority=1), lasting(90, place_on("node-0", 0), tenure_s=100), NOW + 100 + ROUND_S),
        (candidate(1, shape(8), priority=1), lasting(90, place_on("node-0", 0), tenure_s=-100), NOW + ROUND_S),
        (candidate(1, shape(8)), lasting(90, place_on("node-0", 0), tenure_s=100), None),
        (candidate(1, shape(8), priority=1), lasting(90, place_on("node-0", 0), tenure_s=9, priority=1), None),
        (candidate(1, shape(8), priority=1), lasting(90, place_on("node-0", 0), tenure_s=9, of="b"), None),
        (
            candidate(1, shape(8), priority=1),
            replace(lasting(90, place_on("node-0", 0), tenure_s=9), preemptible=False),
            None,
        ),
        (
            candidate(1, shape(8), priority=1),
            replace(lasting(90, place_on("node-0", 0), tenure_s=9), ends_at=NOW + 20),
            NOW + 20,
        ),
    ],
    ids=["lower", "ripe", "equal", "as high", "another tenant", "not preemptible", "ends before"],
)
def test_a_start_may_count_on_lower_priorities_after_their_tenure(
    waits: Candidate, holder: Holding, start_at: float | None
) -> None:
    (kept,) = fill(FOUR[:1], [waits], [], holder).reservations
    assert kept.start_at == start_at


@pytest.mark.parametrize("floor, lends, start_at", [(8, 0, NOW + 9 + ROUND_S), (8, 1, None), (0, 0, None)])
def test_a_start_may_count_on_what_is_lent_of_a_guarantee(floor: int, lends: int, start_at: float | None) -> None:
    holder = lasting(90, place_on("node-0", 0), tenure_s=9, of="b")
    tenants = [tenant("a", guaranteed=floor), tenant("b", guaranteed=lends)]
    (kept,) = run_round(FOUR[:1], [candidate(1, shape(8))], holdings=[holder], tenants=tenants).reservations
    assert kept.start_at == start_at


def test_short_jobs_run_before_a_start_that_counts_on_a_tenure() -> None:
    holder = lasting(90, place_on("node-0", 0, 1, 2, 3), tenure_s=100)
    pending = [candidate(1, shape(8), priority=1), candidate(2, lasts=100 + ROUND_S), candidate(3, lasts=101 + ROUND_S)]
    assert started(fill(FOUR[:1], pending, [], holder)) == [2]


def test_an_award_on_a_node_that_is_away_is_no_fault() -> None:
    verdict = fill(FOUR[:1], [candidate(2)], [awarded(1, place_on("node-9", 0))])
    assert started(verdict) == [2]
