from __future__ import annotations

from corral.model.offer import Locality
from corral.model.resources import GangShape
from corral.policy.market.cells import Cells, Wanted
from corral.policy.market.ground import Ground
from tests.unit.policy.building import holding, node_spec, place_on, shape, snapshot


def ground_of(*specs: object, held: tuple = ()) -> Ground:
    return Ground(snapshot(list(specs), held), (), ())  # type: ignore[arg-type]


def nodes_of(ground: Ground, spots: list[tuple[int, tuple[int, ...]]] | None) -> list[str] | None:
    return None if spots is None else [ground.offers[ground.seats[index].node].node for index, _ in spots]


def find(
    ground: Ground, what: GangShape, locality: Locality = Locality.ANY, cells: Cells | None = None
) -> list[str] | None:
    return nodes_of(ground, (cells or Cells(ground)).find(Wanted(what, locality, 0)))


def test_the_tightest_node_takes_it() -> None:
    held = (holding(1, place_on("n2", 0, 1, 2, 3, 4)), holding(2, place_on("n3", 0, 1)))
    ground = ground_of(node_spec("n1"), node_spec("n2"), node_spec("n3"), held=held)
    assert find(ground, shape(3)) == ["n2"]
    assert find(ground, shape(4)) == ["n3"]
    assert find(ground, shape(8)) == ["n1"]


def test_ranks_go_to_nodes_of_their_own_in_the_tightest_rack() -> None:
    specs = [node_spec(f"a{i}", 4, rack="a") for i in range(4)] + [node_spec(f"b{i}", 4, rack="b") for i in range(2)]
    ground = ground_of(*specs)
    assert find(ground, shape(2, ranks=2)) == ["b0", "b1"]
    assert find(ground, shape(2, ranks=3)) == ["a0", "a1", "a2"]
    # Six nodes are in no rack together, but pairs of ranks on three are; over racks each gets its own.
    assert find(ground, shape(2, ranks=8)) == ["a0", "a0", "a1", "a1", "a2", "a2", "a3", "a3"]
    assert sorted(find(ground, shape(4, ranks=6)) or []) == ["a0", "a1", "a2", "a3", "b0", "b1"]
    assert find(ground, shape(4, ranks=6), Locality.RACK) is None
    assert find(ground, shape(4, ranks=7)) is None


def test_an_island_is_not_split_where_another_takes_all() -> None:
    held = (holding(1, place_on("n1", 0)), holding(2, place_on("n1", 4)))
    ground = ground_of(node_spec("n1", 8, island=4), node_spec("n2", 8, island=4), held=held)
    # n1 has six free, three on each island: four would be split there.
    assert find(ground, shape(4)) == ["n2"]
    assert find(ground, shape(1, ranks=4), Locality.NVLINK) == ["n2"] * 4
    assert find(ground, shape(3)) == ["n1"]
    spots = Cells(ground).find(Wanted(shape(6), Locality.ANY, 0))
    assert spots == [(0, (1, 2, 3, 5, 6, 7))]


def test_taking_and_giving_back() -> None:
    running = holding(1, place_on("n", 0), place_on("n", 1, rank=1))
    ground = ground_of(node_spec("n", 2), held=(running,))
    cells = Cells(ground)
    footprint = ground.footprint(running.placements)
    assert find(ground, shape(1), cells=cells) is None
    cells.release(footprint)
    assert cells.free_by_model() == [2]
    spots = cells.find(Wanted(shape(1), Locality.ANY, 0))
    assert spots is not None
    cells.take(spots, shape(1))
    assert not cells.withdraw(footprint)
    assert cells.free_by_model() == [1]


def test_a_release_that_nobody_used_is_taken_back() -> None:
    running = holding(1, place_on("n", 0))
    ground = ground_of(node_spec("n", 2), held=(running,))
    cells = Cells(ground)
    footprint = ground.footprint(running.placements)
    cells.release(footprint)
    # What was free before is taken first.
    assert cells.find(Wanted(shape(1), Locality.ANY, 0)) == [(0, (1,))]
    assert cells.withdraw(footprint)
    assert cells.free_by_model() == [1]
    assert find(ground, shape(2), cells=cells) is None


def test_shares_that_come_together_are_a_device_again() -> None:
    halves = [holding(i, place_on("n", 0, milli=500)) for i in (1, 2)]
    ground = ground_of(node_spec("n", 1), held=tuple(halves))
    cells = Cells(ground)
    first, second = (ground.footprint(h.placements) for h in halves)
    cells.release(first)
    assert cells.free_by_model() == [0]
    cells.release(second)
    assert cells.free_by_model() == [1]
    assert cells.withdraw(second)
    assert cells.free_by_model() == [0]


def test_nodes_without_cpus_are_passed_over() -> None:
    ground = ground_of(node_spec("n1", 2, cpus=1), node_spec("n2", 4, cpus=64))
    assert find(ground, shape(1, cpus=2)) == ["n2"]
    assert find(ground, shape(1, ranks=5, cpus=2)) is None
