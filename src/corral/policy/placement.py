"""Choosing nodes and devices for one gang on a trial view. Deterministic: ties go to the lower name or position.

Order of what counts: the ranks of a gang get devices of one model (a gang goes as fast as its slowest rank), then one
rack, then distinct nodes (``num_nodes`` says so; ranks share a node only where nodes are too few), then the lowest sum
of data cold start and fragmentation: the node that keeps the fewest whole devices after it (best fit), an NVLink island
that takes all devices of a rank, a device that is shared already for a share. Where a wish cannot be had now, the next
best is taken: nothing waits for beauty, except for what a bid's locality demands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from corral.model.ids import DeviceId, NodeId
from corral.model.offer import Bid, Locality
from corral.model.resources import MILLI, Demand, DeviceShare, GangShape, Placement
from corral.policy.config import SchedulingConfig
from corral.policy.feasibility import model_matches
from corral.policy.trial import Room, Trial

ISLAND_SPLIT = 8.0
"""Devices: what leaving the NVLink island costs. PCIe is about a tenth of NVLink, so an emptier node is preferred."""

_NO_COST: dict[NodeId, float] = {}


class Wish(msgspec.Struct, frozen=True):
    """What is to be placed and how nodes compare. Costs are in devices (see ``cold_start_weight``).

    ``ready`` are the times at which devices come free (for plans); devices not named are free now.
    """

    shape: GangShape
    locality: Locality = Locality.ANY
    cost: Mapping[NodeId, float] = _NO_COST
    cost_unlisted: float = 0.0
    without: frozenset[NodeId] = frozenset()
    ready: Mapping[DeviceId, float] | None = None

    @classmethod
    def of(cls, bid: Bid, config: SchedulingConfig, without: frozenset[NodeId] = frozenset()) -> Wish:
        """Return the wish behind a bid: cold starts become costs, unlisted nodes cost more than any listed one."""
        if not bid.preferred:
            return cls(bid.shape, bid.locality, without=without)
        weight = config.cold_start_weight
        cost = {p.node: weight * max(0.0, p.cold_start_s) for p in bid.preferred}
        unlisted = max(cost.values()) + weight * config.cold_start_unlisted_s
        return cls(bid.shape, bid.locality, cost, unlisted, without)


def place(trial: Trial, wish: Wish, mask: int = 0) -> tuple[Placement, ...] | None:
    """Return placements of all ranks, ``None`` when they do not fit together now. Takes nothing from ``trial``.

    For ``Locality.ANY`` the answer is exact: ranks are equal and independent, so they fit together if and only if the
    nodes' fits add up.
    """
    demand, ranks = wish.shape.demand, wish.shape.ranks
    everywhere = _allowed(trial.fits(demand, None, mask), wish.without)
    if not enough(everywhere, ranks):
        return None
    models = _models(trial, wish)
    if wish.locality in (Locality.NODE, Locality.NVLINK):
        return _place_on_one_node(trial, wish, mask, everywhere, models)
    tables = [(model, _allowed(trial.fits(demand, model, mask), wish.without)) for model in models]
    for choices in _stages(trial, wish, tables, everywhere):
        best: tuple[float, list[tuple[NodeId, int]], str | None] | None = None
        for exact, fits in choices:
            if enough(fits, ranks):
                score, nodes = _assign(trial, wish, fits, mask, exact)
                if best is None or score < best[0]:
                    best = (score, nodes, exact)
        if best is not None:
            return _fill(trial, wish, mask, best[1], best[2])
    return None


def enough(fits: Mapping[NodeId, int], ranks: int) -> bool:
    """Return whether the fits add up to ``ranks``."""
    total = 0
    for fit in fits.values():
        total += fit
        if total >= ranks:
            return True
    return False


def _allowed(fits: dict[NodeId, int], without: frozenset[NodeId]) -> dict[NodeId, int]:
    return {node: fit for node, fit in fits.items() if node not in without} if without else fits


def _models(trial: Trial, wish: Wish) -> list[str]:
    """Return the models to try one by one: none when the pool leaves no choice or the gang has one device."""
    demand = wish.shape.demand
    if demand.gpu_milli == 0 or (wish.shape.ranks == 1 and demand.gpu_milli <= MILLI) or len(trial.models) < 2:
        return []
    models = [model for model in trial.models if model_matches(demand.gpu_model, model)]
    return models if len(models) > 1 else []


Choice = tuple[str | None, dict[NodeId, int]]


def _stages(
    trial: Trial, wish: Wish, tables: list[tuple[str, dict[NodeId, int]]], everywhere: dict[NodeId, int]
) -> Iterator[list[Choice]]:
    many = wish.shape.ranks > 1
    in_models: list[Choice] = list(tables)
    if many and tables:
        yield [(model, part) for model, fits in tables for part in _by_rack(trial, fits)]
    if tables and wish.locality is not Locality.RACK:
        yield in_models
    if many:
        yield [(None, part) for part in _by_rack(trial, everywhere)]
    if wish.locality is not Locality.RACK or not many:
        yield [(None, everywhere)]


def _by_rack(trial: Trial, fits: dict[NodeId, int]) -> list[dict[NodeId, int]]:
    racks: dict[str, dict[NodeId, int]] = {}
    for node, fit in fits.items():
        racks.setdefault(trial.offers[node].rack, {})[node] = fit
    return [racks[rack] for rack in sorted(racks)]


def _assign(
    trial: Trial, wish: Wish, fits: dict[NodeId, int], mask: int, exact: str | None
) -> tuple[float, list[tuple[NodeId, int]]]:
    """Return the sum of scores and how many ranks each chosen node gets; the fits must be enough."""
    demand, ranks = wish.shape.demand, wish.shape.ranks
    if len(fits) == 1 and ranks == 1 and exact is None:
        return 0.0, [(next(iter(fits)), 1)]
    scored = [(*_score(trial.room(node, mask), wish, demand, exact), node) for node in fits]
    if ranks == 1:
        score, _, node = min(scored)
        return score, [(node, 1)]
    scored.sort()
    chosen = scored[:ranks]
    counts = {node: 1 for _, _, node in chosen}
    left = ranks - len(chosen)
    while left > 0:
        for _, _, node in chosen:
            if left > 0 and counts[node] < fits[node]:
                counts[node] += 1
                left -= 1
    ordered = sorted(counts.items(), key=lambda item: (trial.offers[item[0]].rack, item[0]))
    return sum(score for score, _, _ in chosen), ordered


def _score(room: Room, wish: Wish, demand: Demand, exact: str | None) -> tuple[float, int]:
    """Return what placing one rank on a node costs (lower is better) and the CPUs that stay, for ties."""
    cost = wish.cost.get(room.offer.node, wish.cost_unlisted)
    stay = room.cpus_milli - demand.cpus_milli
    devices, free = room.offer.devices, room.free
    count = demand.gpus_whole
    if count:
        islands: dict[int, int] = {}
        for i in room.eligible(demand, exact):
            if free[i] >= MILLI:
                islands[devices[i].island] = islands.get(devices[i].island, 0) + 1
        split = 0.0 if any(size >= count for size in islands.values()) else ISLAND_SPLIT
        return cost + sum(islands.values()) - count + split, stay
    if demand.is_share:
        shared = [free[i] for i in room.eligible(demand, exact) if demand.gpu_milli <= free[i] < MILLI]
        if shared:
            return cost + min(shared) / MILLI - 1.0, stay
    spoilt = sum(1 for milli in free if milli >= MILLI)
    # A job without GPUs takes CPUs that a node's devices will need, also of those that are busy now.
    return cost + spoilt + (0 if demand.is_share else len(devices)), stay


def _place_on_one_node(
    trial: Trial, wish: Wish, mask: int, fits: dict[NodeId, int], models: list[str]
) -> tuple[Placement, ...] | None:
    demand, ranks = wish.shape.demand, wish.shape.ranks
    merged = Demand(demand.gpu_milli * ranks, demand.gpu_model, demand.cpus_milli * ranks, demand.memory_mib * ranks)
    for exact in (*models, None):
        best: tuple[float, int, NodeId, Room] | None = None
        for node, fit in fits.items():
            if fit < ranks:
                continue
            for room in _parts(trial.room(node, mask), wish):
                if room.fit(demand, exact) < ranks:
                    continue
                option = (*_score(room, wish, merged, exact), node, room)
                if best is None or option[:3] < best[:3]:
                    best = option
        if best is not None:
            return tuple(_ranks_on(best[3], wish, exact, range(ranks)))
    return None


def _parts(room: Room, wish: Wish) -> Iterator[Room]:
    """Yield the whole node, or its NVLink islands one by one when the bid demands one."""
    if wish.locality is not Locality.NVLINK or wish.shape.demand.gpu_milli == 0:
        yield room
        return
    devices = room.offer.devices
    for island in sorted({d.island for d in devices}):
        free = [milli if d.island == island else 0 for d, milli in zip(devices, room.free, strict=True)]
        yield Room(room.offer, free, room.cpus_milli, room.memory_mib)


def _fill(
    trial: Trial, wish: Wish, mask: int, nodes: list[tuple[NodeId, int]], exact: str | None
) -> tuple[Placement, ...]:
    placements: list[Placement] = []
    for node, count in nodes:
        first = len(placements)
        placements.extend(_ranks_on(trial.room(node, mask), wish, exact, range(first, first + count)))
    return tuple(placements)


def _ranks_on(room: Room, wish: Wish, exact: str | None, ranks: range) -> Iterator[Placement]:
    """Yield the placements of some ranks on one node; uses ``room`` up."""
    demand = wish.shape.demand
    for rank in ranks:
        chosen = _choose_devices(room, wish, exact)
        milli = min(MILLI, demand.gpu_milli)
        shares = tuple(DeviceShare(room.offer.devices[i].uuid, milli) for i in sorted(chosen))
        for i in chosen:
            room.free[i] -= milli
        yield Placement(rank, room.offer.node, shares, demand.cpus_milli, demand.memory_mib)


def _choose_devices(room: Room, wish: Wish, exact: str | None) -> list[int]:
    """Return the positions of the devices for one rank, which must fit."""
    demand = wish.shape.demand
    if demand.gpu_milli == 0:
        return []
    devices, free = room.offer.devices, room.free
    eligible = room.eligible(demand, exact)
    ready = {i: wish.ready.get(devices[i].uuid, 0.0) if wish.ready is not None else 0.0 for i in eligible}
    islands: dict[int, list[int]] = {}
    for i in eligible:
        if free[i] >= MILLI:
            islands.setdefault(devices[i].island, []).append(i)
    for members in islands.values():
        members.sort(key=lambda i: (ready[i], i))
    count = demand.gpus_whole
    if count == 0:
        open_ = [i for i in eligible if free[i] >= demand.gpu_milli]
        return [min(open_, key=lambda i: (ready[i], free[i], len(islands.get(devices[i].island, ())), i))]
    fitting = [island for island, members in islands.items() if len(members) >= count]
    if fitting:
        island = min(fitting, key=lambda name: (ready[islands[name][count - 1]], len(islands[name]), name))
        return islands[island][:count]
    largest_first = sorted(islands.items(), key=lambda item: (-len(item[1]), item[0]))
    return [i for _, members in largest_first for i in members][:count]
