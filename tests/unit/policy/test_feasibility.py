"""What fits, and why a shape could never run."""

from __future__ import annotations

import pytest

from corral.model.resources import Demand
from corral.policy.feasibility import empty_fit, ever_fits, model_matches, nearest_model, node_fit, pool_words
from corral.policy.inventory import Inventory, NodeKind
from tests.unit.policy.building import node_spec, offer, place_on, shape


@pytest.mark.parametrize(
    "wanted, model, same",
    [
        (None, "anything", True),
        ("H100", "NVIDIA H100 80GB HBM3", True),
        ("h100-80gb", "NVIDIA H100 80GB HBM3", True),
        ("A100", "NVIDIA A100-SXM4-40GB", True),
        ("A100-80GB", "NVIDIA A100-SXM4-40GB", False),
        ("L4", "NVIDIA L40", False),
        ("MI300X", "AMD Instinct MI300X", True),
    ],
)
def test_models_match_by_words(wanted: str | None, model: str, same: bool) -> None:
    assert model_matches(wanted, model) is same


@pytest.mark.parametrize(
    "demand, ranks",
    [
        (Demand(1_000, None, 1_000, 100), 6),
        (Demand(3_000, None, 1_000, 100), 2),
        (Demand(300, None, 1_000, 100), 6 * 3 + 1),
        (Demand(1_000, "A100", 1_000, 100), 0),
        (Demand(1_000, None, 30_000, 100), 2),
        (Demand(1_000, None, 1_000, 20_000), 3),
        (Demand(0, None, 8_000, 100), 7),
        (Demand(0, None, 0, 0), 10**9),
    ],
)
def test_ranks_that_fit_on_a_node(demand: Demand, ranks: int) -> None:
    # 6 devices are free and one is half free; 62 CPUs and 63,800 MiB are left.
    busy = offer(node_spec("n"), [place_on("n", 0), place_on("n", 1, milli=500)])
    assert node_fit(busy, demand) == ranks
    assert empty_fit(busy, Demand(1_000, None, 1_000, 100)) == 8


def test_possible_shapes_are_not_refused() -> None:
    nodes = [node_spec("a"), node_spec("b", 2, "A100")]
    for possible in (shape(8), shape(2, model="A100"), shape(2, ranks=5), shape(0.5, ranks=20), shape(0, cpus=64)):
        assert ever_fits(possible, Inventory.of(nodes)) is None


@pytest.mark.parametrize(
    "impossible, message",
    [
        (shape(1, model="V100"), "the pool has no V100"),
        (shape(3, model="A100"), "3 A100 per node is more than the whole pool has (2)"),
        (shape(10), "10 GPUs on one node is more than any node has (8)"),
        (shape(2, ranks=6), "6 x 2 GPUs is more than the pool can ever run at once (5 ranks fit)"),
        (shape(0, cpus=65), "65 CPUs are more than any fitting node has (64)"),
        (shape(1, memory=64_001), "64001 MiB of memory are more than any fitting node has (64000 MiB)"),
        (shape(0, ranks=200, cpus=1), "200 x 1 CPUs is more than the pool can ever run at once (128 ranks fit)"),
    ],
)
def test_impossible_shapes_say_why(impossible: object, message: str) -> None:
    pool = Inventory.of([node_spec("a"), node_spec("b", 2, "A100")])
    answer = ever_fits(impossible, pool)  # type: ignore[arg-type]
    assert answer is not None
    assert (answer.code, answer.message) == ("UNSCHEDULABLE", message)


def test_cpus_and_memory_are_wanted_together() -> None:
    nodes = [node_spec("a", 0, cpus=64, memory=10), node_spec("b", 0, cpus=1, memory=10_000)]
    answer = ever_fits(shape(0, cpus=32, memory=5_000), Inventory.of(nodes))
    assert answer is not None
    assert answer.message == "no node has the CPUs and the memory together"


def test_the_nearest_name_is_found_and_nonsense_is_not() -> None:
    nodes = Inventory.of([node_spec("a", 1, "NVIDIA H100 80GB HBM3"), node_spec("b", 1, "NVIDIA A100-SXM4-40GB")])
    assert nearest_model("h1000", nodes) == "NVIDIA H100 80GB HBM3"
    assert nearest_model("zzzz", nodes) is None
    assert pool_words(nodes) == "1 NVIDIA A100-SXM4-40GB, 1 NVIDIA H100 80GB HBM3 on 2 nodes"
    assert pool_words(Inventory.of([node_spec("c", 0)])) == "no GPUs on 1 node"


def test_alike_nodes_count_together() -> None:
    nodes = [node_spec("a"), node_spec("b", 2, "A100"), node_spec("c"), node_spec("d", 0), node_spec("e")]
    pool = Inventory.of(nodes)
    assert [(kind.models, kind.devices, kind.nodes) for kind in pool.kinds] == [
        ((), 0, 1),
        ((("A100", 2),), 2, 1),
        ((("H100", 8),), 8, 3),
    ]
    assert (pool.nodes, pool.models) == (5, {"A100": 2, "H100": 24})
    assert isinstance(pool.kinds[0], NodeKind)
    assert pool == Inventory.of(reversed(nodes))
    # Three nodes of eight whole devices take six ranks of four, and no seventh.
    assert ever_fits(shape(4, ranks=6), pool) is None
    refusal = ever_fits(shape(4, ranks=7), pool)
    assert refusal is not None
    assert "6 ranks fit" in refusal.message
    empty = ever_fits(shape(1), Inventory.of([]))
    assert empty is not None
    assert empty.code == "UNAVAILABLE"
