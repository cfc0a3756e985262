"""Who gets a request: tails by policy when one replica is slow, and how often a prompt's beginning was read already."""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from bench.progress import say
from bench.serving_load import Load, failed, quantile
from bench.serving_pool import ServingPool

DELAY_S = 0.02
SLOW_BY = 4.0
REPLICAS = 4
CAPACITY = (REPLICAS - 1 + 1 / SLOW_BY) / DELAY_S
SHARES = (0.25, 0.60)
LOAD_S = {0.25: 60.0, 0.60: 20.0}
"""By share: a p99 needs requests, and above what it can bear round-robin's grows as long as one looks."""

POLICIES = ("round-robin", "least-outstanding", "power-of-two")
PREFIXES, BLOCKS, BLOCK_CHARS = 32, 4, 256
PROMPTS = 640
CALLERS = 4
TEXT_SERVER = Path(__file__).resolve().parents[1] / "examples" / "service" / "text_server.py"


async def tails(pool: ServingPool) -> dict[str, object]:
    """Compare policies over four replicas, each at one request at a time, the first of them four times slower."""
    found: dict[tuple[str, float], float] = {}
    lost = 0
    for policy in POLICIES:
        name = f"tail-{POLICIES.index(policy)}"
        envs = {"DELAY_S": str(DELAY_S), "SERIAL": "1", "SLOW": "1", "SLOW_BY": str(SLOW_BY)}
        await asyncio.to_thread(pool.serve, name, REPLICAS, envs=envs, traffic={"balance": policy})
        for share in SHARES:
            async with Load(pool.target(name), share * CAPACITY, poisson=True) as load:
                await asyncio.sleep(LOAD_S[share])
            lost += failed(load.outcomes)
            found[policy, share] = quantile(load.outcomes, 0.99)
            say(f"{policy} at {share:.0%} of capacity: p99 {found[policy, share]:.3f} s of {len(load.outcomes)}")
        await asyncio.to_thread(pool.remove, name)
    rows: dict[str, object] = {}
    for share in SHARES:
        row = {policy: round(found[policy, share], 4) for policy in POLICIES}
        rows[f"p99_s_at_{share:.0%}".replace("%", "")] = {**row, "central-queue": round(central(share), 4)}
    return {
        "p2c_p99_vs_rr": _worst(found, "power-of-two"),
        "least_p99_vs_rr": _worst(found, "least-outstanding"),
        "balance_failed": lost,
        **rows,
    }


def _worst(found: dict[tuple[str, float], float], policy: str) -> float:
    return max(found[policy, share] / found["round-robin", share] for share in SHARES)


def central(share: float) -> float:
    """Return the p99 (seconds) of one queue before all replicas, the fastest free one taken.

    Arrivals are those of the load, at this part of the capacity.
    """
    draw = random.Random(7)
    free = [(0.0, DELAY_S * (SLOW_BY if number == 0 else 1.0)) for number in range(REPLICAS)]
    now = 0.0
    times: list[float] = []
    while now < LOAD_S[share]:
        idle = [one for one in free if one[0] <= now]
        # Who waits takes whoever is free first; who need not wait takes the fastest.
        taken = min(idle, key=lambda one: one[1]) if idle else min(free)
        free.remove(taken)
        end = max(now, taken[0]) + taken[1]
        times.append(end - now)
        free.append((end, taken[1]))
        draw.random()
        now += draw.expovariate(share * CAPACITY)
    return sorted(times)[int(0.99 * len(times))]


async def affinity(pool: ServingPool) -> dict[str, object]:
    """Compare how much of the prompts was read already, when each replica keeps a fourth of their beginnings."""
    shares = {}
    for number, policy in enumerate(("round-robin", "prefix-affinity")):
        name = f"text-{number}"
        await asyncio.to_thread(
            pool.serve,
            name,
            REPLICAS,
            run=[sys.executable, str(TEXT_SERVER)],
            envs={"CACHE_BLOCKS": str(PREFIXES * BLOCKS // REPLICAS), "MODEL": name},
            traffic={"balance": policy, "guard": "token"},
            model=name,
        )
        shares[policy] = await asyncio.to_thread(_known_share, pool.port, name)
        say(f"{policy}: {shares[policy]:.1%} of what the prompts share was read already")
        await asyncio.to_thread(pool.remove, name)
    return {
        "affinity_hit_gain": shares["prefix-affinity"] / shares["round-robin"],
        "affinity_hit_share": shares["prefix-affinity"],
        "round_robin_hit_share": shares["round-robin"],
    }


def _known_share(port: int, model: str) -> float:
    """Return which part of the prompts' common beginnings the replicas had in their caches."""
    draw = random.Random(3)
    letters = "abcdefghij klmnop qrst uvwxyz "
    beginnings = ["".join(draw.choices(letters, k=BLOCKS * BLOCK_CHARS)) for _ in range(PREFIXES)]
    prompts = [f"{draw.choice(beginnings)} question {number}" for number in range(PROMPTS)]
    with ThreadPoolExecutor(CALLERS) as threads:
        known = list(threads.map(lambda prompt: _cached(port, model, prompt), prompts))
    # The first ones fill the caches: nobody can know them.
    counted = known[PREFIXES * 2 :]
    return sum(counted) / (len(counted) * BLOCKS * BLOCK_CHARS)


def _cached(port: int, model: str, prompt: str) -> int:
    body = json.dumps({"model": model, "prompt": prompt, "max_tokens": 1})
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        said = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"{model} answered {answer.status}: {said[:200]!r}")
    return int(json.loads(said)["usage"]["prompt_tokens_details"]["cached_tokens"])
