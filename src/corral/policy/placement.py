"""Choosing nodes and devices for one gang on a trial view. Deterministic: ties go to the lower name or position.

Order of what counts: the ranks of a gang get devices of one model (a gang goes as fast as its slowest rank), then one
rack, then distinct nodes (``num_nodes`` says so; ranks share a node only where nodes are too few), then the lowest sum
of data cold start, leaving an NVLink island, and fragmentation, all in devices: what the pool's other shapes lose (see
``fragmentation``). What the job itself feels comes first, since a pool that is a little better packed is no use to a
gang that runs across two racks; a cold start passes and is weighed. Ties, and pools whose mix of shapes is not known,
go by best fit: the node that keeps the fewest whole devices, a device that is shared already for a share. Where a wish
cannot be had now, the next best is taken: nothing waits for beauty, except for what a bid's locality demands.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from corral.model.ids import DeviceId, NodeId
from corral.model.offer import Bid, Locality
from corral.model.resources import MILLI, Demand, DeviceShare, GangShape, Placement
from corral.policy.config import SchedulingConfig
from corral.policy.feasibility import model_matches
from corral.policy.fragmentation import Fate, Option, Score, State
from corral.policy.room import Room
from corral.policy.trial import Trial

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
    def of(
        cls,
        bid: Bid,
        config: SchedulingConfig,
        without: frozenset[NodeId] = frozenset(),
        extra: Mapping[NodeId, float] = _NO_COST,
    ) -> Wish:
        """Return the wish behind a bid: cold starts become costs, unlisted nodes cost more than any listed one.

        ``extra`` is what nodes cost beside that.
        """
        if not bid.preferred:
            return cls(bid.shape, bid.locality, extra, without=without)
        weight = config.cold_start_weight
        cost = {p.node: weight * max(0.0, p.cold_start_s) for p in bid.preferred}
        unlisted = max(cost.values()) + weight * config.cold_start_unlisted_s
        for node, dearer in extra.items():
            cost[node] = cost.get(node, unlisted) + dearer
        return cls(bid.shape, bid.locality, cost, unlisted, without)


def place(trial: Trial, wish: Wish, mask: int = 0) -> tuple[Placement, ...] | None:
    """Return placements of all ranks, ``None`` when they do not fit together now. Takes nothing from ``trial``.

    For ``Locality.ANY`` the answer is exact: ranks are equal and independent, so they fit together if and only if the
    nodes' fits add up.
    """
    found = place_first(trial, (wish,), mask)
    return found[1] if found is not None else None


def place_first(trial: Trial, wishes: Sequence[Wish], mask: int = 0) -> tuple[int, tuple[Placement, ...]] | None:
    """Return which of the wishes, which are equally good to their job, goes best with the pool, and its placements.

    Where several do as well the earlier one wins.
    """
    if len(wishes) == 1:
        spot = _find(trial, wishes[0], mask, rivals=False)
        return (0, _fill(trial, wishes[0], mask, spot)) if spot is not None else None
    found = [(i, spot) for i, wish in enumerate(wishes) if (spot := _find(trial, wish, mask, rivals=True)) is not None]
    if not found:
        return None
    first, spot = min(found, key=lambda item: (item[1].stage, item[1].score, item[0]))
    return first, _fill(trial, wishes[first], mask, spot)


class _Spot(NamedTuple):
    """Where a gang may go: how many wishes were given up, the sum of scores, and the ranks of each node.

    ``part`` is the part of the one node when the ranks have to be close.
    """

    stage: int
    score: Score
    nodes: list[tuple[NodeId, int]]
    exact: str | None
    part: Room | None = None


def _find(trial: Trial, wish: Wish, mask: int, *, rivals: bool) -> _Spot | None:
    demand, ranks = wish.shape.demand, wish.shape.ranks
    everywhere = _allowed(trial.fits(demand, None, mask), wish.without)
    if not enough(everywhere, ranks):
        return None
    models = _models(trial, wish)
    if wish.locality in (Locality.NODE, Locality.NVLINK):
        return _find_on_one_node(trial, wish, mask, everywhere, models)
    if len(everywhere) == 1 and ranks == 1 and not models and not rivals:
        return _Spot(0, (0.0, 0.0, 0), [(next(iter(everywhere)), 1)], None)
    tables = [(model, _allowed(trial.fits(demand, model, mask), wish.without)) for model in models]
    for stage, choices in enumerate(_stages(trial, wish, tables, everywhere)):
        best: _Spot | None = None
        for exact, fits in choices:
            if enough(fits, ranks):
                score, nodes = _assign(trial, wish, fits, mask, exact)
                if best is None or score < best.score:
                    best = _Spot(stage, score, nodes, exact)
        if best is not None:
            return best
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
) -> tuple[Score, list[tuple[NodeId, int]]]:
    """Return the sum of scores and how many ranks each chosen node gets; the fits must be enough."""
    ranks = wish.shape.ranks
    if ranks == 1:
        score, node = min(_scored_alike(trial, wish, fits, mask, exact))
        return score, [(node, 1)]
    scored = [(_score(trial, wish, node, mask, exact), node) for node in fits]
    scored.sort()
    chosen = scored[:ranks]
    counts = {node: 1 for _, node in chosen}
    left = ranks - len(chosen)
    while left > 0:
        for _, node in chosen:
            if left > 0 and counts[node] < fits[node]:
                counts[node] += 1
                left -= 1
    ordered = sorted(counts.items(), key=lambda item: (trial.offers[item[0]].rack, item[0]))
    return (sum(s[0] for s, _ in chosen), sum(s[1] for s, _ in chosen), sum(s[2] for s, _ in chosen)), ordered


def _scored_alike(
    trial: Trial, wish: Wish, fits: Mapping[NodeId, int], mask: int, exact: str | None
) -> Iterator[tuple[Score, NodeId]]:
    """Yield the scores of nodes, of those that are alike the one with the lowest name."""
    first: dict[object, NodeId] = {}
    states, cost = trial.states(mask), wish.cost
    for node in fits:
        state = states.get(node) or trial.state(node, mask)
        alike = (state, cost.get(node, wish.cost_unlisted)) if cost else state
        if alike not in first or node < first[alike]:
            first[alike] = node
    demand = wish.shape.demand
    scores = trial.prices().scores.get((demand, exact), {})
    for node in first.values():
        known = scores.get(states[node])
        if known is None or cost or wish.cost_unlisted:
            known = _score(trial, wish, node, mask, exact)
        yield known, node


def _score(trial: Trial, wish: Wish, node: NodeId, mask: int, exact: str | None) -> Score:
    """Return what placing one rank on a node costs."""
    scored = _state_score(trial, trial.state(node, mask), wish.shape.demand, exact, lambda: trial.room(node, mask))
    return _dearer(scored, wish.cost.get(node, wish.cost_unlisted))


def _dearer(score: Score, cost: float) -> Score:
    return (score[0] + cost, score[1], score[2]) if cost else score


def _state_score(trial: Trial, state: State, demand: Demand, exact: str | None, room: Callable[[], Room]) -> Score:
    """Return what placing one rank on nodes in a state costs; ``room`` is asked for one of them."""
    prices = trial.prices()
    scores = prices.scores.setdefault((demand, exact), {})
    score = scores.get(state)
    if score is None:
        score = scores[state] = prices.score(state, _fate_of(trial, state, demand, exact, room))
    return score


def _fate_of(trial: Trial, state: State, demand: Demand, exact: str | None, room: Callable[[], Room]) -> Fate:
    fate = state.fates.get((demand, exact))
    if fate is None:
        fate = state.fates[demand, exact] = _fate(trial, room(), demand, exact)
    return fate


def _fate(trial: Trial, room: Room, demand: Demand, exact: str | None) -> Fate:
    """Return what placing one rank does to a node; ``demand`` may be that of several ranks together."""
    stay = room.cpus_milli - demand.cpus_milli
    free, eligible = room.free, room.eligible(demand, exact)
    count = demand.gpus_whole
    split = 0.0
    if count:
        islands = _islands(room, eligible)
        split = 0.0 if any(len(members) >= count for members in islands.values()) else ISLAND_SPLIT
        tightness = float(sum(map(len, islands.values())) - count)
    else:
        shared = [free[i] for i in eligible if demand.gpu_milli <= free[i] < MILLI] if demand.is_share else []
        if shared:
            tightness = min(shared) / MILLI - 1.0
        else:
            # A job without GPUs takes CPUs that a node's devices will need, also of those that are busy now.
            spoilt = sum(1 for milli in free if milli >= MILLI)
            tightness = float(spoilt + (0 if demand.is_share else len(free)))
    return Fate(tightness, split, stay, tuple(_options(trial, room, demand, exact)))


def _options(trial: Trial, room: Room, demand: Demand, exact: str | None) -> Iterator[Option]:
    """Yield the states of a node after one rank: one for each kind of device that a share could go to."""
    devices = room.offer.devices
    choices: dict[tuple[str, int, int] | None, list[int]] = {}
    if demand.is_share:
        for i in room.eligible(demand, exact):
            if room.free[i] >= demand.gpu_milli:
                choices.setdefault((devices[i].model, devices[i].island, room.free[i]), [i])
    elif demand.gpus_whole:
        choices[None] = _whole_devices(room, room.eligible(demand, exact), demand.gpus_whole, {})
    milli = min(MILLI, demand.gpu_milli)
    for kind, positions in (choices or {None: []}).items():
        free = room.free.copy()
        for i in positions:
            free[i] -= milli
        after = room.copy(free)
        after.cpus_milli -= demand.cpus_milli
        after.memory_mib -= demand.memory_mib
        yield kind, trial.gauge.state(after.key)


def _find_on_one_node(trial: Trial, wish: Wish, mask: int, fits: dict[NodeId, int], models: list[str]) -> _Spot | None:
    demand, ranks = wish.shape.demand, wish.shape.ranks
    merged = Demand(demand.gpu_milli * ranks, demand.gpu_model, demand.cpus_milli * ranks, demand.memory_mib * ranks)
    for stage, exact in enumerate((*models, None)):
        best: _Spot | None = None
        for node, fit in fits.items():
            if fit < ranks:
                continue
            for room in _parts(trial.room(node, mask), wish):
                if room.fit(demand, exact) < ranks:
                    continue
                itself = functools.partial(_itself, room)
                scored = _state_score(trial, trial.gauge.state(room.key), merged, exact, itself)
                score = _dearer(scored, wish.cost.get(node, wish.cost_unlisted))
                if best is None or (score, node) < (best.score, best.nodes[0][0]):
                    best = _Spot(stage, score, [(node, ranks)], exact, room)
        if best is not None:
            return best
    return None


def _itself(room: Room) -> Room:
    return room


def _parts(room: Room, wish: Wish) -> Iterator[Room]:
    """Yield the whole node, or its NVLink islands one by one when the bid demands one."""
    if wish.locality is not Locality.NVLINK or wish.shape.demand.gpu_milli == 0:
        yield room
        return
    devices = room.offer.devices
    for island in sorted({d.island for d in devices}):
        free = [milli if d.island == island else 0 for d, milli in zip(devices, room.free, strict=True)]
        yield room.copy(free)


def _fill(trial: Trial, wish: Wish, mask: int, spot: _Spot) -> tuple[Placement, ...]:
    placements: list[Placement] = []
    for node, count in spot.nodes:
        first = len(placements)
        room = spot.part if spot.part is not None else trial.room(node, mask)
        placements.extend(_ranks_on(trial, room, wish, spot.exact, range(first, first + count)))
    return tuple(placements)


def _ranks_on(trial: Trial, room: Room, wish: Wish, exact: str | None, ranks: range) -> Iterator[Placement]:
    """Yield the placements of some ranks on one node; uses ``room`` up."""
    demand = wish.shape.demand
    for rank in ranks:
        chosen = _choose_devices(trial, room, wish, exact)
        milli = min(MILLI, demand.gpu_milli)
        shares = tuple(DeviceShare(room.offer.devices[i].uuid, milli) for i in sorted(chosen))
        for i in chosen:
            room.free[i] -= milli
        room.cpus_milli -= demand.cpus_milli
        room.memory_mib -= demand.memory_mib
        yield Placement(rank, room.offer.node, shares, demand.cpus_milli, demand.memory_mib)


def _choose_devices(trial: Trial, room: Room, wish: Wish, exact: str | None) -> list[int]:
    """Return the positions of the devices for one rank, which must fit."""
    demand = wish.shape.demand
    if demand.gpu_milli == 0:
        return []
    devices, free = room.offer.devices, room.free
    eligible = room.eligible(demand, exact)
    ready = {i: wish.ready.get(devices[i].uuid, 0.0) if wish.ready is not None else 0.0 for i in eligible}
    if demand.gpus_whole:
        return _whole_devices(room, eligible, demand.gpus_whole, ready)
    open_ = [i for i in eligible if free[i] >= demand.gpu_milli]
    if len(open_) == 1:
        return open_
    islands = _islands(room, eligible)
    state, prices = trial.gauge.state(room.key), trial.prices()
    fate = _fate_of(trial, state, demand, exact, lambda: room)
    loss = {kind: prices.loss(state, after) for kind, after in fate.options}

    def order(i: int) -> tuple[float, float, int, int, int]:
        island = devices[i].island
        lost = loss.get((devices[i].model, island, free[i]), 0.0)
        return ready[i], lost, free[i], len(islands.get(island, ())), i

    return [min(open_, key=order)]


def _islands(room: Room, eligible: list[int]) -> dict[int, list[int]]:
    """Return the positions of whole free devices by NVLink island."""
    devices, free = room.offer.devices, room.free
    islands: dict[int, list[int]] = {}
    for i in eligible:
        if free[i] >= MILLI:
            islands.setdefault(devices[i].island, []).append(i)
    return islands


def _whole_devices(room: Room, eligible: list[int], count: int, ready: Mapping[int, float]) -> list[int]:
    """Return the devices that come free first, on one island that takes all (the fullest) or on few islands."""
    islands = _islands(room, eligible)
    for members in islands.values():
        members.sort(key=lambda i: (ready.get(i, 0.0), i))
    fitting = [island for island, members in islands.items() if len(members) >= count]
    if fitting:
        island = min(fitting, key=lambda name: (ready.get(islands[name][count - 1], 0.0), len(islands[name]), name))
        return islands[island][:count]
    largest_first = sorted(islands.items(), key=lambda item: (-len(item[1]), item[0]))
    return [i for _, members in largest_first for i in members][:count]
