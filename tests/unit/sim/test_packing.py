"""Arrivals without departures: the order, what counts as arrived, and pools small enough to pack by hand."""

from __future__ import annotations

import pytest

from corral.model.ids import DeviceId, NodeId
from corral.model.resources import MILLI, Demand, DeviceSpec, NodeSpec
from corral.sim.formats.openb import Pod
from corral.sim.packing import TOPPED_UP, arrivals, pack


def node(name: str, gpus: int, model: str = "T4", cpus: int = 64) -> NodeSpec:
    devices = tuple(DeviceSpec(DeviceId(f"{name}-{i}"), model, "openb", 0, i) for i in range(gpus))
    return NodeSpec(NodeId(name), name, name, cpus * MILLI, 1_000, devices)


def pod(milli: int, *models: str, cpus: int = 1) -> Pod:
    return Pod("pod", tuple(Demand(milli, model, cpus * MILLI, 1) for model in models or (None,)))


def test_arrivals_are_topped_up_with_pods_of_the_list_and_shuffled_by_the_seed() -> None:
    pods = [pod(1_000), pod(500), pod(250)]
    order = arrivals(pods, 10_000, 42)
    asked = [p.gpu_milli for p in order]
    assert TOPPED_UP * 10_000 <= sum(asked) < TOPPED_UP * 10_000 + 1_000
    assert set(asked) == {1_000, 500, 250}
    assert order == arrivals(pods, 10_000, 42)
    assert order != arrivals(pods, 10_000, 43)
    with pytest.raises(ValueError, match="no pod asks for a GPU"):
        arrivals([pod(0)], 10_000, 42)


def test_a_pool_of_single_devices_fills_up() -> None:
    packed = pack([node("a", 4), node("b", 4)], [pod(1_000)], 1)
    assert (packed.allocated_pct, packed.arrived, packed.failed, packed.failed_gpu_pct) == (100.0, 8, 0, 0.0)


def test_a_pod_that_does_not_fit_has_arrived_too() -> None:
    # Two of four devices have CPUs.
    packed = pack([node("a", 4, cpus=2)], [pod(1_000)], 1)
    assert (packed.allocated_pct, packed.arrived, packed.failed, packed.failed_gpu_pct) == (50.0, 4, 2, 50.0)
    assert pack([node("a", 4)], [pod(1_000, "G2")], 1).allocated_pct == 0.0


def test_pods_may_go_to_any_of_the_models_that_they_allow() -> None:
    packed = pack([node("a", 2, "T4"), node("b", 2, "G2")], [pod(1_000, "T4", "G2")], 1)
    assert packed.allocated_pct == 100.0


@pytest.mark.parametrize("seed", range(8))
def test_a_model_that_some_need_is_left_to_them_by_the_others(seed: int) -> None:
    nodes = [node(f"t{i}", 2, "T4") for i in range(24)] + [node(f"g{i}", 8, "G2") for i in range(24)]
    # A tenth of the pods want T4 alone; a fifth of the devices are T4, on the smallest nodes: best fit gives them away
    # first. With seeds 0 and 7 too many would be gone before anybody has asked for one, were it not for the prior.
    pods = [pod(1_000, "T4"), *[pod(1_000)] * 9]
    assert pack(nodes, pods, seed).allocated_pct == 100.0
