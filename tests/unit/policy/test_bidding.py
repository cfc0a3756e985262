"""The default bidder: one rigid shape, nearest to its data."""

from __future__ import annotations

from corral.model.ids import NodeId, TenantId
from corral.model.job import CheckpointSpec, Gang, JobSpec
from corral.model.offer import Bid, NodeOffer, Offer, Preference, Snapshot
from corral.model.resources import Amount
from corral.policy.bidding import default_bids
from corral.policy.config import BIDS_MAX
from tests.unit.policy.building import NOW, candidate, node_spec, nodes_of, offer, run_round, shape

NODES = [
    offer(node_spec("cold")),
    offer(node_spec("half"), shards=["train-0", "other"]),
    offer(node_spec("small", 1), shards=["train-0", "train-1", "train-2"]),
    offer(node_spec("warm"), shards=["train-0", "train-1"]),
]


def spec(**fields: object) -> JobSpec:
    return JobSpec(name="t", tenant=TenantId("a"), shape=shape(2), argv=("x",), **fields)  # type: ignore[arg-type]


def offered(nodes: list[NodeOffer]) -> Offer:
    return Offer(Snapshot(1, NOW, tuple(nodes), (), Amount()), credit=0.0)


def test_without_data_every_node_is_as_good() -> None:
    (bid,) = default_bids(spec(), offered(NODES))
    assert bid == Bid(shape(2), restart_cost_s=30.0, tenure_s=600.0)


def test_nodes_with_shards_are_preferred_by_what_is_missing() -> None:
    (bid,) = default_bids(spec(data=("train-0", "train-1", "train-2")), offered(NODES))
    # 10 s for each missing shard; nodes without any are not listed, nor those that could never take a rank.
    assert bid.preferred == (Preference(NodeId("warm"), 10.0), Preference(NodeId("half"), 20.0))


def test_the_arbiter_follows_the_data() -> None:
    bids = default_bids(spec(data=("train-0", "train-1")), offered(NODES))
    specs = [node_spec(n.node, len(n.devices)) for n in NODES]
    assert nodes_of(run_round(specs, [candidate(1, bids=bids)]), 1) == ["warm"]
    # When the best node is taken, the next best is better than waiting.
    assert nodes_of(run_round(specs[:2], [candidate(1, bids=bids)]), 1) == ["half"]
    assert nodes_of(run_round(specs[:1], [candidate(1, bids=bids)]), 1) == ["cold"]


def test_bids_are_made_when_nothing_fits_and_are_few() -> None:
    assert len(default_bids(spec(data=("x",)), offered([]))) == 1
    many = [offer(node_spec(f"n{i:03}"), shards=["x"]) for i in range(200)]
    bids = default_bids(spec(data=("x",)), offered(many))
    assert len(bids) <= BIDS_MAX
    assert len(bids[0].preferred) == 64


def test_restart_cost_tenure_and_the_age_of_the_last_checkpoint_are_stated() -> None:
    job = spec(restart_cost_s=100.0, checkpoint=CheckpointSpec())
    running = Gang(0, (), started_at=NOW - 40)
    (bid,) = default_bids(job, offered(NODES), gang=running)
    assert (bid.restart_cost_s, bid.tenure_s, bid.checkpoint_age_s) == (100.0, 1_000.0, 40.0)
    assert default_bids(spec(), offered(NODES), gang=running)[0].checkpoint_age_s is None
