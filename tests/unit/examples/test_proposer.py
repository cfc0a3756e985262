"""The example of a proposer: what it answers to offers, through the documents that corral exchanges with it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from corral.model.ids import DeviceId, NodeId, TenantId
from corral.model.job import JobSpec
from corral.model.offer import Bid, FreeDevice, NodeOffer, Offer, Snapshot
from corral.model.resources import Amount, Demand, GangShape
from corral.wire.bidding import bids_of, question_of
from corral.wire.jobfile import load_any

HERE = Path(__file__).resolve().parents[3] / "examples" / "proposer"
SIZES = tuple(GangShape(1, Demand(n * 1_000, None, n * 4_000, n * 8_000)) for n in (4, 2, 1))
SPEC = JobSpec("thrifty", TenantId("a"), SIZES[0], ("x",), shapes=SIZES, appmaster="thrifty:propose")
ANY = tuple(Bid(shape, throughput=shape.demand.gpus_whole) for shape in SIZES)


@pytest.fixture(scope="module")
def propose() -> Callable[[dict[str, Any], dict[str, Any]], list[dict[str, Any]]]:
    spec = importlib.util.spec_from_file_location("thrifty", HERE / "thrifty.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.propose


def answer(
    propose: Callable[..., Any], models: list[str], bids: tuple[Bid, ...], price: float = 0.0, priority: int = 0
) -> list[tuple[int, str | None]]:
    """Return the GPUs and the models of the bids that come out, best first."""
    nodes = tuple(
        NodeOffer(NodeId(f"n{i}"), "r", (FreeDevice(DeviceId(f"d{i}"), model, 1_000, 1),) * 4, 1, 1, Amount())
        for i, model in enumerate(models)
    )
    spec = JobSpec(**{field: getattr(SPEC, field) for field in SPEC.__struct_fields__} | {"priority": priority})
    question = question_of(
        "1", spec, Offer(Snapshot(1, 0.0, nodes, (), Amount()), 0.0, dict.fromkeys(models, price)), bids
    )
    found = bids_of(propose(question["offer"], question["job"]), spec, bids)
    assert isinstance(found, tuple), found
    return [(bid.shape.demand.gpus_whole, bid.shape.demand.gpu_model) for bid in found]


def test_it_takes_old_devices_where_there_are_any(propose: Callable[..., Any]) -> None:
    assert answer(propose, ["H100", "K80"], ANY) == [(4, "K80"), (2, "K80"), (1, "K80")]
    named = tuple(Bid(GangShape(1, Demand(2_000, model, 8_000, 16_000)), throughput=speed) for model, speed in
                  (("H100", 9.0), ("V100", 4.0), ("P100", 3.0)))  # fmt: skip
    assert answer(propose, ["H100", "V100", "P100"], named) == [(2, "V100"), (2, "P100")]


def test_it_takes_what_there_is_where_there_are_none(propose: Callable[..., Any]) -> None:
    assert answer(propose, ["H100"], ANY) == [(4, None), (2, None), (1, None)]


def test_it_takes_fewer_while_devices_are_dear(propose: Callable[..., Any]) -> None:
    assert answer(propose, ["H100"], ANY, price=1.5) == [(2, None), (1, None)]
    assert answer(propose, ["H100"], ANY[:1], price=1.5) == [(4, None)]
    assert answer(propose, ["H100"], ANY, price=1.5, priority=1) == [(4, None), (2, None), (1, None)]


@pytest.mark.parametrize("name", ["proposer", "elastic"])
def test_the_job_files_are_right(name: str) -> None:
    (asked,), ignored = load_any(HERE.parent / name / "job.yaml")
    assert ignored == ()
    assert asked.gpu_counts
    assert asked.workdir == str(HERE.parent / name)
