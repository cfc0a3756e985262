"""Whole histories in a small world: shares converge to weights, gangs do not starve, nothing idles without a reason."""

from __future__ import annotations

import random

import pytest

from corral.model.offer import Arbitration
from corral.policy.config import SchedulingConfig
from tests.unit.policy.building import candidate, node_spec, shape, tenant
from tests.unit.policy.world import World

POOL = [node_spec(f"node-{i}") for i in range(4)]


def backlog(world: World, rng: random.Random, names: str, sizes: tuple[float, ...], *, declared: bool) -> None:
    """Keep 64 jobs of 5 to 15 seconds waiting for each tenant."""
    for name in names:
        while world.waiting(name) < 64:
            like = candidate(0, shape(rng.choice(sizes)), tenant=name)
            world.submit(like, rng.uniform(5, 15), declared=declared)


@pytest.mark.parametrize("sizes", [(1,), (1, 2), (0.5, 1, 2), (1, 2, 4)], ids=str)
@pytest.mark.parametrize("declared", [False, True], ids=["undeclared", "declared"])
def test_held_shares_converge_to_the_weights(sizes: tuple[float, ...], declared: bool) -> None:
    rng = random.Random(1)
    world = World(POOL, [tenant("a", 1), tenant("b", 2), tenant("c", 3)])
    world.refill = lambda w: backlog(w, rng, "abc", sizes, declared=declared)
    world.run_until(30)
    before = dict(world.integral)
    # While a node drains for a job of 4 devices, small ones of others run: it takes longer until that evens out.
    seconds = 300 if max(sizes) <= 2 else 900
    world.run_until(30 + seconds)
    shares = {name: (world.integral[name] - before[name]) / seconds for name in world.integral}
    used = sum(shares.values())
    # Jobs of 4 devices leave a few idle while a reservation drains a node; single devices never do.
    assert used > (0.995 if max(sizes) <= 1 else 0.93)
    for name, weight in (("a", 1), ("b", 2), ("c", 3)):
        assert abs(shares[name] / used - weight / 6) <= 0.03, shares  # type: ignore[index]


def test_a_tenant_that_was_idle_gets_more_than_due_but_never_everything_and_not_for_long() -> None:
    rng = random.Random(2)
    world = World(POOL, [tenant("a"), tenant("b")], SchedulingConfig(usage_half_life_s=120))
    world.decayed[tenant("a").id] = 1.0
    world.refill = lambda w: backlog(w, rng, "ab" if w.now >= 20 else "a", (1,), declared=False)

    def share_of_b(begin: float, seconds: float) -> float:
        world.run_until(begin)
        before = world.integral[tenant("b").id]
        world.run_until(begin + seconds)
        return (world.integral[tenant("b").id] - before) / seconds

    # held + 0.5 * past is level for both: b holds up to 0.75 at first, and 0.5 once the past is forgotten.
    assert 0.65 < share_of_b(50, 60) < 0.76
    assert 0.47 < share_of_b(600, 60) < 0.55


@pytest.mark.parametrize("declared", [True, False], ids=["declared", "undeclared"])
@pytest.mark.parametrize("owner", ["a", "b"], ids=["same tenant", "other tenant"])
@pytest.mark.parametrize("sizes", [(1,), (0.5, 1, 2)], ids=str)
def test_a_big_gang_does_not_starve_behind_endless_small_jobs(
    declared: bool, owner: str, sizes: tuple[float, ...]
) -> None:
    rng = random.Random(3)
    world = World(POOL, [tenant("a"), tenant("b"), tenant("c", 5)])
    world.refill = lambda w: backlog(w, rng, "ac", sizes, declared=declared)
    world.run_until(50)
    if owner == "a":
        # Behind its own tenant's 64 waiting jobs: an older number in the order of submission.
        like = candidate(0, shape(8, ranks=4), tenant="a", priority=1)
    else:
        like = candidate(0, shape(8, ranks=4), tenant="b")
    gang = world.submit(like, 20.0, declared=declared)
    world.run_until(50 + 3 * 15)
    # Once reserved, every holder of at most 15 s leaves; the tenant of the gang has to have its turn first.
    assert world.started.get(gang, 1e9) <= 50 + 2 * 15 + 1


def test_gangs_of_two_tenants_take_turns() -> None:
    world = World(POOL, [tenant("a"), tenant("b")])
    order: list[str] = []

    def refill(w: World) -> None:
        for name in "ab":
            while w.waiting(name) < 2:
                w.submit(candidate(0, shape(8, ranks=4), tenant=name), 10.0, declared=False)

    def check(w: World, verdict: Arbitration) -> None:
        order.extend(w.running[a.key.job].tenant for a in verdict.allocations)

    world.refill, world.check = refill, check
    world.run_until(100)
    assert order[:8] in (list("abababab"), list("babababa"))


def test_no_device_idles_while_single_device_jobs_wait() -> None:
    rng = random.Random(4)
    world = World(POOL, [tenant("a"), tenant("b", 3)])
    world.refill = lambda w: backlog(w, rng, "ab", (1,), declared=True)

    def check(w: World, verdict: Arbitration) -> None:
        assert w.free_gpus == 0

    world.check = check
    world.run_until(120)
    assert len(world.started) > 300
