"""The default bidder: nearest to the data, over sizes, device models and localities where they make a difference."""

from __future__ import annotations

import pytest

from corral.model.events import JobSubmitted
from corral.model.experience import Rate, WorkSpec
from corral.model.ids import JobId, NodeId, TenantId
from corral.model.job import CheckpointSpec, Gang, Job, JobSpec
from corral.model.offer import Bid, Locality, NodeOffer, Offer, Preference, Proposal, Snapshot
from corral.model.resources import Amount, GangShape
from corral.model.transitions import new_job
from corral.policy.bidding import SPLIT, SPREAD, check_proposal, claimed, default_bids
from corral.policy.config import BIDS_MAX, SchedulingConfig
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


# ---- sizes, models, localities -------------------------------------------------------------------------------------


def mixed(count: int = 1) -> list[NodeOffer]:
    """Return nodes with 8 devices of each of three models in one rack."""
    return [offer(node_spec(f"{model}-{i}", 8, model)) for model in ("K80", "P100", "V100") for i in range(count)]


def words(bids: tuple[Bid, ...]) -> list[tuple[int, float, str | None, Locality]]:
    return [(b.shape.ranks, b.shape.demand.gpu_milli / 1000, b.shape.demand.gpu_model, b.locality) for b in bids]


def elastic(*sizes: GangShape, **fields: object) -> JobSpec:
    return JobSpec(name="t", tenant=TenantId("a"), shape=sizes[0], shapes=sizes, argv=("x",), **fields)  # type: ignore[arg-type]


def test_models_have_no_bids_of_their_own_while_nothing_tells_them_apart() -> None:
    (bid,) = default_bids(spec(), offered(mixed()))
    assert bid == Bid(shape(2), restart_cost_s=30.0, tenure_s=600.0)


def test_each_model_has_a_bid_where_they_are_believed_to_differ_fastest_first() -> None:
    work = WorkSpec(total=3_600.0, throughput={"V100": 10.0, "P100": 5.0, "K80": 1.0})
    bids = default_bids(spec(work=work), offered(mixed()))
    assert words(bids) == [
        (1, 2, "V100", Locality.ANY),
        (1, 2, "P100", Locality.ANY),
        (1, 2, "K80", Locality.ANY),
        (1, 2, None, Locality.ANY),
    ]
    # A claim without a number of devices is about the declared size; devices of several models go as the slowest.
    assert [bid.throughput for bid in bids] == pytest.approx([10.0, 5.0, 1.0, 1.0])
    assert [bid.remaining_s for bid in bids] == pytest.approx([360.0, 720.0, 3_600.0, 3_600.0])


def test_a_model_that_can_never_take_the_gang_gets_no_bid() -> None:
    work = WorkSpec(throughput={"V100": 10.0, "P100": 5.0, "K80": 1.0})
    nodes = [offer(node_spec("k", 1, "K80")), *mixed()[1:]]
    assert [m for _, _, m, _ in words(default_bids(spec(work=work), offered(nodes)))] == ["V100", "P100", None]


def test_what_was_measured_of_the_family_tells_models_apart_without_any_claim() -> None:
    seen = Offer(offered(mixed()).snapshot, 0.0, rates=(Rate("V100", 2, 8.0, 0.9), Rate("K80", 2, 2.0, 0.9)))
    bids = default_bids(spec(), seen)
    assert words(bids)[0][2] == "V100"
    assert {m for _, _, m, _ in words(bids)} == {"V100", "P100", "K80", None}
    assert bids[0].throughput == pytest.approx(8.0, rel=0.02)
    assert bids[0].confidence > 0.8
    # Nobody has seen a P100: it is thought to be between the two, with less confidence.
    p100 = next(b for b in bids if b.shape.demand.gpu_model == "P100")
    assert 2.0 < p100.throughput < 8.0
    assert p100.confidence < 0.2


def test_a_declared_model_stays_and_measurement_gives_its_throughput() -> None:
    job = JobSpec(name="t", tenant=TenantId("a"), shape=shape(1, model="p100"), argv=("x",), work=WorkSpec(total=100.0))
    (bid,) = default_bids(job, Offer(offered(mixed()).snapshot, 0.0, rates=(Rate("P100", 1, 4.0, 0.95),)))
    assert bid.shape == job.shape
    assert bid.remaining_s == pytest.approx(25.0, rel=0.02)


