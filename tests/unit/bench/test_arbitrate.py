from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench import arbitrate
from bench.arbitrate_admissions import daemon_cpu_s, per_second
from bench.arbitrate_exact import exact_value
from bench.arbitrate_market import DEVICES, MODELS, market, node_spec, shape_of
from corral.policy.market.solve import solve


def test_a_market_is_what_it_says() -> None:
    one = market(1_024)
    assert sum(len(offer.devices) for offer in one.snapshot.nodes) == 1_024
    assert {d.model for offer in one.snapshot.nodes for d in offer.devices} == {model for model, _ in MODELS}
    assert {d.island for d in one.snapshot.nodes[0].devices} == {0, 1}
    assert len({offer.rack for offer in one.snapshot.nodes}) == 8
    jobs = len(one.pending) + len(one.snapshot.holdings)
    assert jobs == 348
    assert {len(c.bids) for c in one.pending} == {32}
    held = sum(len(p.devices) for h in one.snapshot.holdings for p in h.placements)
    assert held + sum(d.free_milli for o in one.snapshot.nodes for d in o.devices) // 1_000 == 1_024
    assert market(1_024) == one
    assert market(1_024, seed=1) != one


def test_shapes_have_eight_devices_on_a_node_at_most() -> None:
    assert (shape_of(4, "H100").ranks, shape_of(4, "H100").demand.gpus_whole) == (1, 4)
    assert (shape_of(32, "H100").ranks, shape_of(32, "H100").demand.gpus_whole) == (4, DEVICES)


def test_the_node_behind_an_offer_has_its_devices() -> None:
    offer = market(64).snapshot.nodes[0]
    spec = node_spec(offer)
    assert [d.uuid for d in spec.devices] == [d.uuid for d in offer.devices]
    assert spec.rack == offer.rack


@pytest.mark.parametrize("seed", [0, 1])
def test_a_round_is_near_the_exact_optimum_and_its_bound_is_above(seed: int) -> None:
    one = market(256, seed)
    plan = solve(one, arbitrate.CONFIG)
    exact = exact_value(one, arbitrate.CONFIG)
    assert plan.value <= exact * (1 + 1e-4)
    assert plan.value >= exact * 0.985
    assert exact <= plan.bound * (1 + 1e-4)


def test_a_thousand_devices_leave_half_a_percent_at_most() -> None:
    figures = arbitrate.measure_round(1_000, 0)
    assert figures["gap"] <= 0.005
    assert figures["exact_gap"] <= figures["gap"] + 1e-5
    assert figures["jobs"] == 340
    assert figures["bids"] > 10_000
    assert figures["peak_mb"] > 0


def test_a_rate_is_over_the_time_that_all_clients_took() -> None:
    assert per_second([(0.0, 1.0), (0.5, 2.5)], 5) == pytest.approx(4.0)


def test_no_daemon_no_cpu(tmp_path: Path) -> None:
    assert daemon_cpu_s(tmp_path) == 0.0
    assert os.sysconf("SC_CLK_TCK") > 0


def test_a_gang_that_never_fits_is_told_so_and_a_guaranteed_one_is_seated(monkeypatch: pytest.MonkeyPatch) -> None:
    assert arbitrate.unschedulable_s(512, 0) >= 0.0
    monkeypatch.setattr(arbitrate, "GANG_WORKERS", 8)
    assert arbitrate.gang_s(1_024, 0) > 0.0
