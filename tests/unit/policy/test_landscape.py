"""What the pool looks like to a bidder: models, racks, islands, whoever holds them now."""

from __future__ import annotations

from corral.model.offer import Snapshot
from corral.model.resources import Amount
from corral.policy.landscape import Landscape, landscape_of
from tests.unit.policy.building import node_spec, offer, place_on, shape

NODES = [
    offer(node_spec("a", 8, "V100", rack="r1", island=4)),
    offer(node_spec("b", 8, "V100", rack="r1", island=4), held=[place_on("b", 0, 1, 2)]),
    offer(node_spec("c", 4, "A100", rack="r2", cpus=3)),
    offer(node_spec("d", 0, rack="r2")),
]


def test_what_is_held_counts_as_if_it_were_free() -> None:
    pool = Landscape(NODES)
    assert (pool.racks, pool.models) == (2, ("A100", "V100"))
    assert pool.ranks(shape(1).demand) == 19
    assert pool.ranks(shape(1).demand, "V100") == 16
    # The four A100 share three CPUs.
    assert pool.ranks(shape(1).demand, "A100") == 3
    assert pool.ranks(shape(3).demand, "V100") == 4
    assert pool.ranks(shape(0.5).demand, "V100") == 32
    assert pool.ranks(shape(0, cpus=64).demand) == 3
    assert pool.ranks(shape(1, model="a100").demand) == 3


def test_the_best_rack_counts_for_ranks_that_stay_together() -> None:
    pool = Landscape(NODES)
    assert pool.ranks_in_rack(shape(1).demand) == 16
    assert pool.ranks_in_rack(shape(1).demand, "A100") == 3
    assert pool.ranks_in_rack(shape(8).demand) == 2


def test_islands_matter_where_devices_might_be_apart() -> None:
    pool = Landscape(NODES)
    assert pool.islands_matter(shape(2).demand, "V100")
    assert pool.islands_matter(shape(4).demand)
    assert not pool.islands_matter(shape(5).demand)
    assert not pool.islands_matter(shape(2).demand, "A100")


def test_models_that_a_demand_allows() -> None:
    pool = Landscape(NODES)
    assert pool.matching(shape(1).demand) == ("A100", "V100")
    assert pool.matching(shape(1, model="V100").demand) == ("V100",)


def test_offers_of_one_round_share_a_landscape() -> None:
    one, other = (Snapshot(1, 0.0, tuple(NODES), (), Amount()) for _ in range(2))
    assert landscape_of(one) is landscape_of(one)
    assert landscape_of(one) is not landscape_of(other)
    assert landscape_of(Snapshot(2, 0.0, (), (), Amount())).models == ()