def test_an_elastic_job_bids_for_every_size_largest_first() -> None:
    sizes = [shape(1, ranks=n) for n in (8, 4, 2, 1)]
    bids = default_bids(elastic(*sizes), offered(mixed()))
    assert [bid.shape.ranks for bid in bids] == [8, 4, 2, 1]
    # (n / 8) ** 0.9, relative to the declared size.
    assert [bid.throughput for bid in bids] == pytest.approx([1.0, 0.535887, 0.287175, 0.153893], abs=1e-5)
    assert {bid.confidence for bid in bids} == {0.0}


def test_work_is_nothing_to_go_by_while_no_speed_is_known() -> None:
    (bid,) = default_bids(spec(work=WorkSpec(total=100.0)), offered(mixed()))
    assert bid.remaining_s is None


def test_several_ranks_would_rather_be_in_one_rack_but_need_not() -> None:
    nodes = [offer(node_spec(f"n{i}", 8, rack=f"rack-{i // 2}")) for i in range(4)]
    gang = JobSpec(name="t", tenant=TenantId("a"), shape=shape(8, ranks=2), argv=("x",))
    bids = default_bids(gang, offered(nodes))
    assert [(b.locality, b.throughput) for b in bids] == [(Locality.RACK, 1.0), (Locality.ANY, SPREAD)]
    large = JobSpec(name="t", tenant=TenantId("a"), shape=shape(8, ranks=3), argv=("x",))
    assert [b.locality for b in default_bids(large, offered(nodes))] == [Locality.ANY]
    assert [b.locality for b in default_bids(gang, offered(nodes[:2]))] == [Locality.ANY]


def test_devices_of_a_rank_would_rather_be_joined_where_they_might_not_be() -> None:
    halves = [offer(node_spec("n", 8, island=4))]
    four = JobSpec(name="t", tenant=TenantId("a"), shape=shape(4), argv=("x",))
    bids = default_bids(four, offered(halves))
    assert [(b.locality, b.throughput) for b in bids] == [(Locality.NVLINK, 1.0), (Locality.ANY, SPLIT)]
    six = JobSpec(name="t", tenant=TenantId("a"), shape=shape(6), argv=("x",))
    for job, nodes in ((six, halves), (four, [offer(node_spec("n", 8))]), (four, [offer(node_spec("n", 8, island=1))])):
        assert [b.locality for b in default_bids(job, offered(nodes))] == [Locality.ANY]


def test_of_too_many_bids_the_best_and_the_smallest_are_kept() -> None:
    nodes = [offer(node_spec(f"{m}-{i}", 8, m, rack=f"rack-{i}")) for m in ("K80", "P100", "V100") for i in range(2)]
    sizes = [shape(1, ranks=n) for n in range(16, 0, -1)]
    work = WorkSpec(throughput={"V100": 10.0, "P100": 5.0, "K80": 1.0})
    bids = default_bids(elastic(*sizes, work=work), offered(nodes))
    assert len(bids) == BIDS_MAX
    rates = [bid.throughput for bid in bids]
    assert rates == sorted(rates, reverse=True)
    assert bids[0].shape == shape(1, ranks=16, model="V100")
    # One rank on any single device of each model, and on two of whatever model.
    assert {(1, m) for m in ("K80", "P100", "V100")} <= {(b.shape.ranks, b.shape.demand.gpu_model) for b in bids}
    assert any(b.shape.ranks == 2 and b.shape.demand.gpu_model is None for b in bids)


def test_the_most_exact_claim_counts() -> None:
    claims = {"A100": 1.0, "A100:4": 3.0, "A100-80GB": 2.0, "H100": 9.0}.items()
    found = claimed(claims, ("A100", "A100-80GB", "V100"), 4)
    assert found == {("A100", 4): 3.0, ("A100-80GB", 4): 3.0}
    assert claimed(claims, ("A100-80GB",), 1) == {("A100-80GB", 1): 2.0, ("A100-80GB", 4): 3.0}


def test_the_arbiter_takes_the_fastest_model_that_is_free() -> None:
    work = WorkSpec(throughput={"V100": 10.0, "P100": 5.0, "K80": 1.0})
    specs = [node_spec(m, 2, m) for m in ("K80", "P100", "V100")]
    bids = default_bids(spec(work=work), offered([offer(one) for one in specs]))
    round_ = run_round(specs, [candidate(i, bids=bids) for i in (1, 2, 3)])
    assert [nodes_of(round_, i) for i in (1, 2, 3)] == [["V100"], ["P100"], ["K80"]]


