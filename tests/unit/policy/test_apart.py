"""Replicas of one service keep apart: nodes, then racks, where they can; fixed ports always."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from corral.model.ids import ServiceName
from corral.model.offer import Bid, Candidate, Holding, Kin
from corral.policy.apart import Apart
from corral.policy.explain import explain_pending
from tests.unit.policy.building import (
    candidate,
    holding,
    node_spec,
    nodes_of,
    offer,
    place_on,
    run_round,
    shape,
    started,
)
from tests.unit.policy.market.scenes import plan as plan_of
from tests.unit.policy.market.scenes import waits
from tests.unit.policy.test_explain import scene

WEB = Kin(ServiceName("web"))
PORT = Kin(ServiceName("web"), 8000)
OTHER = Kin(ServiceName("other"), 8000)


def replica(job: int, kin: Kin = WEB, gpus: float = 1) -> Candidate:
    return replace(candidate(job, shape(gpus)), kin=kin)


def runs(job: int, node: str, device: int = 0, kin: Kin = WEB) -> Holding:
    return replace(holding(job, place_on(node, device)), kin=kin)


def test_replicas_spread_over_nodes_although_packing_would_put_them_together() -> None:
    specs = [node_spec(f"n{i}") for i in range(4)]
    packed = run_round(specs, [candidate(job, shape(1)) for job in range(4)])
    assert len({nodes_of(packed, job)[0] for job in range(4)}) == 1
    spread = run_round(specs, [replica(job) for job in range(4)])
    assert sorted(nodes_of(spread, job)[0] for job in range(4)) == ["n0", "n1", "n2", "n3"]


def test_replicas_spread_over_racks_first() -> None:
    specs = [node_spec("n0", rack="a"), node_spec("n1", rack="a"), node_spec("n2", rack="b")]
    spread = run_round(specs, [replica(2)], holdings=[runs(1, "n0")])
    assert nodes_of(spread, 2) == ["n2"]


def test_where_there_is_no_other_room_they_stand_together() -> None:
    spread = run_round([node_spec("n0"), node_spec("n1", gpus=1)], [replica(job) for job in range(4)])
    assert sorted(nodes_of(spread, job)[0] for job in range(4)) == ["n0", "n0", "n0", "n1"]


def test_other_jobs_and_other_services_are_no_kin() -> None:
    specs = [node_spec("n0"), node_spec("n1")]
    spread = run_round(specs, [replica(3)], holdings=[runs(1, "n0", kin=Kin(ServiceName("x"))), holding(2)])
    # n0 is begun already: the next one is packed beside it.
    assert nodes_of(spread, 3) == ["n0"]


def test_a_fixed_port_is_had_once_on_a_machine_whosever_it_is() -> None:
    specs = [node_spec("n0"), node_spec("n1")]
    spread = run_round(specs, [replica(3, PORT), replica(4, PORT)], holdings=[runs(1, "n0", kin=OTHER)])
    assert started(spread) == [3]
    assert nodes_of(spread, 3) == ["n1"]


def test_nothing_is_kept_for_a_replica_where_its_port_is_taken() -> None:
    specs = [node_spec("n0"), node_spec("n1")]
    full = [holding(9, place_on("n1", *range(8)))]
    kept = run_round(specs, [replica(3, PORT)], holdings=[runs(1, "n0", kin=PORT), *full]).reservations
    assert [placement.node for one in kept for placement in one.placements] == ["n1"]
    nowhere = run_round(specs[:1], [replica(3, PORT)], holdings=[runs(1, "n0", kin=PORT)])
    assert nowhere.reservations == ()


def test_a_reservation_moves_when_its_port_is_taken_meanwhile() -> None:
    specs = [node_spec("n0"), node_spec("n1")]
    full = [holding(8, place_on("n0", *range(8)), ends_at=2_000.0), holding(9, place_on("n1", *range(8)))]
    kept = run_round(specs, [replica(3, PORT)], holdings=full).reservations
    assert [placement.node for placement in kept[0].placements] == ["n0"]
    sibling = replace(holding(1, replace(place_on("n0", 0, milli=0), cpus_milli=0)), kin=PORT)
    moved = run_round(specs, [replica(3, PORT)], holdings=[*full, sibling], reservations=kept).reservations
    assert [placement.node for placement in moved[0].placements] == ["n1"]


def test_machines_that_share_an_address_share_its_ports() -> None:
    offers = {name: replace(offer(node_spec(name)), address="10.0.0.9") for name in ("n0", "n1")}
    apart = Apart(offers, [runs(1, "n0", kin=PORT)])  # type: ignore[arg-type]
    assert apart.without(OTHER) == {"n0", "n1"}
    assert apart.without(WEB) == frozenset()
    assert apart.clashes(OTHER, [place_on("n1", 0)])
    assert not apart.clashes(None, [place_on("n1", 0)])


@pytest.mark.parametrize("gpus", [1, 0.5])
def test_the_global_round_spreads_too_and_knows_ports(gpus: float) -> None:
    specs = [node_spec(f"n{i}") for i in range(3)]
    bid = Bid(shape(gpus))
    pending = [replace(waits(job, bid), kin=PORT) for job in (2, 3, 4)]
    plan = plan_of(specs, pending, running=[runs(1, "n1", kin=PORT)])
    assert sorted(award.placements[0].node for award in plan.awards) == ["n0", "n2"]
    pending = [replace(waits(job, bid), kin=WEB) for job in (2, 3)]
    plan = plan_of(specs, pending, running=[runs(1, "n1")])
    assert sorted(award.placements[0].node for award in plan.awards) == ["n0", "n2"]


def test_why_names_the_port() -> None:
    there = [runs(1, "node-0", kin=PORT), runs(2, "node-1", kin=OTHER)]
    why = explain_pending(scene([replica(3, PORT)], holdings=there), replica(3, PORT), None)
    assert why.verdict == "waits for a machine without another replica: port 8000 is taken on node-0, node-1"
    assert why.constraints[0].fits == 0
    assert why.constraints[0].blocks == ("port 8000 is taken on this machine by another replica",)
