"""Markets of any size for measuring global rounds: racks, NVLink islands, four device models, elastic jobs."""

from __future__ import annotations

import random
from collections.abc import Sequence

from msgspec.structs import replace

from corral.model.ids import DEFAULT_QUEUE, DeviceId, GangKey, JobId, NodeId, TenantId
from corral.model.market import Market
from corral.model.offer import (
    Bid,
    Candidate,
    FreeDevice,
    Holding,
    Locality,
    NodeOffer,
    QueueStanding,
    Snapshot,
    Standing,
)
from corral.model.resources import MILLI, Amount, Demand, DeviceShare, DeviceSpec, GangShape, NodeSpec, Placement
from corral.model.tenant import Queue, Tenant

NOW = 1_000_000.0
DEVICES = 8
ISLAND = 4
NODES_PER_RACK = 16
CPUS_MILLI = 128_000
MEMORY_MIB = 1_024_000
MODELS = (("H100", 1.0), ("A100", 0.55), ("L40S", 0.4), ("V100", 0.22))
"""Device models and about how fast they are."""

SIZES = (1, 2, 4, 8, 16, 32, 64)
SIZE_WEIGHTS = (40, 16, 14, 16, 8, 4, 2)
"""Sizes of jobs in devices: mostly small, a few gangs over many nodes, as in published traces."""

TENANTS = 12
TENANT_NAMES = tuple(TenantId(f"tenant-{t:02}") for t in range(TENANTS))
JOBS_PER_GPU = 0.34
RUNNING_PART = 0.35
"""The part of the jobs that hold devices already when the round begins."""


