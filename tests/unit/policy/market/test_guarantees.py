"""Guarantees are held, and what is placed is near the best that could be placed, against brute force."""

from __future__ import annotations

import itertools
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from corral.model.offer import Bid, Candidate
from corral.policy.market.solve import solve
from tests.unit.policy.building import node_spec, place_on, shape, tenant
from tests.unit.policy.market.scenes import PLAIN, market, runs, waits

ONE = Bid(shape(1), restart_cost_s=30.0)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9))
def test_every_tenant_gets_its_guarantee_as_far_as_it_can_use_it(seed: int) -> None:
    rng = random.Random(seed)
    floors = {name: rng.randint(0, 4) for name in "ab"}
    tenants = [tenant("a", guaranteed=floors["a"]), tenant("b", guaranteed=floors["b"]), tenant("c")]
    running = []
    for i in range(8):
        name, remaining, unsaved = rng.choice("abc"), rng.lognormvariate(7, 2), rng.uniform(0, 500)
        running.append(runs(i, ONE, place_on("n", i), tenant=name, remaining=remaining, unsaved=unsaved))
    jobs = [waits(100 + i, ONE, tenant=rng.choice("abc"), remaining=rng.lognormvariate(7, 2)) for i in range(20)]
    plan = solve(market([node_spec("n", 8)], jobs, running=running, tenants=tenants), PLAIN)
    gone = {eviction.key for eviction in plan.evictions}
    after = [h.tenant for h in running if h.key not in gone] + [award.tenant for award in plan.awards]
    assert len(after) == 8
    for name, floor in floors.items():
        wanted = sum(h.tenant == name for h in running) + sum(job.tenant == name for job in jobs)
        assert sum(owner == name for owner in after) >= min(floor, wanted)


def best_placement(jobs: list[Candidate], nodes: list[int]) -> float:
    """Return the best worth of one-rank jobs on nodes with so many devices, by trying all."""
    best, total = 0.0, sum(nodes)
    for where in itertools.product(range(len(nodes) + 1), repeat=len(jobs)):
        left = list(nodes)
        value = 0.0
        for job, node in zip(jobs, where, strict=True):
            if node < len(nodes):
                size = job.shape.demand.gpus_whole
                left[node] -= size
                value += size / total / (job.remaining_s or 1.0)
        if min(left) >= 0:
            best = max(best, value)
    return best


def test_what_is_placed_is_near_the_best_that_can_be_placed() -> None:
    ratios = []
    for seed in range(80):
        rng = random.Random(seed)
        sizes = [rng.randint(2, 4) for _ in range(3)]
        jobs = [waits(i, Bid(shape(rng.choice((1, 2, 2, 3, 4)))), remaining=rng.uniform(50, 500)) for i in range(7)]
        specs = [node_spec(f"n{i}", size, cpus=256, memory=10**6) for i, size in enumerate(sizes)]
        plan = solve(market(specs, jobs), PLAIN)
        best = best_placement(jobs, sizes)
        assert plan.value <= best * (1 + 1e-9)
        assert plan.bound >= best * (1 - 1e-6)
        ratios.append(plan.value / best)
    assert sum(ratios) / len(ratios) > 0.98
