from __future__ import annotations

import pytest
from msgspec.structs import replace

from corral.model.offer import Bid, Candidate, Standing
from corral.model.resources import Amount
from corral.policy.market.contenders import Contender, Gatherer, rates_of
from corral.policy.market.entitlement import PRIORITY_STEP, assign_worth
from tests.unit.policy.building import NOW, node_spec, place_on, shape, tenant
from tests.unit.policy.market.scenes import PLAIN, market, runs, waits

ONE = Bid(shape(1), restart_cost_s=30.0)
POOL = [node_spec("n", 8)]


def worths(jobs: list[Candidate], **more: object) -> dict[str, Contender]:
    one = market(POOL, jobs, **more)  # type: ignore[arg-type]
    field = Gatherer(PLAIN).gather(one)
    assign_worth(field.contenders, field.fixed, one.standings, one.snapshot.capacity, PLAIN)
    return {c.key.job: c for c in field.contenders}


def test_alone_the_worth_is_the_own_weight() -> None:
    found = worths([waits(1, ONE, remaining=100), waits(2, Bid(shape(2)), remaining=100)])
    assert found["1"].worth == pytest.approx(1 / 8 / 100)
    assert found["2"].worth == pytest.approx(2 / 8 / 100)


def test_at_the_end_of_its_due_every_tenant_pays_the_same_for_a_device() -> None:
    # Each is due 4 of 8; their fourth job is worth 1 per pool, whatever scale its own times have.
    jobs = [waits(i, ONE, remaining=100 * i, tenant="a") for i in range(1, 9)]
    jobs += [waits(100 + i, ONE, remaining=10_000 * i, tenant="b") for i in range(1, 9)]
    found = worths(jobs)
    assert found["4"].worth / found["4"].size == pytest.approx(1)
    assert found["104"].worth / found["104"].size == pytest.approx(1)
    # The first is worth four times as much; beyond the due share worth falls with the share: middle 4.5/8 of due 4/8.
    assert found["1"].worth / found["1"].size == pytest.approx(4)
    assert found["5"].worth / found["5"].size == pytest.approx(4 / 5 * 4 / 4.5)


def test_declaring_a_tenth_of_all_work_changes_nothing_between_tenants() -> None:
    honest = [waits(i, ONE, remaining=100 * i, tenant="a") for i in range(1, 9)]
    modest = [replace(job, remaining_s=10.0 * i) for i, job in enumerate(honest, 1)]
    other = [waits(100 + i, ONE, remaining=100 * i, tenant="b") for i in range(1, 9)]
    before, after = worths([*honest, *other]), worths([*modest, *other])
    for i in range(1, 9):
        assert after[str(i)].worth == pytest.approx(before[str(i)].worth)


def test_splitting_a_gang_changes_nothing_for_its_tenant() -> None:
    other = [waits(100 + i, ONE, remaining=100, tenant="b") for i in range(1, 9)]
    whole = worths([waits(1, Bid(shape(1, ranks=4)), remaining=100, tenant="a"), *other])
    parts = worths([*(waits(i, ONE, remaining=100, tenant="a") for i in range(1, 5)), *other])
    assert sum(parts[str(i)].worth for i in range(1, 5)) == pytest.approx(whole["1"].worth)


def test_who_received_more_is_due_less() -> None:
    jobs = [waits(i, ONE, tenant="a") for i in range(8)] + [waits(100 + i, ONE, tenant="b") for i in range(8)]
    found = worths(jobs, past={"a": 1.0, "b": 0.0})
    # a: 0.5 * 0.5 / 1.5, b: 0.5 * 0.5 / 0.5; scaled to a sum of 1 that is 1/4 and 3/4 of the pool: 2 and 6 devices.
    full = [job for job, c in found.items() if c.worth / c.size > 1 - 1e-9]
    assert sum(int(job) < 100 for job in full) == 2
    assert sum(int(job) >= 100 for job in full) == 6


def test_higher_priority_is_worth_a_step_more_than_the_best_below() -> None:
    found = worths([waits(1, ONE, remaining=10), waits(2, ONE, remaining=10_000, priority=1)])
    assert found["2"].worth == pytest.approx(PRIORITY_STEP * found["1"].worth)


def test_a_guarantee_covers_what_runs_first() -> None:
    running = [runs(1, ONE, place_on("n", 0), tenant="a", remaining=9_000)]
    jobs = [waits(2, ONE, tenant="a", remaining=10), waits(3, ONE, tenant="a", remaining=20)]
    found = worths(jobs, running=running, tenants=[tenant("a", guaranteed=2), tenant("b")])
    assert [found[job].urgent for job in "123"] == [True, True, False]


def test_a_gang_larger_than_the_rest_of_a_guarantee_takes_nothing_back() -> None:
    found = worths([waits(1, Bid(shape(1, ranks=3)), tenant="a")], tenants=[tenant("a", guaranteed=2), tenant("b")])
    assert not found["1"].urgent


def test_claims_are_scaled_by_trust_as_far_as_nobody_measured() -> None:
    bids = (Bid(shape(1), throughput=4.0, confidence=0.0), Bid(shape(2), throughput=4.0, confidence=0.5))
    assert rates_of(bids, 1.0) == [4.0, 4.0]
    assert rates_of(bids, 0.5) == [2.0, 3.0]


def test_an_audit_that_is_forgotten_scales_nothing_any_more() -> None:
    gatherer, job = Gatherer(PLAIN), waits(1, Bid(shape(1), throughput=4.0))
    audited, plain = market(POOL, [job], trust={"a": 0.5}), market(POOL, [job])
    assert [gatherer.gather(one).contenders[0].rates for one in (audited, plain)] == [[2.0], [4.0]]


def test_who_claims_twice_the_speed_declares_half_of_the_time() -> None:
    job = waits(1, Bid(shape(1), throughput=2.0), remaining=100)
    honest, audited = worths([job]), worths([job], trust={"a": 0.5})
    assert audited["1"].raw == pytest.approx(honest["1"].raw / 2)


def test_remaining_work_of_a_running_gang_falls_with_time() -> None:
    held = replace(runs(1, ONE, place_on("n", 0), remaining=100), known_at=NOW - 40)
    assert worths([], running=[held])["1"].worth == pytest.approx(1 / 8 / 60)


def test_what_a_gang_won_before_it_was_measured_is_not_held_against_its_bids() -> None:
    # It won with a bid of one unit per second; measured, it makes a millionth on the same devices, as it would anew.
    held = runs(1, ONE, place_on("n", 0), bids=(Bid(shape(1), throughput=1e-6),), remaining=10**6)
    config = replace(PLAIN, critical_weight=1.0)
    (found,) = Gatherer(config).gather(market(POOL, [], running=[held])).contenders
    assert (found.kept_rate, found.best) == (1e-6, 1e-6)
    assert found.hurry == 0.0
    assert found.remaining_s == 10**6


def test_unknown_tenants_count_as_one() -> None:
    assert Standing(tenant("x")).held == Amount()
    assert worths([waits(1, ONE, tenant="x"), waits(2, ONE, tenant="y")])["1"].worth > 0