# ---- the answers of users' own proposers ---------------------------------------------------------------------------


def job_of(what: JobSpec) -> Job:
    return new_job(JobSubmitted(at=1.0, job=JobId("7"), spec=what))


def refused(what: JobSpec, *bids: Bid, job: str = "7") -> str | None:
    refusal = check_proposal(job_of(what), Proposal(JobId(job), 1, bids), SchedulingConfig())
    return None if refusal is None else refusal.line()


def test_a_proposer_may_choose_sizes_models_and_localities() -> None:
    sizes = elastic(shape(1, ranks=4), shape(1, ranks=2))
    for wished in (shape(1, ranks=4), shape(1, ranks=2, model="H100"), shape(1, ranks=4, model="whatever there is")):
        for locality in Locality:
            assert refused(sizes, Bid(wished, locality, throughput=3.0, confidence=1.0, remaining_s=5.0)) is None
    assert refused(spec(), Bid(shape(2), restart_cost_s=1.0, tenure_s=0.0, checkpoint_age_s=9.0)) is None
    assert refused(spec(), Bid(shape(2), restart_cost_s=30.0, tenure_s=600.0)) is None


@pytest.mark.parametrize(
    "bid, words",
    [
        (Bid(shape(3)), "bids[0].shape: is none of the shapes that the job declared"),
        (Bid(shape(2, ranks=2)), "bids[0].shape: is none of the shapes that the job declared"),
        (Bid(shape(2, cpus=2)), "bids[0].shape: is none of the shapes that the job declared"),
        (Bid(shape(2, model="")), "bids[0].shape: is none of the shapes that the job declared"),
        (Bid(shape(2, model="x" * 129)), "bids[0].shape: is none of the shapes that the job declared"),
        (Bid(shape(2), throughput=0.0), "bids[0].throughput: must be above 0"),
        (Bid(shape(2), throughput=-1.0), "bids[0].throughput: is -1.0, not a number from 0"),
        (Bid(shape(2), throughput=float("inf")), "bids[0].throughput: is inf, not a number from 0"),
        (Bid(shape(2), confidence=1.5), "bids[0].confidence: is 1.5, not a number from 0 to 1"),
        (Bid(shape(2), remaining_s=float("nan")), "bids[0].remaining_s: is nan, not a number from 0"),
        (Bid(shape(2), restart_cost_s=31.0), "bids[0].restart_cost_s: is 31.0, not a number from 0 to 30"),
        (Bid(shape(2), tenure_s=601.0), "bids[0].tenure_s: is 601.0, not a number from 0 to 600"),
        (
            Bid(shape(2), preferred=(Preference(NodeId("n"), -1.0),)),
            "bids[0].preferred: has a cold start that is no number of seconds",
        ),
        (
            Bid(shape(2), preferred=(Preference(NodeId("n"), 1.0),) * 65),
            "bids[0].preferred: has 65 nodes, more than 64",
        ),
    ],
)
def test_nonsense_is_named(bid: Bid, words: str) -> None:
    assert refused(spec(), bid) == words


def test_a_model_that_the_job_named_stays() -> None:
    fixed = JobSpec(name="t", tenant=TenantId("a"), shape=shape(2, model="V100"), argv=("x",))
    assert refused(fixed, Bid(shape(2, model="V100"))) is None
    assert refused(fixed, Bid(shape(2))) is not None
    assert refused(fixed, Bid(shape(2, model="A100"))) is not None


def test_the_number_of_bids_and_the_job_are_checked() -> None:
    assert refused(spec()) == "bids: are 0, not 1 to 32"
    assert refused(spec(), *[Bid(shape(2))] * 33) == "bids: are 33, not 1 to 32"
    assert refused(spec(), Bid(shape(2)), job="8") == "job: is '8', not 7"


def test_the_default_bids_pass_their_own_check() -> None:
    work = WorkSpec(total=10.0, throughput={"V100": 10.0, "P100": 5.0, "K80": 1.0})
    sizes = elastic(*[shape(1, ranks=n) for n in (8, 4, 2, 1)], work=work)
    assert refused(sizes, *default_bids(sizes, offered(mixed(2)))) is None
