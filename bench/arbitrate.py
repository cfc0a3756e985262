"""How fast and how near the best global rounds are: ``python -m bench.arbitrate --json``.

Prints one JSON object. ``rounds``: one round on markets of 1,000, 10,000 and 100,000 devices (racks, NVLink islands,
four device models, about 0.34 jobs per device, 32 bids per job and one more for staying): ``cpu_s`` is the CPU time on
one core, from the market to the verified plan, of a round that remembers nothing, in a process that solved a small one
before; ``warm_cpu_s`` that of the next one; ``gap`` is (bound - worth of what was placed) / bound; ``peak_mb`` is the
most memory that a process which solves it has in use, the market included. ``exact_gap`` (where it is measured) takes
in place of the bound the exact optimum of the same constraints by HiGHS.

``gang512_s``: CPU seconds of the round that seats a gang of 512 workers of eight devices each, the guarantee of its
tenant, on a loaded pool of 20,000. ``unschedulable_s``: CPU seconds until a gang that can never run has its cause, at
submission and from a round, on 100,000 devices. ``admissions_per_s``: jobs admitted through HTTP and journaled while
10,000 wait, by eight clients; ``admission_cpu_ms``: what one of them costs the daemon.

``--only rounds|gang512|unschedulable|admissions`` measures a part; ``--gpus N`` only rounds of that size.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

from msgspec.structs import replace

from bench.arbitrate_admissions import measure_admissions
from bench.arbitrate_exact import exact_value
from bench.arbitrate_market import DEVICES, MODELS, NOW, TENANT_NAMES, market, node_spec, shape_of
from bench.pool import PoolFailed
from bench.progress import end_tidily_on_signals, say
from corral.model.errors import CorralError
from corral.model.ids import DEFAULT_QUEUE, GangKey, JobId, TenantId
from corral.model.market import Market, RoundPlan
from corral.model.offer import Bid, Candidate, Standing
from corral.model.resources import MILLI, Demand, GangShape
from corral.model.tenant import Quota, Tenant
from corral.policy.config import SchedulingConfig
from corral.policy.feasibility import ever_fits
from corral.policy.inventory import Inventory
from corral.policy.market.solve import RoundSolver, solve

SIZES = (1_000, 10_000, 100_000)
EXACT_UP_TO = 1_000
PENDING = 10_000
SUBMISSIONS = 4_000
PARTS = ("rounds", "gang512", "unschedulable", "admissions")
CONFIG = SchedulingConfig()
WARM_UP_GPUS = 256
GANG_WORKERS = 512
GANG_POOL = 20_000

T = TypeVar("T")
Figures = dict[str, float | int]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure global rounds: speed, optimality gap, memory, admissions.")
    parser.add_argument("--json", action="store_true", help="accepted for likeness; the output is JSON anyway")
    parser.add_argument("--only", choices=PARTS, help="measure this part only")
    parser.add_argument("--gpus", type=int, help="only rounds with this many devices")
    parser.add_argument("--seed", type=int, default=0, help="of the markets (default 0)")
    options = parser.parse_args()
    if options.gpus is not None and options.gpus < 64:
        parser.error("--gpus must be at least 64")
    end_tidily_on_signals()
    parts = (options.only,) if options.only else ("rounds",) if options.gpus else PARTS
    try:
        print(json.dumps(measure(parts, (options.gpus,) if options.gpus else SIZES, options.seed)))
    except KeyboardInterrupt:
        sys.exit(130)
    except (PoolFailed, CorralError, TimeoutError) as error:
        sys.exit(f"bench.arbitrate: {error}")


def measure(parts: Sequence[str], sizes: Sequence[int], seed: int) -> dict[str, object]:
    """Measure the named parts, each in a process of its own where memory or state would blur it."""
    found: dict[str, object] = {}
    if "rounds" in parts:
        found["rounds"] = [alone(measure_round, gpus, seed) for gpus in sizes]
    if "gang512" in parts:
        found["gang512_s"] = alone(gang_s, GANG_POOL, seed)
    if "unschedulable" in parts:
        found["unschedulable_s"] = alone(unschedulable_s, SIZES[-1], seed)
    if "admissions" in parts:
        found |= measure_admissions(PENDING, SUBMISSIONS)
    return found


def alone(act: Callable[[int, int], T], gpus: int, seed: int) -> T:
    """Call ``act`` in a fresh process, whose memory is its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as worker:
        return worker.submit(act, gpus, seed).result()


