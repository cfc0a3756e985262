"""Rounds that remember decide as rounds that do not; a start is the first at which a gang fits."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from msgspec.structs import replace

from corral.model.offer import Bid, Holding, NodeOffer, Reservation, Snapshot
from corral.policy.arbitration import arbitrate
from corral.policy.memory import Memory
from corral.policy.pending import PendingIndex
from corral.policy.placement import Wish, place
from corral.policy.reservation import better, plan, renewed
from corral.policy.trial import Trial
from tests.unit.policy.building import CONFIG, NOW, candidate, node_spec, queue, snapshot, standings, tenant
from tests.unit.policy.test_arbitration_properties import random_candidates, random_holdings, random_pool, random_shape


class Kept:
    """Snapshots whose offers are the same objects while they say the same, as those of a board are."""

    def __init__(self) -> None:
        self._offers: dict[NodeOffer, NodeOffer] = {}

    def of(self, shot: Snapshot) -> Snapshot:
        return replace(shot, nodes=tuple(self._offers.setdefault(offer, offer) for offer in shot.nodes))


@given(st.integers(0, 10**9))
@hypothesis_settings(max_examples=150)
def test_what_is_remembered_never_changes_a_verdict(seed: int) -> None:
    rng = random.Random(seed)
    specs = [*random_pool(rng), node_spec("node-9", rng.randint(1, 4))]
    memory, kept = Memory(), Kept()
    holdings = random_holdings(rng, specs)
    waiting = PendingIndex(random_candidates(rng))
    reservations: Sequence[Reservation] = ()
    tenants = [tenant("a", limit=3), tenant("b", 2), tenant("c", guaranteed=2)]
    for step in range(6):
        at = NOW + 5.0 * step
        there = specs if rng.random() < 0.8 else specs[1:]
        shot = kept.of(snapshot(there, holdings, at))
        stand, queues = standings(*tenants, holdings=holdings), dict([queue(), queue("small", limit=4)])
        fresh = arbitrate(shot, waiting, stand, queues, reservations, CONFIG)
        assert arbitrate(shot, waiting, stand, queues, reservations, CONFIG, (), memory) == fresh
        reservations = fresh.reservations
        for won in fresh.allocations:
            gone = waiting.remove(won.key)
            assert gone is not None
            ends = None if gone.max_duration_s is None else at + gone.max_duration_s
            holdings.append(Holding(won.key, gone.tenant, won.placements, at, ends, tenure_until=at + 20))
        holdings = [h for h in holdings if rng.random() < 0.8]
        for more in random_candidates(rng)[: rng.randint(0, 2)]:
            waiting.add(replace(more, key=candidate(100 * (step + 1) + int(more.key.job)).key))


@given(st.integers(0, 10**9))
@hypothesis_settings(max_examples=200)
def test_a_reservation_is_for_the_first_moment_at_which_the_gang_fits(seed: int) -> None:
    rng = random.Random(seed)
    specs = random_pool(rng)
    holdings = random_holdings(rng, specs)
    shot = snapshot(specs, holdings)
    bids = tuple(Bid(random_shape(rng)) for _ in range(rng.randint(1, 2)))
    what = replace(candidate(1), bids=bids)
    found = plan(what, bids, Trial(shot.nodes), holdings, (), NOW, CONFIG)

    def fits(until: float) -> bool:
        left = [h for h in holdings if h.ends_at is None or h.ends_at > until]
        if until == math.inf:
            left = []
        return any(place(Trial(snapshot(specs, left).nodes), Wish(bid.shape)) is not None for bid in bids)

    ends = sorted({NOW, *(h.ends_at for h in holdings if h.ends_at is not None)})
    first = next((end for end in ends if fits(end)), None)
    if found is None:
        assert not fits(math.inf)
    else:
        assert fits(math.inf)
        assert found.reservation.start_at == first


@given(st.integers(0, 10**9))
@hypothesis_settings(max_examples=300)
def test_a_reservation_is_renewed_as_if_a_new_plan_were_always_made(seed: int) -> None:
    rng = random.Random(seed)
    specs = random_pool(rng)
    before = random_holdings(rng, specs)
    what = candidate(1, random_shape(rng))
    first = plan(what, what.bids, Trial(snapshot(specs, before).nodes), before, (), NOW, CONFIG)
    if first is None:
        return
    at = NOW + rng.choice([0, 5, 40, 80])
    after = [h for h in before if rng.random() < 0.8]
    trial = Trial(snapshot(specs, after, at).nodes)
    new = plan(what, what.bids, trial, after, (), at, CONFIG)
    assert new is not None
    expected = better(first.reservation, new, trial.offers, after, at, CONFIG)
    assert renewed(first.reservation, what, what.bids, trial, after, (), at, CONFIG) == expected
