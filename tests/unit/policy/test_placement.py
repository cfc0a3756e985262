"""Which nodes and devices are chosen, by hand; and that placing is exact, against brute force."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.model.ids import NodeId
from corral.model.offer import Bid, Locality, NodeOffer, Preference
from corral.model.resources import Placement
from corral.policy.placement import Wish, place
from corral.policy.trial import Trial
from tests.unit.policy.building import CONFIG, node_spec, offer, place_on, shape


def placed(offers: list[NodeOffer], bid: Bid, without: tuple[str, ...] = ()) -> tuple[Placement, ...] | None:
    wish = Wish.of(bid, CONFIG, frozenset(NodeId(n) for n in without))
    return place(Trial(offers), wish)


def where(placements: tuple[Placement, ...] | None) -> list[str]:
    assert placements is not None
    return [s.uuid for p in placements for s in p.devices]


def nodes(placements: tuple[Placement, ...] | None) -> list[str]:
    assert placements is not None
    return [p.node for p in placements]


def test_devices_of_one_rank_come_from_one_nvlink_island() -> None:
    half = node_spec("n", island=4)
    # Island 0 has 3 free devices, island 1 has 2.
    busy = [place_on("n", 0, 4, 5)]
    assert where(placed([offer(half, busy)], Bid(shape(2)))) == ["n-6", "n-7"]
    assert where(placed([offer(half, busy)], Bid(shape(3)))) == ["n-1", "n-2", "n-3"]
    # None holds 4: the larger island first.
    assert where(placed([offer(half, busy)], Bid(shape(4)))) == ["n-1", "n-2", "n-3", "n-6"]


def test_a_node_with_a_fitting_island_goes_before_one_that_would_be_split() -> None:
    split = offer(node_spec("a", 4, island=2), [place_on("a", 0)])
    whole = offer(node_spec("b", 8, island=8))
    assert nodes(placed([split, whole], Bid(shape(2)))) == ["a"]
    assert nodes(placed([split, whole], Bid(shape(3)))) == ["b"]


def test_whole_devices_fill_the_fullest_node_that_fits() -> None:
    offers = [
        offer(node_spec("a")),
        offer(node_spec("b"), [place_on("b", 0, 1, 2)]),
        offer(node_spec("c"), [place_on("c", *range(7))]),
    ]
    assert nodes(placed(offers, Bid(shape(1)))) == ["c"]
    assert nodes(placed(offers, Bid(shape(2)))) == ["b"]
    assert nodes(placed(offers, Bid(shape(8)))) == ["a"]


def test_shares_go_to_the_tightest_shared_device_first() -> None:
    busy = [place_on("a", 2, milli=500), place_on("a", 5, milli=700), place_on("b", 0, milli=750)]
    offers = [offer(node_spec("a"), busy), offer(node_spec("b"), busy), offer(node_spec("c", 1))]
    assert where(placed(offers, Bid(shape(0.25)))) == ["b-0"]
    assert where(placed(offers, Bid(shape(0.3)))) == ["a-5"]
    assert where(placed(offers, Bid(shape(0.4)))) == ["a-2"]
    # No shared device fits: the node with the fewest whole ones is broken into.
    assert where(placed(offers, Bid(shape(0.6)))) == ["c-0"]


def test_jobs_without_gpus_stay_away_from_free_gpus() -> None:
    offers = [offer(node_spec("a")), offer(node_spec("b", 0)), offer(node_spec("c"), [place_on("c", *range(8))])]
    assert nodes(placed(offers, Bid(shape(0)))) == ["b"]
    assert nodes(placed(offers, Bid(shape(0)), without=("b",))) == ["c"]


def test_ranks_go_to_distinct_nodes_of_one_rack_and_share_nodes_only_in_need() -> None:
    racks = [offer(node_spec(f"n{i}", rack=f"r{i % 2}")) for i in range(6)]
    assert nodes(placed(racks, Bid(shape(1, ranks=3)))) == ["n0", "n2", "n4"]
    # One rack holds four ranks of 5 devices only on three nodes: distinct nodes are not had in one rack.
    assert nodes(placed(racks, Bid(shape(4, ranks=4)))) == ["n0", "n0", "n2", "n4"]
    assert nodes(placed(racks, Bid(shape(8, ranks=4)))) == ["n0", "n2", "n1", "n3"]


def test_a_gang_gets_one_device_model_if_it_can() -> None:
    offers = [
        offer(node_spec("a", 8, "A100")),
        offer(node_spec("b", 8, "H100"), [place_on("b", 0)]),
        offer(node_spec("c", 8, "A100", rack="far")),
    ]
    assert nodes(placed(offers, Bid(shape(6, ranks=2)))) == ["c", "a"]
    assert nodes(placed(offers, Bid(shape(6, ranks=3)))) == ["c", "a", "b"]
    mixed = offer(node_spec("m", models=["A100", "H100", "A100", "H100", "H100"]))
    assert where(placed([mixed], Bid(shape(2)))) == ["m-0", "m-2"]
    assert where(placed([mixed], Bid(shape(3)))) == ["m-1", "m-3", "m-4"]
    assert where(placed([mixed], Bid(shape(4)))) == ["m-0", "m-1", "m-2", "m-3"]


def test_localities_are_demands() -> None:
    racks = [offer(node_spec(f"n{i}", 4, rack=f"r{i}", island=2)) for i in range(2)]
    assert placed(racks, Bid(shape(4, ranks=2), Locality.RACK)) is None
    assert nodes(placed(racks, Bid(shape(2, ranks=2), Locality.RACK))) == ["n0", "n0"]
    assert nodes(placed(racks, Bid(shape(2, ranks=2), Locality.NODE))) == ["n0", "n0"]
    assert placed(racks, Bid(shape(3, ranks=2), Locality.NODE)) is None
    assert placed(racks, Bid(shape(2, ranks=2), Locality.NVLINK)) is None
    assert where(placed(racks, Bid(shape(1, ranks=2), Locality.NVLINK))) == ["n0-0", "n0-1"]
    assert where(placed(racks, Bid(shape(0.5, ranks=4), Locality.NVLINK))) == ["n0-0", "n0-0", "n0-1", "n0-1"]
    assert nodes(placed(racks, Bid(shape(0, ranks=2), Locality.NVLINK))) == ["n0", "n0"]


def test_cold_start_is_weighed_against_fragmentation() -> None:
    offers = [offer(node_spec("a"), [place_on("a", *range(6))]), offer(node_spec("b"))]

    def bid(cold_a: float, cold_b: float) -> Bid:
        return Bid(shape(1), preferred=(Preference(NodeId("a"), cold_a), Preference(NodeId("b"), cold_b)))

    # a leaves 1 whole device, b leaves 7: six devices are worth 60 seconds.
    assert nodes(placed(offers, bid(59, 0))) == ["a"]
    assert nodes(placed(offers, bid(61, 0))) == ["b"]
    only = Bid(shape(1), preferred=(Preference(NodeId("b"), 0.0),))
    assert nodes(placed([offer(node_spec("a")), offer(node_spec("b"))], only)) == ["b"]


@pytest.mark.parametrize("locality", list(Locality))
def test_nothing_is_placed_twice_and_nothing_on_excluded_nodes(locality: Locality) -> None:
    offers = [offer(node_spec(f"n{i}")) for i in range(3)]
    found = placed(offers, Bid(shape(2, ranks=3), locality), without=("n0",))
    assert found is not None
    assert len(set(where(found))) == 6
    assert "n0" not in nodes(found)


@given(st.integers(0, 10**9))
def test_a_gang_is_placed_exactly_when_there_is_a_way(seed: int) -> None:
    rng = random.Random(seed)
    offers = []
    for n in range(rng.randint(1, 3)):
        models = [rng.choice("AH") for _ in range(rng.randint(0, 3))]
        held = [
            place_on(f"n{n}", d, milli=rng.choice([250, 600, 1000])) for d in range(len(models)) if rng.random() < 0.4
        ]
        offers.append(
            offer(node_spec(f"n{n}", models=models, cpus=4, memory=500, rack=rng.choice("xy"), island=2), held)
        )
    wanted = shape(rng.choice([0, 0.25, 0.5, 1, 2, 3]), rng.randint(1, 4), rng.choice([None, "A"]), rng.choice([1, 2]))
    locality = rng.choice(list(Locality))
    found = placed(offers, Bid(wanted, locality))
    assert (found is not None) == exists(offers, wanted.ranks, Bid(wanted, locality))
    if found is not None:
        for node in offers:
            mine = [p for p in found if p.node == node.node]
            assert sum(p.cpus_milli for p in mine) <= node.cpus_milli
            for device in node.devices:
                assert sum(s.milli for p in mine for s in p.devices if s.uuid == device.uuid) <= device.free_milli


def exists(offers: list[NodeOffer], ranks: int, bid: Bid) -> bool:
    """Try every choice of device sets for all ranks."""
    demand = bid.shape.demand
    choices = []
    for node in offers:
        devices = [d for d in node.devices if demand.gpu_model in (None, d.model)]
        count = max(1, demand.gpu_milli // 1000) if demand.gpu_milli else 0
        choices += [(node, picked) for picked in itertools.combinations(devices, count)]
    for chosen in itertools.combinations_with_replacement(range(len(choices)), ranks):
        picked = [choices[i] for i in chosen]
        hosts = {node.node for node, _ in picked}
        if bid.locality in (Locality.NODE, Locality.NVLINK) and len(hosts) > 1:
            continue
        if bid.locality is Locality.NVLINK and len({d.island for _, devices in picked for d in devices}) > 1:
            continue
        if bid.locality is Locality.RACK and len({node.rack for node, _ in picked}) > 1:
            continue
        if fits(picked, demand.gpu_milli, demand.cpus_milli, demand.memory_mib):
            return True
    return False


def fits(picked: list, gpu_milli: int, cpus_milli: int, memory_mib: int) -> bool:
    for node in {n.node: n for n, _ in picked}.values():
        mine = [devices for n, devices in picked if n.node == node.node]
        if len(mine) * cpus_milli > node.cpus_milli or len(mine) * memory_mib > node.memory_mib:
            return False
        for device in node.devices:
            if sum(min(1000, gpu_milli) for devices in mine if device in devices) > device.free_milli:
                return False
    return True