def measure_round(gpus: int, seed: int) -> Figures:
    """Return the figures of one round."""
    one = market(gpus, seed)
    bids = sum(len(c.bids) for c in one.pending) + sum(len(h.bids) + 1 for h in one.snapshot.holdings)
    jobs = len(one.pending) + len(one.snapshot.holdings)
    solve(market(WARM_UP_GPUS), CONFIG)
    solver = RoundSolver(CONFIG)
    cpu_s, plan = timed(solver, one)
    warm_cpu_s, again = timed(solver, one)
    if again != plan:
        raise AssertionError("two rounds on one market gave two plans")
    figures: Figures = {
        "gpus": gpus,
        "jobs": jobs,
        "bids": bids,
        "cpu_s": round(cpu_s, 3),
        "warm_cpu_s": round(warm_cpu_s, 3),
        "gap": round(plan.gap, 6),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "awards": len(plan.awards),
        "evictions": len(plan.evictions),
    }
    if gpus <= EXACT_UP_TO:
        exact = exact_value(one, CONFIG)
        figures["exact_gap"] = round((exact - plan.value) / exact, 6)
    say(f"{gpus} devices: {figures}")
    return figures


def timed(solver: RoundSolver, one: Market) -> tuple[float, RoundPlan]:
    """Return the CPU seconds of a round and its plan."""
    begin = time.process_time()
    plan = solver(one)
    return time.process_time() - begin, plan


def gang_s(gpus: int, seed: int) -> float:
    """Return the CPU seconds of a round in which a large gang takes back its tenant's guarantee. Raises if it fails."""
    one = market(gpus, seed)
    shape = shape_of(GANG_WORKERS * DEVICES, MODELS[0][0])
    owner = Tenant(TenantId("owner"), guaranteed=Quota(GANG_WORKERS * DEVICES * MILLI))
    gang = replace(waiting("gang512", Bid(shape), remaining_s=3_600.0), tenant=owner.id)
    standings = {**one.standings, owner.id: Standing(owner)}
    cpu_s, plan = timed(RoundSolver(CONFIG), replace(one, pending=(*one.pending, gang), standings=standings))
    award = next((award for award in plan.awards if award.key == gang.key), None)
    if award is None or len(award.placements) != GANG_WORKERS:
        raise AssertionError(f"the gang was not seated: {plan.losses.get(gang.key)}")
    say(f"a gang of {GANG_WORKERS} workers on {gpus} devices: {cpu_s:.2f} s")
    return round(cpu_s, 3)


def unschedulable_s(gpus: int, seed: int) -> float:
    """Return the CPU seconds until a gang that can never run is refused with its cause, and lost in a round."""
    one = market(gpus, seed, jobs_per_gpu=0.05)
    nodes = [node_spec(offer) for offer in one.snapshot.nodes]
    shape = GangShape(1, Demand((DEVICES + 1) * MILLI, MODELS[0][0], MILLI, 1))
    begin = time.process_time()
    refusal = ever_fits(shape, Inventory.of(nodes))
    submit_s = time.process_time() - begin
    gang = waiting("too-large", Bid(shape), remaining_s=60.0)
    cpu_s, plan = timed(RoundSolver(CONFIG), replace(one, pending=(gang,)))
    if refusal is None or plan.losses[gang.key].reason != "unplaceable":
        raise AssertionError(f"a gang that fits nowhere was not told so: {refusal}, {plan.losses}")
    say(f"never fits: {refusal.message}; {submit_s:.3f} s at submission, {cpu_s:.3f} s in a round")
    return round(max(submit_s, cpu_s), 3)


def waiting(name: str, bid: Bid, remaining_s: float) -> Candidate:
    """Return a pending gang of the first tenant."""
    key = GangKey(JobId(name), 0)
    return Candidate(
        key, TENANT_NAMES[0], DEFAULT_QUEUE, 0, NOW, 10**9, (bid,), submitted_at=NOW - 600.0, remaining_s=remaining_s
    )


if __name__ == "__main__":
    main()