def node_offers(gpus: int) -> list[NodeOffer]:
    """Return nodes with ``gpus`` devices together, one model per node, models spread over whole racks."""
    offers = []
    for n in range(gpus // DEVICES):
        rack = n // NODES_PER_RACK
        name, model = NodeId(f"node-{n:05}"), MODELS[rack % len(MODELS)][0]
        devices = tuple(FreeDevice(DeviceId(f"{name}-{d}"), model, MILLI, 81_920, d // ISLAND) for d in range(DEVICES))
        total = Amount(DEVICES * MILLI, CPUS_MILLI, MEMORY_MIB)
        offers.append(NodeOffer(name, f"rack-{rack:04}", devices, CPUS_MILLI, MEMORY_MIB, total))
    return offers


def shape_of(devices: int, model: str) -> GangShape:
    """Return a gang of ``devices`` devices: one rank on one node, or a rank of eight on each of several."""
    each = min(devices, DEVICES)
    return GangShape(devices // each, Demand(each * MILLI, model, each * 8_000, each * 64_000))


def bids_of(size: int, rng: random.Random, count: int) -> tuple[Bid, ...]:
    """Return ``count`` bids or less, best first: models x four sizes around its own x two localities."""
    scaling = rng.uniform(0.6, 0.98)
    taste = {model: speed * rng.lognormvariate(0.0, 0.35) for model, speed in MODELS}
    found = []
    smallest = max(1, size >> 3)
    for model, _ in MODELS:
        for step in range(4):
            devices = smallest << step
            for locality, gain in _localities(devices):
                rate = taste[model] * devices**scaling * gain
                found.append(Bid(shape_of(devices, model), locality, (), rate, 0.5, None, 30.0, None, 600.0))
    found.sort(key=lambda bid: -bid.throughput)
    return tuple(found[:count])


def _localities(devices: int) -> Sequence[tuple[Locality, float]]:
    if devices == 1:
        return ((Locality.ANY, 1.0), (Locality.RACK, 1.0))
    if devices <= ISLAND:
        return ((Locality.NVLINK, 1.15), (Locality.NODE, 1.0))
    if devices <= DEVICES:
        return ((Locality.NODE, 1.0), (Locality.ANY, 1.0))
    return ((Locality.RACK, 1.1), (Locality.ANY, 1.0))


def market(gpus: int, seed: int = 0, *, bids: int = 32, jobs_per_gpu: float = JOBS_PER_GPU) -> Market:
    """Return a contended market on ``gpus`` devices: about a third of its jobs run, the others wait."""
    rng = random.Random(seed)
    offers = node_offers(gpus)
    jobs = round(gpus * jobs_per_gpu)
    free = {offer.node: [d.uuid for d in offer.devices] for offer in offers}
    nodes = {model: [o.node for o in offers if o.devices[0].model == model] for model, _ in MODELS}
    pending: list[Candidate] = []
    holdings: list[Holding] = []
    for number in range(jobs):
        size = rng.choices(SIZES, SIZE_WEIGHTS)[0]
        mine = bids_of(size, rng, bids)
        tenant = TENANT_NAMES[rng.randrange(TENANTS)]
        remaining = rng.lognormvariate(8.5, 1.6)
        key = GangKey(JobId(str(number)), 0)
        seats = _seats(rng.choice(mine), nodes, free) if rng.random() < RUNNING_PART else None
        if seats is None:
            waited = rng.uniform(0.0, 20_000.0)
            pending.append(
                Candidate(
                    key, tenant, DEFAULT_QUEUE, 0, NOW - waited, number, mine, None, (), NOW - waited, 0.0, remaining
                )
            )
            continue
        won, placements = seats
        ran = rng.uniform(60.0, 20_000.0)
        holdings.append(
            Holding(
                key=key,
                tenant=tenant,
                placements=placements,
                started_at=NOW - ran,
                ends_at=None,
                order=number,
                submitted_at=NOW - ran - 600.0,
                bids=mine,
                won=won,
                saved_at=NOW - rng.uniform(0.0, min(600.0, ran)),
                remaining_s=remaining,
                known_at=NOW,
                tenure_until=NOW - ran + 600.0,
            )
        )
    return _market(offers, holdings, pending)


def _seats(
    bid: Bid, nodes: dict[str, list[NodeId]], free: dict[NodeId, list[DeviceId]]
) -> tuple[Bid, tuple[Placement, ...]] | None:
    """Take devices for a running gang, first fit; ``None`` when they are used up."""
    demand = bid.shape.demand
    each = demand.gpus_whole
    found: list[NodeId] = []
    names = nodes[demand.gpu_model or ""]
    while names and len(free[names[0]]) == 0:
        names.pop(0)
    for node in names[:200]:
        if len(free[node]) >= each:
            found.append(node)
            if len(found) == bid.shape.ranks:
                break
    if len(found) < bid.shape.ranks:
        return None
    placements = []
    for rank, node in enumerate(found):
        taken, free[node] = free[node][:each], free[node][each:]
        shares = tuple(DeviceShare(uuid, MILLI) for uuid in taken)
        placements.append(Placement(rank, node, shares, demand.cpus_milli, demand.memory_mib))
    return bid, tuple(placements)


def _market(offers: Sequence[NodeOffer], holdings: Sequence[Holding], pending: Sequence[Candidate]) -> Market:
    used: dict[DeviceId, int] = {}
    rest: dict[NodeId, Amount] = {}
    held: dict[TenantId, Amount] = {}
    for holding in holdings:
        for placement in holding.placements:
            rest[placement.node] = rest.get(placement.node, Amount()) + Amount.of(placement)
            held[holding.tenant] = held.get(holding.tenant, Amount()) + Amount.of(placement)
            used.update(dict.fromkeys((s.uuid for s in placement.devices), MILLI))
    nodes = tuple(
        replace(
            offer,
            devices=tuple(replace(d, free_milli=MILLI - used.get(d.uuid, 0)) for d in offer.devices),
            cpus_milli=offer.cpus_milli - rest.get(offer.node, Amount()).cpus_milli,
            memory_mib=offer.memory_mib - rest.get(offer.node, Amount()).memory_mib,
        )
        for offer in offers
    )
    capacity = Amount(
        sum(o.total.gpu_milli for o in offers),
        sum(o.total.cpus_milli for o in offers),
        sum(o.total.memory_mib for o in offers),
    )
    standings = {}
    for t, name in enumerate(TENANT_NAMES):
        mine = held.get(name, Amount())
        standings[name] = Standing(Tenant(name, 1.0 + t % 3), mine, mine.dominant_share(capacity))
    return Market(
        Snapshot(1, NOW, nodes, tuple(holdings), capacity),
        tuple(pending),
        standings,
        {DEFAULT_QUEUE: QueueStanding(Queue(DEFAULT_QUEUE))},
    )


def node_spec(offer: NodeOffer) -> NodeSpec:
    """Return the node behind an offer."""
    devices = tuple(
        DeviceSpec(d.uuid, d.model, "nvidia", d.memory_mib, i, d.island) for i, d in enumerate(offer.devices)
    )
    total = offer.total
    return NodeSpec(offer.node, offer.node, "10.0.0.1", total.cpus_milli, total.memory_mib, devices, offer.rack)
