"""Random markets for properties: small pools with racks and islands, mixed jobs, tenants with quotas, running gangs."""

from __future__ import annotations

import random

from msgspec.structs import replace

from corral.model.ids import GangKey, JobId, NodeId, QueueName, TenantId
from corral.model.market import Market
from corral.model.offer import Bid, Candidate, Holding, Locality, Preference, QueueStanding, Reservation, Standing
from corral.model.resources import MILLI, Amount, NodeSpec
from corral.model.tenant import Queue, Quota, Tenant
from corral.policy.arbitration import PendingIndex, arbitrate
from tests.unit.policy.building import CONFIG, NOW, node_spec, shape, snapshot

MODELS = ("H100", "A100")
DEFAULT = QueueName("default")
LIMITED = QueueName("limited")


def specs_of(rng: random.Random, *, models: int = 2) -> list[NodeSpec]:
    """Return two to eight nodes in up to four racks."""
    return [
        node_spec(
            f"n{i}",
            rng.choice((2, 4, 8)),
            MODELS[i % models],
            cpus=rng.choice((8, 16, 64)),
            memory=16_000,
            rack=f"r{i // 2}",
            island=rng.choice((2, 4, 8)),
        )
        for i in range(rng.randint(2, 8))
    ]


def bid_of(rng: random.Random) -> Bid:
    """Return a bid of any kind: whole devices, shares, CPUs only, gangs, each locality."""
    kind = rng.random()
    if kind < 0.1:
        what = shape(0, rng.randint(1, 2), cpus=rng.randint(1, 8))
    elif kind < 0.25:
        what = shape(rng.choice((0.25, 0.5)), 1, cpus=1, model=rng.choice((None, "A100")))
    else:
        model = rng.choice((None, *MODELS))
        what = shape(rng.choice((1, 1, 2, 4)), rng.choice((1, 1, 1, 2, 4)), cpus=1, model=model)
    return Bid(
        what,
        rng.choice((Locality.ANY, Locality.ANY, *Locality)),
        tuple(Preference(NodeId(f"n{i}"), 10.0 * i) for i in range(2)) if rng.random() < 0.1 else (),
        throughput=rng.uniform(0.5, 4.0),
        confidence=rng.random(),
        restart_cost_s=rng.choice((0.0, 30.0)),
        tenure_s=600.0,
    )


def candidate_of(rng: random.Random, number: int) -> Candidate:
    """Return a pending gang with one to four bids."""
    return Candidate(
        GangKey(JobId(str(number)), 0),
        TenantId(rng.choice("abc")),
        LIMITED if rng.random() < 0.2 else DEFAULT,
        rng.choice((0, 0, 0, 5)),
        NOW - rng.uniform(0, 500),
        number,
        tuple(bid_of(rng) for _ in range(rng.randint(1, 4))),
        avoid=(NodeId("n0"),) if rng.random() < 0.1 else (),
        submitted_at=rng.uniform(1.0, NOW),
        remaining_s=rng.choice((None, rng.lognormvariate(6, 2))),
    )


def _tenants(rng: random.Random) -> list[Tenant]:
    def quota(chance: float) -> Quota:
        return Quota(rng.randint(1, 12) * MILLI) if rng.random() < chance else Quota()

    return [Tenant(TenantId(name), rng.uniform(0.5, 3.0), quota(0.4), quota(0.3)) for name in "abc"]


def market_of(seed: int, *, running: bool = True, reserve: bool = True) -> Market:
    """Return a market whose running gangs were placed by rounds of the fill."""
    rng = random.Random(seed)
    specs = specs_of(rng)
    tenants = _tenants(rng)
    queues = {
        DEFAULT: QueueStanding(Queue(DEFAULT)),
        LIMITED: QueueStanding(Queue(LIMITED, 0, Quota(rng.randint(1, 8) * MILLI), paused=rng.random() < 0.2)),
    }
    holdings = _run(rng, specs, tenants, queues) if running else []
    pending = tuple(candidate_of(rng, 100 + i) for i in range(rng.randint(0, 25)))
    kept = tuple(_reservation(rng, specs, pending)) if reserve and pending and rng.random() < 0.2 else ()
    held = {t.id: Amount() for t in tenants}
    for h in holdings:
        for p in h.placements:
            held[h.tenant] = held[h.tenant] + Amount.of(p)
            queue = queues[h.queue]
            queues[h.queue] = QueueStanding(queue.queue, queue.held + Amount.of(p))
    return Market(
        snapshot(specs, holdings),
        pending,
        {t.id: Standing(t, held[t.id], rng.random()) for t in tenants},
        queues,
        kept,
        trust={TenantId("b"): 0.5},
    )


def _run(
    rng: random.Random, specs: list[NodeSpec], tenants: list[Tenant], queues: dict[QueueName, QueueStanding]
) -> list[Holding]:
    wanted = {c.key: c for c in (candidate_of(rng, i) for i in range(rng.randint(0, 12)))}
    standings = {t.id: Standing(t) for t in tenants}
    verdict = arbitrate(snapshot(specs), PendingIndex(wanted.values()), standings, queues, (), CONFIG)
    found = []
    for allocation in verdict.allocations:
        won = wanted[allocation.key]
        started = NOW - rng.uniform(0, 2_000)
        placements = allocation.placements
        bid = next(b for b in won.bids if _runs(b, placements))
        found.append(
            Holding(
                allocation.key,
                won.tenant,
                placements,
                started,
                None,
                incarnation=rng.randint(1, 3),
                queue=won.queue,
                priority=won.priority,
                order=won.order,
                submitted_at=max(1.0, started - 100),
                bids=won.bids,
                won=bid,
                saved_at=rng.choice((None, NOW - 10.0)),
                remaining_s=rng.choice((None, 500.0)),
                known_at=NOW,
                tenure_until=started + 600.0,
                stopping=rng.random() < 0.05,
                preemptible=rng.random() < 0.95,
            )
        )
    return found


def _runs(bid: Bid, placements: tuple) -> bool:
    demand = bid.shape.demand
    first = placements[0]
    return (
        bid.shape.ranks == len(placements)
        and demand.gpu_milli == first.gpu_milli
        and (demand.cpus_milli == first.cpus_milli)
    )


def _reservation(rng: random.Random, specs: list[NodeSpec], pending: tuple[Candidate, ...]) -> list[Reservation]:
    """Return a reservation of the first pending gang on the empty pool."""
    first = replace(pending[0], avoid=())
    verdict = arbitrate(snapshot(specs), PendingIndex([first]), {}, {}, (), CONFIG)
    return [
        Reservation(a.key, first.tenant, a.placements, rng.choice((None, NOW + 100)), NOW) for a in verdict.allocations
    ]
