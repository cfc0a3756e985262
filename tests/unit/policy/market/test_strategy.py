"""Does it pay to cheat? A tenant that inflates claims, splits jobs or under-declares gains nothing on average."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from corral.model.offer import Bid, Candidate
from corral.policy.config import SchedulingConfig
from corral.policy.market.solve import solve
from tests.unit.policy.building import node_spec, shape
from tests.unit.policy.market.scenes import PLAIN, market, waits

SEEDS = range(60)
POOL = [node_spec(f"h{i}", 8, "H100") for i in range(2)] + [node_spec(f"a{i}", 8, "A100") for i in range(2)]
Trick = Callable[[Sequence[Candidate], random.Random], list[Candidate]]


def bids_of(devices: int, rng: random.Random) -> tuple[Bid, ...]:
    """Return what a job of so many devices can do: on one model about twice as fast as on the other."""
    fast = shape(1, ranks=devices, model="H100"), shape(1, ranks=devices, model="A100")
    return (
        Bid(fast[0], throughput=devices * 1.0, confidence=0.0),
        Bid(fast[1], throughput=devices * rng.uniform(0.3, 0.8), confidence=0.0),
    )


def jobs_of(tenant: str, rng: random.Random) -> list[Candidate]:
    first = {"a": 0, "b": 1_000, "c": 2_000}[tenant]
    return [
        waits(first + 10 * i, *bids_of(rng.choice((1, 2, 4)), rng), remaining=rng.lognormvariate(7, 1.5), tenant=tenant)
        for i in range(20)
    ]


def received(trick: Trick, trust: float = 1.0) -> tuple[float, float]:
    """Return what tenant a gets of the pool on average: devices, and devices per true remaining second of their jobs.

    ``trick`` changes what it declares; the number of a job without its last digit names the true one.
    """
    devices = gain = 0.0
    for seed in SEEDS:
        rng = random.Random(seed)
        honest = {tenant: jobs_of(tenant, rng) for tenant in "abc"}
        declared = [*trick(honest["a"], rng), *honest["b"], *honest["c"]]
        found = solve(market(POOL, declared, trust={"a": trust}), PLAIN)
        true = {int(job.key.job) // 10: job.remaining_s or 1.0 for job in honest["a"]}
        for award in found.awards:
            if award.tenant == "a":
                devices += len(award.placements)
                gain += len(award.placements) / true[int(award.key.job) // 10]
    return devices / len(SEEDS), gain / len(SEEDS)


def honestly(jobs: Sequence[Candidate], _: random.Random) -> list[Candidate]:
    return list(jobs)


@functools.cache
def honest() -> tuple[float, float]:
    return received(honestly)


def test_an_honest_tenant_gets_its_third() -> None:
    assert 0.27 * 32 < honest()[0] < 0.40 * 32


def test_under_declaring_everything_changes_nothing() -> None:
    found = received(lambda jobs, _: [replace(job, remaining_s=(job.remaining_s or 1.0) / 10) for job in jobs])
    assert found[0] <= honest()[0] * 1.02
    assert found[1] <= honest()[1] * 1.02


def test_under_declaring_some_only_reorders() -> None:
    def some(jobs: Sequence[Candidate], rng: random.Random) -> list[Candidate]:
        return [replace(j, remaining_s=(j.remaining_s or 1.0) / rng.choice((1, 30))) for j in jobs]

    found = received(some)
    assert found[0] <= honest()[0] * 1.05
    assert found[1] <= honest()[1]


def test_splitting_gangs_gains_nothing() -> None:
    def split(jobs: Sequence[Candidate], _: random.Random) -> list[Candidate]:
        parts = []
        for job in jobs:
            for part in range(job.shape.ranks):
                bids = tuple(
                    replace(b, shape=replace(b.shape, ranks=1), throughput=b.throughput / job.shape.ranks)
                    for b in job.bids
                )
                number = int(job.key.job) + part
                parts.append(waits(number, *bids, remaining=job.remaining_s or 1.0, tenant="a"))
        return parts

    found = received(split)
    assert found[0] <= honest()[0] * 1.05


def test_inflated_claims_gain_nothing_once_they_were_measured() -> None:
    # Tenant a claims three times its speed and a third of its time, and is believed a third of what it claims.
    def inflate(jobs: Sequence[Candidate], _: random.Random) -> list[Candidate]:
        found = []
        for job in jobs:
            bids = tuple(replace(bid, throughput=bid.throughput * 3) for bid in job.bids)
            found.append(replace(job, bids=bids, remaining_s=(job.remaining_s or 1.0) / 3))
        return found

    found = received(inflate, trust=1 / 3)
    assert found[0] <= honest()[0] * 1.02
    assert found[1] <= honest()[1] * 1.02


def fast_devices(factor: float) -> float:
    """Return how many of 12 fast devices tenant a gets on average when it declares ``factor`` times its work.

    With the production constants. There are few jobs: each tenant's longest decides when all of its own is done.
    """
    pool = [*POOL[:1], node_spec("h9", 4, "H100"), *POOL[2:3], node_spec("a9", 4, "A100")]
    count = 0
    for seed in SEEDS:
        rng = random.Random(seed)
        jobs = [
            waits(number, *bids_of(4, rng), remaining=rng.lognormvariate(7, 0.5), tenant="abc"[number // 10])
            for number in (0, 1, 10, 11, 20, 21)
        ]
        jobs = [replace(j, remaining_s=(j.remaining_s or 1.0) * (factor if j.tenant == "a" else 1.0)) for j in jobs]
        found = solve(market(pool, jobs), SchedulingConfig())
        count += sum(p.node.startswith("h") for award in found.awards if award.tenant == "a" for p in award.placements)
    return count / len(SEEDS)


def test_declaring_more_work_than_is_true_gets_no_faster_devices() -> None:
    assert 0.25 * 12 < fast_devices(1.0) < 0.42 * 12
    assert fast_devices(10.0) <= fast_devices(1.0) * 1.02
