"""What a proposer is shown and what it may answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from corral.model.errors import Refusal
from corral.model.experience import Rate, WorkSpec
from corral.model.ids import DeviceId, GangKey, JobId, NodeId, TenantId
from corral.model.job import JobSpec
from corral.model.offer import Bid, FreeDevice, Holding, Locality, NodeOffer, Offer, Preference, Snapshot
from corral.model.resources import Amount, Demand, GangShape
from corral.wire.bidding import NODES_MAX, bids_of, document_of_bid, question_of


def shape(gpus: int, model: str | None = None, ranks: int = 1) -> GangShape:
    return GangShape(ranks, Demand(gpus * 1_000, model, gpus * 4_000, gpus * 8_000))


SPEC = JobSpec(
    "train", TenantId("a"), shape(4), ("x",), shapes=(shape(4), shape(2), shape(1)), data=("images",),
    work=WorkSpec(9_000.0, None, {"V100": 12.0}), restart_cost_s=45.0, max_duration_s=3_600.0, appmaster="mine:propose",
)  # fmt: skip
DEFAULTS = (Bid(shape(4), throughput=40.0, confidence=0.5, checkpoint_age_s=7.0, restart_cost_s=45.0, tenure_s=600.0),)


def node(name: str, model: str, free: tuple[int, ...], shards: frozenset[str] = frozenset()) -> NodeOffer:
    devices = tuple(FreeDevice(DeviceId(f"{name}-{i}"), model, milli, 16_384) for i, milli in enumerate(free))
    return NodeOffer(NodeId(name), "rack-1", devices, 8_000, 64_000, Amount(len(free) * 1_000, 16_000, 128_000), shards)


def test_it_is_shown_capacity_prices_and_its_own_needs_and_nothing_of_others() -> None:
    secret = Holding(GangKey(JobId("3"), 0), TenantId("rival"), (), 1.0, None)
    nodes = (node("n0", "V100", (0, 500, 1_000)), node("n1", "K80", (1_000,), frozenset({"images", "other"})))
    offer = Offer(Snapshot(9, 5.0, nodes, (secret,), Amount()), -0.5, {"V100": 2.0}, (Rate("V100", 4, 41.0, 0.9),))
    told = question_of("7", SPEC, offer, DEFAULTS)
    assert "rival" not in json.dumps(told)
    assert told == {
        "offer": {
            "version": 9,
            "at": 5.0,
            "credit": -0.5,
            "prices": {"V100": 2.0},
            "models": {"V100": {"devices": 3, "free": 1.5}, "K80": {"devices": 1, "free": 1.0}},
            "nodes": [
                {
                    "name": "n0",
                    "rack": "rack-1",
                    "models": {"V100": {"devices": 3, "free": 1.5}},
                    "cpus": 8.0,
                    "memory_mib": 64_000,
                    "data": [],
                },
                {
                    "name": "n1",
                    "rack": "rack-1",
                    "models": {"K80": {"devices": 1, "free": 1.0}},
                    "cpus": 8.0,
                    "memory_mib": 64_000,
                    "data": ["images"],
                },
            ],
            "nodes_in_all": 2,
            "rates": [{"model": "V100", "devices": 4, "units_per_s": 41.0, "confidence": 0.9}],
            "bids": [
                {
                    "num_nodes": 1,
                    "num_gpus": 4,
                    "model": None,
                    "locality": "any",
                    "preferred": {},
                    "throughput": 40.0,
                    "confidence": 0.5,
                    "remaining_s": None,
                    "restart_cost_s": 45.0,
                }
            ],
        },
        "job": {
            "id": "7",
            "name": "train",
            "tenant": "a",
            "queue": "default",
            "priority": 0,
            "sizes": [
                {"num_nodes": 1, "num_gpus": 4, "model": None, "cpus": 16.0, "memory_mib": 32_000},
                {"num_nodes": 1, "num_gpus": 2, "model": None, "cpus": 8.0, "memory_mib": 16_000},
                {"num_nodes": 1, "num_gpus": 1, "model": None, "cpus": 4.0, "memory_mib": 8_000},
            ],
            "total": 9_000.0,
            "throughput": {"V100": 12.0},
            "restart_cost_s": 45.0,
            "max_duration_s": 3_600.0,
            "data": ["images"],
            "envs": {},
        },
    }


def test_of_a_large_pool_the_freest_nodes_are_listed() -> None:
    nodes = tuple(node(f"n{i:03}", "V100", (i,)) for i in range(NODES_MAX + 10))
    told = question_of("7", SPEC, Offer(Snapshot(1, 0.0, nodes, (), Amount()), 0.0), DEFAULTS)["offer"]
    assert (len(told["nodes"]), told["nodes_in_all"], told["nodes"][0]["name"]) == (NODES_MAX, NODES_MAX + 10, "n521")
    assert told["models"]["V100"]["devices"] == NODES_MAX + 10


def test_what_a_bid_leaves_out_is_that_of_the_job() -> None:
    assert bids_of([{}], SPEC, DEFAULTS) == (replace(DEFAULTS[0], confidence=0.0),)


def test_everything_that_a_bid_may_say() -> None:
    said = {
        "num_gpus": 2,
        "num_nodes": 1,
        "model": "V100",
        "locality": "rack",
        "preferred": {"n1": 0, "n0": 2.5},
        "throughput": 3.0,
        "confidence": 1,
        "remaining_s": 60,
        "restart_cost_s": 5.0,
    }
    (bid,) = bids_of([said], SPEC, DEFAULTS)  # type: ignore[misc] # a refusal fails here
    assert bid == Bid(
        shape(2, "V100"),
        Locality.RACK,
        (Preference(NodeId("n1"), 0.0), Preference(NodeId("n0"), 2.5)),
        3.0,
        1.0,
        60.0,
        5.0,
        checkpoint_age_s=7.0,
        tenure_s=600.0,
    )


def test_the_default_bids_are_a_right_answer() -> None:
    bids = tuple(Bid(one, Locality.NODE, (), 2.0, 0.5, 9.0, 45.0, 7.0, 600.0) for one in SPEC.shapes)
    assert bids_of([document_of_bid(bid) for bid in bids], SPEC, bids) == bids
    share = JobSpec("x", TenantId("a"), GangShape(2, Demand(250, "H100")), ("x",))
    mine = (Bid(share.shape, restart_cost_s=30.0),)
    assert bids_of([document_of_bid(bid) for bid in mine], share, mine) == mine


def test_a_model_must_be_what_the_job_asks_for() -> None:
    asks = replace(SPEC, shape=shape(4, "H100"), shapes=())
    (bid,) = bids_of([{"model": "NVIDIA H100 80GB HBM3"}], asks, ())  # type: ignore[misc] # a refusal fails here
    assert bid.shape == shape(4, "H100")
    assert isinstance(bids_of([{"model": "K80"}], asks, ()), Refusal)


@pytest.mark.parametrize(
    "answer,words",
    [
        (None, "must return a list of 1 to 32 bids, not no list"),
        ({}, "not no list"),
        ([], "not 0 bids"),
        ([{}] * 33, "not 33 bids"),
        ([5], "bid 0: must be a mapping, not 5"),
        ([{}, {"num_gpu": 2}], 'bid 1: "num_gpu" is no part of a bid; known are confidence'),
        ([{"num_gpus": 8}], "1 nodes with 8 GPUs each is no size of the job"),
        ([{"num_gpus": 2, "num_nodes": 2}], "2 nodes with 2 GPUs each is no size of the job"),
        ([{"num_gpus": "2"}], 'num_gpus must be a number at least 0, not "2"'),
        ([{"num_nodes": 0}], "num_nodes must be a number at least 1, not 0"),
        ([{"model": 5}], "model 5 is no device model"),
        ([{"model": "x" * 500}], "is no device model"),
        ([{"locality": "moon"}], 'locality must be one of node, nvlink, rack, any, not "moon"'),
        ([{"locality": []}], "locality must be one of"),
        ([{"preferred": ["n0"]}], "preferred must be a mapping"),
        ([{"preferred": {"n0": -1}}], "n0 must be a number at least 0, not -1"),
        ([{"throughput": 0}], "throughput must be a number above 0, not 0"),
        ([{"throughput": True}], "throughput must be a number above 0, not true"),
        ([{"throughput": float("inf")}], "throughput must be a number above 0"),
        ([{"throughput": 10**400}], "throughput must be a number above 0 and at most 1e+15, not 1000"),
        ([{"num_gpus": 1e308}], "num_gpus must be a number at least 0 and at most 1e+15, not 1e+308"),
        ([{"num_nodes": 10**400}], "num_nodes must be a number at least 1 and at most 1e+15, not 1000"),
        ([{"remaining_s": 1e300}], "remaining_s must be a number at least 0 and at most 1e+15, not 1e+300"),
        ([{"confidence": 1.5}], "confidence must be a number at least 0 and at most 1, not 1.5"),
        ([{"remaining_s": -1}], "remaining_s must be a number at least 0, not -1"),
        ([{"restart_cost_s": 1e9}], "restart_cost_s must be a number at least 0 and at most 45"),
        ([{"tenure_s": 1e9}], '"tenure_s" is no part of a bid'),
    ],
)
def test_nonsense_is_refused_in_one_line(answer: object, words: str) -> None:
    refusal = bids_of(answer, SPEC, DEFAULTS)
    assert isinstance(refusal, Refusal)
    assert words in refusal.message
    assert (refusal.code, refusal.field) == ("INVALID_FIELD", "appmaster")
    assert refusal.line().isprintable()
    assert len(refusal.line()) < 400


fields = st.sampled_from(["num_gpus", "num_nodes", "model", "locality", "preferred", "throughput", "confidence", "x"])
scalars = st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5)
flat: st.SearchStrategy[Any] = (
    scalars | st.lists(scalars, max_size=3) | st.dictionaries(st.text(max_size=5), scalars, max_size=3)
)
values: st.SearchStrategy[Any] = (
    flat | st.lists(flat, max_size=3) | st.dictionaries(st.text(max_size=5), flat, max_size=3)
)


@given(st.lists(st.dictionaries(fields, values, max_size=4) | values, max_size=3) | values)
def test_any_answer_is_read_or_refused(answer: object) -> None:
    found = bids_of(answer, SPEC, DEFAULTS)
    if isinstance(found, Refusal):
        assert found.line().isprintable()
    else:
        assert all(bid.shape.demand.gpu_milli in (1_000, 2_000, 4_000) for bid in found)
