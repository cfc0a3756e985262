"""Who is in the way of an award: found by node, and the same as by looking at everybody."""

from __future__ import annotations

import random

from corral.control.awards import Holders, overlaps
from corral.model.ids import TenantId
from corral.model.market import Award
from corral.model.offer import Bid
from tests.unit.policy.building import candidate, holding, place_on, shape


def test_holders_in_the_way_are_those_on_the_devices_of_an_award_and_its_own_gang() -> None:
    rng = random.Random(0)
    holdings = [
        holding(job, *(place_on(f"n{rng.randrange(20)}", *rng.sample(range(8), rng.randrange(3))) for _ in range(2)))
        for job in range(60)
    ]
    holders, found = Holders(holdings), 0
    for job in range(120):
        placements = tuple(place_on(f"n{rng.randrange(25)}", *rng.sample(range(8), rng.randrange(3))) for _ in "ab")
        key = candidate(job).key
        award = Award(key, TenantId("a"), Bid(shape(1)), placements)
        everybody = [h for h in holdings if h.key == key or overlaps(placements, h)]
        assert sorted(h.key for h in holders.in_the_way(award)) == sorted(h.key for h in everybody)
        found += len(everybody)
    assert found > 60
