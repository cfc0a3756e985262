from __future__ import annotations

import pytest

from corral.model.errors import InvalidField
from corral.sim.cluster import device_count, largest_node, models_of, parse_cluster


def test_one_number_is_that_of_the_nodes_and_two_are_nodes_and_devices() -> None:
    nodes = parse_cluster("12xV100, 2x8xH100, K80")
    assert [len(node.devices) for node in nodes] == [1] * 12 + [8, 8] + [1]
    assert device_count(nodes) == 29
    assert models_of(nodes) == ("H100", "K80", "V100")
    assert (largest_node(nodes), largest_node(nodes, "V100"), largest_node(nodes, "A100")) == (8, 1, 0)
    assert {node.rack for node in nodes} == {"rack"}
    assert len({device.uuid for node in nodes for device in node.devices}) == 29


def test_racks_are_filled_one_after_the_other() -> None:
    nodes = parse_cluster("5x4xA100/2,2xV100/2")
    assert [node.rack for node in nodes] == ["rack-0", "rack-0", "rack-2", "rack-2", "rack-4", "rack-5", "rack-5"]


@pytest.mark.parametrize("text", ["", "8", "8x8", "x8xH100", "0xH100", "2x0xH100", "2xH100/0", "2xH100,,", "2000000xA"])
def test_what_is_no_cluster_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(InvalidField) as refused:
        parse_cluster(text)
    assert refused.value.refusal.field == "--cluster"
    assert "\n" not in str(refused.value)
