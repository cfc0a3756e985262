"""What needs can use of a node and what placing takes from them: by hand, and against a plain second implementation."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.model.ids import GangKey, JobId, QueueName, TenantId
from corral.model.offer import Bid, Candidate, Holding, NodeOffer
from corral.model.resources import MILLI, Demand, GangShape, Placement
from corral.policy.arbitration import PendingIndex, arbitrate
from corral.policy.fragmentation import NEEDS_MAX, PRIOR_NEEDS, Gauge, Key, Mix, Need, Prices, gauge, learnt, mix_of
from corral.policy.placement import Wish, place, place_first
from corral.policy.trial import Trial
from tests.unit.policy.building import CONFIG, candidate, node_spec, offer, place_on, shape, snapshot


def key(*free: int, cpus: int = 64, memory: int = 1_000, model: str = "H100") -> Key:
    return tuple((model, 0, milli) for milli in sorted(free)), cpus * MILLI, memory


def usable(need: Need, *nodes: Key) -> list[float]:
    measured = Gauge(((need, 1.0),))
    return [measured.state(node).usable[0] for node in nodes]


def test_a_share_uses_every_device_with_enough_left() -> None:
    # 300 and 500 of 200, 300, 500 take a 0.3; the whole device too.
    assert usable(Need(300), key(200, 300, 500), key(200, 1000), key(200, 299)) == [800, 1000, 0]


def test_whole_devices_are_of_use_when_there_are_enough_of_them() -> None:
    assert usable(Need(2000), key(999, 1000, 1000), key(500, 1000), key(1000, 1000, 1000)) == [2000, 0, 3000]


def test_devices_are_bounded_by_the_cpus_and_the_memory_that_go_with_them() -> None:
    four = (1000,) * 4
    # 8 CPUs per device: 12 CPUs go with one and a half.
    assert usable(Need(1000, (), 8 * MILLI), key(*four, cpus=64), key(*four, cpus=12), key(*four, cpus=7)) == [
        4000,
        1500,
        0,
    ]
    assert usable(Need(500, (), 0, 100), key(*four, memory=250), key(*four, memory=99)) == [1250, 0]


def test_only_the_models_that_would_do_count() -> None:
    mixed: Key = ((("A100", 0, 1000), ("H100", 0, 1000), ("T4", 0, 1000)), MILLI, 1)
    assert usable(Need(1000, ("A100", "T4")), mixed) == [2000]
    assert usable(Need(1000), mixed) == [3000]
    assert usable(Need(1000, ("L4",)), mixed) == [0]


def test_prices_add_up_to_one_device_and_rise_where_room_is_scarce() -> None:
    measured = Gauge(((Need(1000), 1.0), (Need(1000, ("T4",)), 1.0)))
    h100, t4 = measured.state(key(1000, 1000)), measured.state(key(1000, 1000, model="T4"))
    prices = Prices(measured, {h100: 2, t4: 1})
    # Totals with one task of each on top: 6000 + 1000 and 2000 + 1000 milli. Prices as 1/49 to 1/9: 9 : 49 of 58.
    assert prices.value(h100) == pytest.approx(2 * 9 / 58)
    assert prices.value(t4) == pytest.approx(2.0)
    one = measured.state(key(0, 1000))
    assert prices.loss(h100, one) == pytest.approx(9 / 58)


def test_a_mix_merges_what_differs_little_and_leaves_out_needs_without_devices() -> None:
    counts = {
        Need(1000, (), 8_000, 1_000): 3.0,
        Need(1000, (), 8_100, 1_010): 1.0,
        Need(2000, (), 8_000, 1_000): 4.0,
        Need(0, (), 1_000, 1_000): 100.0,
    }
    # One device: 4 of 8. Two devices: 4 of 8, halved for its two devices.
    assert mix_of(counts) == ((Need(1000, (), 8_000, 1_000), 0.5), (Need(2000, (), 8_000, 1_000), 0.25))
    assert mix_of({Need(0): 1.0}) == ()


def test_a_mix_keeps_the_most_frequent_needs() -> None:
    counts = {Need(1000 * n): float(n) for n in range(1, NEEDS_MAX + 11)}
    kept = {need.gpu_milli // 1000 for need, _ in mix_of(counts)}
    assert kept == set(range(11, NEEDS_MAX + 11))


def test_a_pool_learns_from_what_runs_and_what_waits() -> None:
    waits = Candidate(
        GangKey(JobId("1"), 0), TenantId("a"), QueueName("default"), 0, 0.0, 0,
        (Bid(shape(2, model="H100", cpus=4)), Bid(shape(2, model="A100", cpus=4)), Bid(shape(1, model="T4", cpus=4))),
    )  # fmt: skip
    runs = Holding(GangKey(JobId("2"), 0), TenantId("a"), tuple(place_on("n", i, rank=i) for i in range(3)), 0.0, None)
    mix = dict(learnt([runs], [(waits, 5)]))
    assert Need(2000, ("A100", "H100"), 4_000, 100) in mix
    assert Need(1000, (), 1_000, 100) in mix
    fresh = dict(learnt([], []))
    assert set(fresh) == set(PRIOR_NEEDS)
    # 4 of 10 pseudo-counts ask for one device: 2^-1.5 is the nearest half power of two.
    assert fresh[Need(1000, (), 4_000)] == pytest.approx(2**-1.5)


def test_before_anybody_asks_a_model_is_expected_to_be_asked_for_where_there_are_several() -> None:
    assert dict(learnt([], [], models=("A100",))) == dict(learnt([], []))
    mix = dict(learnt([], [], models=("A100", "H100")))
    # A quarter of ten and a half tasks: 0.0238, in half powers of two 2^-5.5.
    for model in ("A100", "H100"):
        assert mix[Need(1000, (model,), 4000)] == 2.0**-5.5
    assert mix[Need(1000, (), 4000)] == 0.5**1.5


def test_who_can_run_on_any_model_leaves_the_scarce_one_before_anybody_has_asked_for_it() -> None:
    def first_of(models: tuple[str, ...]) -> str:
        scarce = offer(node_spec("a", models=["T4"] * 2))
        plenty = [offer(node_spec(f"b{i}", models=["G2"] * 2)) for i in range(9)]
        found = place(Trial([scarce, *plenty], lambda: learnt([], [], models=models)), Wish(shape(1)))
        assert found is not None
        return found[0].node

    assert first_of(()) == "a"
    assert first_of(("G2", "T4")) == "b0"


def trial(offers: list[NodeOffer], *needs: tuple[Need, float]) -> Trial:
    return Trial(offers, lambda: needs)


def nodes_of(found: tuple[Placement, ...] | None) -> list[str]:
    assert found is not None
    return [placement.node for placement in found]


def test_a_share_goes_where_the_other_shares_lose_nothing() -> None:
    held = [place_on("a", 0, milli=600), place_on("b", 0, milli=500)]
    offers = [offer(node_spec("a", 1), held), offer(node_spec("b", 1), held)]
    wish = Wish(shape(0.3))
    # Best fit takes the 0.4 that is left on a. Where only halves are asked for besides, a is of no use to them anyway.
    assert nodes_of(place(trial(offers), wish)) == ["a"]
    assert nodes_of(place(trial(offers, (Need(500), 1.0)), wish)) == ["a"]
    # Where 0.4 is asked for, both lose it, but b's 0.5 were worth 0.5 to it, a's 0.4 only 0.4; 0.2 decides otherwise:
    # a keeps 0.1 (no use), b keeps 0.2 (of use): a loses 0.4 and b 0.3.
    assert nodes_of(place(trial(offers, (Need(400), 1.0)), wish)) == ["a"]
    assert nodes_of(place(trial(offers, (Need(200), 1.0)), wish)) == ["b"]


def test_the_chosen_device_is_the_one_that_was_scored() -> None:
    held = [place_on("a", 0, milli=600), place_on("a", 1, milli=500)]
    where = [place(trial([offer(node_spec("a", 2), held)], (Need(n), 1.0)), Wish(shape(0.3))) for n in (400, 200)]
    assert [found[0].devices[0].uuid for found in where if found] == ["a-0", "a-1"]


def test_devices_with_cpus_are_kept_for_those_who_need_cpus() -> None:
    offers = [offer(node_spec("a", 4, cpus=64)), offer(node_spec("b", 8, cpus=8))]
    hungry = (Need(1000, (), 16 * MILLI), 1.0)
    # Best fit takes the smaller node, which is the only one with 16 CPUs for a device.
    assert nodes_of(place(trial(offers), Wish(shape(1)))) == ["a"]
    assert nodes_of(place(trial(offers, hungry), Wish(shape(1)))) == ["b"]


def test_of_wishes_that_are_equally_good_the_one_that_leaves_the_scarce_model_wins() -> None:
    offers = [offer(node_spec("t", 2, "T4")), offer(node_spec("h", 8, "H100"))]
    wishes = [Wish(shape(1, model="T4")), Wish(shape(1, model="H100"))]
    mix = ((Need(1000, ("T4",)), 1.0), (Need(1000), 1.0))
    found = place_first(trial(offers, *mix), wishes)
    assert found is not None
    assert (found[0], nodes_of(found[1])) == (1, ["h"])
    full = [offer(node_spec("t", 2, "T4")), offer(node_spec("h", 1), [place_on("h", 0)])]
    found = place_first(trial(full, *mix), wishes)
    assert found is not None
    assert (found[0], nodes_of(found[1])) == (0, ["t"])
    assert place_first(trial(full, *mix), wishes[1:]) is None


def test_what_is_learnt_again_counts() -> None:
    held = [place_on("a", 0, milli=600), place_on("b", 0, milli=500)]
    mixes: list[Mix] = [((Need(200), 1.0),), ((Need(400), 1.0),)]
    view = Trial([offer(node_spec("a", 1), held), offer(node_spec("b", 1), held)], mixes.pop)
    assert nodes_of(place(view, Wish(shape(0.3)))) == ["a"]
    assert nodes_of(place(view, Wish(shape(0.3)))) == ["a"]
    view.learn_again()
    assert nodes_of(place(view, Wish(shape(0.3)))) == ["b"]


NEEDS = [Need(g, m, c * MILLI, r) for g in (250, 500, 1000, 2000) for m in ((), ("A",)) for c, r in ((0, 0), (2, 50))]


@given(st.integers(0, 10**9))
def test_losses_agree_with_exact_arithmetic_and_the_least_is_taken(seed: int) -> None:
    rng = random.Random(seed)
    offers = []
    for n in range(rng.randint(1, 4)):
        models = [rng.choice("AH")] * rng.randint(0, 3)
        held = [
            place_on(f"n{n}", d, milli=rng.choice([250, 600, 1000]), cpus=0, memory=0)
            for d in range(len(models))
            if rng.random() < 0.5
        ]
        offers.append(offer(node_spec(f"n{n}", models=models, cpus=rng.choice([3, 8]), memory=400), held))
    mix = tuple((need, rng.choice([0.25, 0.5, 1.0])) for need in rng.sample(NEEDS, 4))
    wanted = shape(rng.choice([0, 0.25, 0.5, 1, 2]))
    found = place(trial(offers, *mix), Wish(wanted))
    options = {
        (node.node, taken): exact_loss(offers, mix, node, taken, wanted.demand)
        for node in offers
        for taken in choices(node, wanted.demand)
    }
    assert (found is None) == (not options)
    if found is not None:
        (rank,) = found
        positions = tuple(int(share.uuid.rsplit("-", 1)[1]) for share in rank.devices)
        assert options[rank.node, positions] <= min(options.values()) + Fraction(1, 10**8)


def choices(node: NodeOffer, demand: Demand) -> list[tuple[int, ...]]:
    """Return every set of devices that one rank may take; whole ones of one model are all alike."""
    if node.cpus_milli < demand.cpus_milli or node.memory_mib < demand.memory_mib:
        return []
    free = [device.free_milli for device in node.devices]
    if not demand.gpu_milli:
        return [()]
    if demand.is_share:
        return [(i,) for i, milli in enumerate(free) if milli >= demand.gpu_milli]
    whole = [i for i, milli in enumerate(free) if milli == MILLI]
    return [tuple(whole[: demand.gpus_whole])] if len(whole) >= demand.gpus_whole else []


def exact_loss(offers: list[NodeOffer], mix: Mix, node: NodeOffer, taken: tuple[int, ...], demand: Demand) -> Fraction:
    """Return what a choice takes from the average need, from the definition and in fractions."""
    milli = min(MILLI, demand.gpu_milli)
    total, lost = Fraction(0), Fraction(0)
    for need, weight in mix:
        room = need.gpu_milli + sum(exact_usable(need, other, (), Demand(0, None, 0, 0), 0) for other in offers)
        price = Fraction(weight) / room**2
        before = exact_usable(need, node, (), Demand(0, None, 0, 0), 0)
        total += price
        lost += price * (before - exact_usable(need, node, taken, demand, milli))
    return lost / total / MILLI


def exact_usable(need: Need, node: NodeOffer, taken: tuple[int, ...], demand: Demand, milli: int) -> Fraction:
    cpus, memory = node.cpus_milli - demand.cpus_milli, node.memory_mib - demand.memory_mib
    free = [
        device.free_milli - (milli if i in taken else 0)
        for i, device in enumerate(node.devices)
        if not need.models or device.model in need.models
    ]
    amount = Fraction(sum(left for left in free if left >= min(MILLI, need.gpu_milli)))
    if amount < need.gpu_milli or cpus < need.cpus_milli or memory < need.memory_mib:
        return Fraction(0)
    if need.cpus_milli:
        amount = min(amount, Fraction(cpus * need.gpu_milli, need.cpus_milli))
    if need.memory_mib:
        amount = min(amount, Fraction(memory * need.gpu_milli, need.memory_mib))
    return amount


@given(st.integers(0, 10**9))
def test_what_is_remembered_changes_no_answer(seed: int) -> None:
    rng = random.Random(seed)
    kinds = [rng.choices("AH", k=rng.choice([2, 4])) for _ in range(3)]
    specs = [node_spec(f"n{i}", models=models, island=2, cpus=16) for i, models in enumerate(kinds)]
    mix = tuple((need, 1.0) for need in rng.sample(NEEDS, 5))
    wishes = [Wish(GangShape(1, Demand(rng.choice([0, 250, 500, 1000, 2000]), None, MILLI, 10))) for _ in range(12)]
    answers = []
    for remembered in (False, True):
        if not remembered:
            gauge.cache_clear()
        view, found = trial([offer(spec) for spec in specs], *mix), []
        for wish in wishes:
            found.append(place(view, wish))
            view.take(found[-1] or (), 0.0)
        answers.append(found)
    assert answers[0] == answers[1]


def test_a_round_takes_the_bid_that_goes_best_with_the_pool_among_equally_good_ones() -> None:
    specs = [node_spec("t", 2, "T4"), node_spec("h", 8, "H100")]
    either = (Bid(shape(1, model="T4")), Bid(shape(1, model="H100")))
    only = [candidate(i, shape(1, model="T4")) for i in range(10, 60)]

    def taken(bids: tuple[Bid, ...]) -> list[str]:
        index = PendingIndex([candidate(1, bids=bids, priority=1), *only])
        found = arbitrate(snapshot(specs), index, {}, {}, (), CONFIG).allocations
        return [p.node for allocation in found if allocation.key.job == "1" for p in allocation.placements]

    # T4 is scarce: fifty jobs wait for two of them.
    assert taken(either) == ["h"]
    # Where the job is faster on T4, that is what it bids for.
    faster = (Bid(shape(1, model="T4"), throughput=2.0), either[1])
    assert taken(faster) == ["t"]
