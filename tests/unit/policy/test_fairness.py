"""Shares by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.model.ids import TenantId
from corral.model.offer import Standing
from corral.model.resources import Amount
from corral.model.tenant import Quota, Tenant
from corral.policy.fairness import claim, credit, decay, due_shares, within
from tests.unit.policy.building import CONFIG, standings, tenant

A, B, C = TenantId("a"), TenantId("b"), TenantId("c")
POOL = Amount(8_000, 64_000, 1_000)


def test_the_average_decays_by_half_in_a_half_life_towards_what_is_held() -> None:
    assert decay(0.8, 0.0, 60, 60) == pytest.approx(0.4)
    assert decay(0.0, 1.0, 120, 60) == pytest.approx(0.75)
    assert decay(0.5, 0.5, 1e9, 60) == pytest.approx(0.5)
    assert decay(0.3, 1.0, 0, 60) == 0.3
    assert decay(0.3, 1.0, -5, 60) == 0.3
    assert decay(0.3, 1.0, 1, 0) == 1.0


def test_two_steps_of_decay_are_one() -> None:
    assert decay(decay(0.2, 0.9, 13, 60), 0.9, 29, 60) == pytest.approx(decay(0.2, 0.9, 42, 60))


def test_shares_are_due_by_weight_among_those_who_want() -> None:
    stand = standings(tenant("a", 1), tenant("b", 2), tenant("c", 3))
    assert due_shares(stand, {A, B, C}) == pytest.approx({A: 1 / 6, B: 2 / 6, C: 3 / 6})
    assert due_shares(stand, {A, B}) == pytest.approx({A: 1 / 3, B: 2 / 3, C: 0})
    assert due_shares(stand, set()) == {A: 0, B: 0, C: 0}
    assert due_shares({}, {A}) == {}


def test_what_one_cannot_use_goes_to_the_others_by_weight() -> None:
    stand = standings(tenant("a", 1), tenant("b", 2), tenant("c", 3, limit=2))
    # c may hold 2 of 8; the other 6/8 go 1:2.
    assert due_shares(stand, {A, B, C}, capacity=POOL) == pytest.approx({A: 0.25, B: 0.5, C: 0.25})
    want = due_shares(stand, {A, B, C}, capacity=POOL, wants={A: 0.1})
    assert want == pytest.approx({A: 0.1, B: 0.65, C: 0.25})
    assert due_shares(stand, {A}, wants={A: 0.3}) == pytest.approx({A: 0.3, B: 0, C: 0})


def test_guarantees_are_floors_and_are_scaled_when_they_exceed_the_pool() -> None:
    stand = standings(tenant("a", 1, guaranteed=6), tenant("b", 1), tenant("c", 2))
    assert due_shares(stand, {A, B, C}, capacity=POOL) == pytest.approx({A: 0.75, B: 0.25 / 3, C: 0.5 / 3})
    # A floor is lent away by who does not want it.
    assert due_shares(stand, {B, C}, capacity=POOL) == pytest.approx({A: 0, B: 1 / 3, C: 2 / 3})
    over = standings(tenant("a", 1, guaranteed=8), tenant("b", 1, guaranteed=4))
    assert due_shares(over, {A, B}, capacity=POOL) == pytest.approx({A: 2 / 3, B: 1 / 3})


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 9), st.integers(0, 9), st.floats(0, 1)), max_size=5))
def test_due_shares_fill_the_pool_or_all_wants(rows: list[tuple[float, int, int, float]]) -> None:
    tenants = [tenant(f"t{i}", w, guaranteed=g, limit=m) for i, (w, g, m, _) in enumerate(rows)]
    wants = {t.id: row[3] for t, row in zip(tenants, rows, strict=True)}
    due = due_shares(standings(*tenants), set(wants), capacity=POOL, wants=wants)
    caps = {t.id: min(1, wants[t.id], (t.limit.gpu_milli or 0) / 8_000) for t in tenants}
    assert sum(due.values()) == pytest.approx(min(1, sum(caps.values())), abs=1e-9)
    assert all(-1e-12 <= due[name] <= caps[name] + 1e-9 for name in due)


def test_credit_is_what_is_owed() -> None:
    assert credit(Standing(tenant("a"), Amount(), 0.2), 0.5) == pytest.approx(0.3)
    assert credit(Standing(tenant("a"), Amount(), 0.7), 0.5) < 0


def test_claims_order_by_guarantee_then_share_and_history_over_weight() -> None:
    one = Amount(1_000, 1_000)
    level = claim(Standing(tenant("a", 2), Amount(2_000), 0.1), one, POOL, 4, CONFIG)
    # (2/8 + half of 1/8 + 0.5 * 0.1) / 2
    assert level[0] == 1
    assert level[1] == pytest.approx(0.18125)
    below = claim(Standing(tenant("a", 2, guaranteed=3), Amount(2_000), 0.1), one, POOL, 4, CONFIG)
    assert below < level
    # Jobs without GPUs are not helped by a guarantee of GPUs.
    cpu_only = claim(Standing(tenant("a", 2, guaranteed=3), Amount(2_000), 0.1), Amount(0, 1_000), POOL, 4, CONFIG)
    assert cpu_only[0] == 1
    # A gang as large as the pool counts as half of what is due.
    gang = claim(Standing(tenant("a", 1), Amount(), 0.0), Amount(8_000), POOL, 4, CONFIG)
    assert gang[1] == pytest.approx(0.125)


def test_a_weight_of_zero_stands_last_and_divides_nothing() -> None:
    zero = claim(Standing(Tenant(A, 0.0), Amount(), 0.1), Amount(1_000), POOL, 1, CONFIG)
    assert zero > claim(Standing(Tenant(B, 1.0), POOL, 1.0), Amount(1_000), POOL, 1, CONFIG)


def test_limits_name_what_they_are_broken_in() -> None:
    held = Amount(3_000, 9_000)
    assert within(Quota(4_000, 10_000), held, Amount(1_000, 1_000)) is None
    assert within(Quota(4_000), held, Amount(1_001)) == "GPUs"
    assert within(Quota(None, 10_000), held, Amount(0, 1_001)) == "CPUs"
    # Lowering a limit below what is held does not touch jobs that need nothing of it.
    assert within(Quota(1_000), held, Amount(0, 500)) is None
