"""Round times of arbitration: ``python -m bench.policy --json`` prints one object. Times are CPU milliseconds.

``first_ms`` is a round of a pool that remembers nothing, ``next_ms`` the one after it that keeps its reservations.
``full`` pools have thousands of holders and hundreds of waiting gangs, the first of 64 nodes: there ``plan_ms`` is a
round that remembers the pool and has to plan a reservation, ``submitted_ms`` and ``ended_ms`` are rounds after one gang
came or went.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable

from msgspec.structs import replace

from corral.model.ids import DeviceId, GangKey, JobId, NodeId, QueueName, TenantId
from corral.model.offer import (
    Bid,
    Candidate,
    FreeDevice,
    Holding,
    NodeOffer,
    QueueStanding,
    Reservation,
    Snapshot,
    Standing,
)
from corral.model.resources import Amount, Demand, DeviceShare, GangShape, Placement
from corral.model.tenant import Queue, Tenant
from corral.policy.arbitration import PendingIndex, arbitrate
from corral.policy.config import SchedulingConfig
from corral.policy.memory import Memory

TENANTS = tuple(TenantId(name) for name in ("a", "b", "c"))
CONFIG = SchedulingConfig()
QUEUES = {QueueName("default"): QueueStanding(Queue(QueueName("default")))}


def pool(nodes: int, gpus: int, free: int, *, ends: bool) -> Snapshot:
    """Return ``nodes`` x ``gpus`` devices, all held one by one but for the first ``free`` of the last node."""
    offers: list[NodeOffer] = []
    holdings: list[Holding] = []
    for n in range(nodes):
        name = NodeId(f"node-{n:05}")
        open_ = free if n == nodes - 1 else 0
        devices = tuple(
            FreeDevice(DeviceId(f"{name}-{d}"), "H100", 1000 if d < open_ else 0, 81_920, d // 4) for d in range(gpus)
        )
        offers.append(
            NodeOffer(
                name, f"rack-{n // 16}", devices, 4_000 * open_, 1_000 * open_, Amount(gpus * 1000, 64_000, 64_000)
            )
        )
        for d in range(open_, gpus):
            number = n * gpus + d
            placement = Placement(0, name, (DeviceShare(devices[d].uuid, 1000),), 4_000, 1_000)
            holdings.append(
                Holding(
                    GangKey(JobId(str(number)), 0),
                    TENANTS[number % 3],
                    (placement,),
                    900.0 - number % 50,
                    1_000.0 + number % 97 if ends else None,
                )
            )
    capacity = Amount(nodes * gpus * 1000, nodes * 64_000, nodes * 64_000)
    return Snapshot(1, 1_000.0, tuple(offers), tuple(holdings), capacity)


def waiting(count: int, shapes: tuple[GangShape, ...], durations: tuple[float | None, ...] = (None,)) -> PendingIndex:
    """Return ``count`` candidates that go through tenants, shapes and durations in turn."""
    index = PendingIndex()
    for i in range(count):
        index.add(
            Candidate(
                key=GangKey(JobId(str(100_000 + i)), 0),
                tenant=TENANTS[i % 3],
                queue=QueueName("default"),
                priority=0,
                queued_at=0.0,
                order=i,
                bids=(Bid(shapes[i // 3 % len(shapes)]),),
                max_duration_s=durations[i // 3 % len(durations)],
            )
        )
    return index


def single(gpu_milli: int, cpus_milli: int = 4_000) -> GangShape:
    """Return a one-rank shape."""
    return GangShape(1, Demand(gpu_milli, None, cpus_milli, 1_000))


def standings(snapshot: Snapshot) -> dict[TenantId, Standing]:
    """Return the tenants with what they hold in ``snapshot`` (weights 1, 2, 3)."""
    held = dict.fromkeys(TENANTS, Amount())
    for holding in snapshot.holdings:
        for placement in holding.placements:
            held[holding.tenant] = held[holding.tenant] + Amount.of(placement)
    return {t: Standing(Tenant(t, weight=i + 1.0), held[t], 0.3) for i, t in enumerate(TENANTS)}


def timed(act: Callable[[], object], repeats: int) -> float:
    """Return the median CPU milliseconds of ``act``."""
    times = []
    for _ in range(repeats):
        begin = time.process_time()
        act()
        times.append((time.process_time() - begin) * 1e3)
    return round(statistics.median(times), 3)


def round_ms(snapshot: Snapshot, index: PendingIndex, repeats: int = 30) -> dict[str, float]:
    """Return the time of a first round and of the next one that keeps its reservations."""
    stand = standings(snapshot)
    memory = Memory()
    first = arbitrate(snapshot, index, stand, QUEUES, (), CONFIG, (), memory)
    return {
        "placed": len(first.allocations),
        "reservations": len(first.reservations),
        "first_ms": timed(lambda: arbitrate(snapshot, index, stand, QUEUES, (), CONFIG), repeats),
        "next_ms": timed(
            lambda: arbitrate(snapshot, index, stand, QUEUES, first.reservations, CONFIG, (), memory), repeats
        ),
    }


def full(nodes: int, declared: float) -> Snapshot:
    """Return nodes of 8 devices, held by gangs of 1 to 64 of them; a part of the gangs has declared its end."""
    rng = random.Random(1)
    spots = [(NodeId(f"node-{n:05}"), d) for n in range(nodes) for d in range(8)]
    holdings: list[Holding] = []
    while spots:
        size = rng.choices((1, 2, 4, 8, 16, 32, 64), (45, 20, 18, 12, 3, 1, 1))[0]
        taken, spots = spots[:size], spots[size:]
        devices: dict[NodeId, list[int]] = {}
        for node, d in taken:
            devices.setdefault(node, []).append(d)
        placements = tuple(
            Placement(
                rank,
                node,
                tuple(DeviceShare(DeviceId(f"{node}-{d}"), 1000) for d in mine),
                4_000 * len(mine),
                1_000 * len(mine),
            )
            for rank, (node, mine) in enumerate(devices.items())
        )
        number = len(holdings)
        key, tenant = GangKey(JobId(str(number)), 0), TENANTS[number % 3]
        ends_at = 1_000.0 + 8_000.0 * rng.random() if rng.random() < declared else None
        holdings.append(Holding(key, tenant, placements, 1_000.0 - 5_000.0 * rng.random(), ends_at))
    offers = tuple(
        NodeOffer(
            NodeId(f"node-{n:05}"),
            f"rack-{n // 16}",
            tuple(FreeDevice(DeviceId(f"node-{n:05}-{d}"), "H100", 0, 81_920, d // 4) for d in range(8)),
            0,
            56_000,
            Amount(8_000, 32_000, 64_000),
        )
        for n in range(nodes)
    )
    capacity = Amount(nodes * 8_000, nodes * 32_000, nodes * 64_000)
    return Snapshot(1, 1_000.0, offers, tuple(holdings), capacity)


def without(snapshot: Snapshot, at: int) -> Snapshot:
    """Return a snapshot from which one holder has gone; all other offers are the same objects."""
    gone = snapshot.holdings[at]
    free = {share.uuid for placement in gone.placements for share in placement.devices}
    nodes = {placement.node: placement for placement in gone.placements}
    offers = tuple(
        replace(
            offer,
            devices=tuple(replace(d, free_milli=1000) if d.uuid in free else d for d in offer.devices),
            cpus_milli=offer.cpus_milli + nodes[offer.node].cpus_milli,
            memory_mib=offer.memory_mib + nodes[offer.node].memory_mib,
        )
        if offer.node in nodes
        else offer
        for offer in snapshot.nodes
    )
    return replace(snapshot, nodes=offers, holdings=snapshot.holdings[:at] + snapshot.holdings[at + 1 :])


def full_ms(snapshot: Snapshot, repeats: int = 9) -> dict[str, float]:
    """Return the times of rounds on a full pool where 709 gangs wait."""
    whole = Demand(8_000, None, 32_000, 8_000)
    shapes = (
        GangShape(64, whole),
        GangShape(1, whole),
        GangShape(8, whole),
        single(4_000, 16_000),
        single(2_000, 8_000),
    )
    index, stand, memory = waiting(709, shapes), standings(snapshot), Memory()
    first = arbitrate(snapshot, index, stand, QUEUES, (), CONFIG)
    more = replace(next(iter(index)), key=GangKey(JobId("999999"), 0), order=999_999)
    ended = without(snapshot, len(snapshot.holdings) // 3)
    flips = [0]

    def again(reservations: tuple[Reservation, ...], shown: Snapshot = snapshot) -> object:
        return arbitrate(shown, index, stand, QUEUES, reservations, CONFIG, (), memory)

    def submitted() -> object:
        flips[0] += 1
        if flips[0] % 2:
            index.add(more)
        else:
            index.remove(more.key)
        return again(first.reservations)

    def changed() -> object:
        flips[0] += 1
        return again(first.reservations, ended if flips[0] % 2 else snapshot)

    return {
        "holders": len(snapshot.holdings),
        "waiting": len(index),
        "first_ms": timed(lambda: arbitrate(snapshot, index, stand, QUEUES, (), CONFIG), repeats),
        "plan_ms": timed(lambda: again(()), repeats),
        "next_ms": timed(lambda: again(first.reservations), repeats),
        "submitted_ms": timed(submitted, repeats),
        "ended_ms": timed(changed, repeats),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.policy", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--json", action="store_true", help="print one line")
    indent = None if parser.parse_args().json else 2
    small = (single(1000), single(2000), single(500, 2_000), single(1000, 2_000))
    singles = waiting(2_000, small)
    durations = waiting(2_000, small, (60.0, 300.0, None, 3_600.0))
    gang = GangShape(4, Demand(8_000, None, 32_000, 8_000))
    mixed = waiting(2_000, (*small, gang), (60.0, 300.0, None, 3_600.0))
    many = waiting(10_000, small)
    result = {
        "nothing_free_ends_unknown": round_ms(pool(4, 8, 0, ends=False), singles),
        "nothing_free_ends_known": round_ms(pool(4, 8, 0, ends=True), durations),
        "nothing_free_gangs_wait": round_ms(pool(4, 8, 0, ends=True), mixed),
        "one_device_freed": round_ms(pool(4, 8, 1, ends=False), singles),
        "one_device_freed_gangs_wait": round_ms(pool(4, 8, 1, ends=True), mixed),
        "node_freed": round_ms(pool(4, 8, 8, ends=True), mixed),
        "one_device_freed_10000_wait": round_ms(pool(4, 8, 1, ends=False), many),
        "empty_pool_32_devices": round_ms(pool(1, 32, 32, ends=False), singles),
        "1000_gpus_one_freed": round_ms(pool(125, 8, 1, ends=True), mixed, 10),
        "10000_gpus_one_freed": round_ms(pool(1_250, 8, 1, ends=True), mixed, 3),
        "10000_gpus_full_ends_known": full_ms(full(1_250, 1.0)),
        "10000_gpus_full_ends_unknown": full_ms(full(1_250, 0.0)),
        "10000_gpus_full_half_of_the_ends_known": full_ms(full(1_250, 0.5)),
        "index_add_remove_us": index_us(),
    }
    print(json.dumps(result, indent=indent))


def index_us() -> float:
    """Return the microseconds that one candidate costs to enter and leave an index of 10,000."""
    index = waiting(10_000, (single(1000),))
    candidates = list(index)[::100]

    def act() -> None:
        for candidate in candidates:
            index.remove(candidate.key)
            index.add(candidate)

    return round(timed(act, 10) * 1e3 / len(candidates), 2)


if __name__ == "__main__":
    main()
