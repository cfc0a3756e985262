"""The smallest change of a request that would start it sooner."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from corral.model.offer import Bid, Candidate
from corral.model.resources import MILLI, GangShape, Placement
from corral.policy.cursor import FOREVER
from corral.policy.feasibility import gpus_words
from corral.policy.outlook import Scene
from corral.policy.placement import Wish, place
from corral.policy.reservation import constraints_of
from corral.policy.trial import Trial

MINUTE_S = 60.0
NODES_SHOWN = 4
HOLDERS_MAX = 512
"""Holders whose end is tried: an answer within 100 ms on pools of thousands of devices."""


def cheapest_change(scene: Scene, candidate: Candidate) -> str | None:
    """Return the first of these that would start the gang now, else whose end would, ``None`` when nothing helps.

    Any model, half the CPUs, half the memory; a declared duration that ends before the reservation in its way; fewer
    GPUs; fewer nodes; the end of one holder.
    """
    others = [kept for kept in scene.reservations if kept.key != candidate.key]
    trial = Trial(scene.snapshot.nodes)
    trial.constrain(constraints_of(others, trial, scene.snapshot.holdings))
    bid = candidate.bids[0]
    now = scene.snapshot.at

    def starts(other: Bid, duration_s: float | None = candidate.max_duration_s) -> str | None:
        end = FOREVER if duration_s is None else now + duration_s
        placements = place(trial, Wish.of(other, scene.config), trial.mask(end))
        return None if placements is None else _where(placements)

    if starts(bid):
        return None
    for words, other in _milder(bid):
        where = starts(other)
        if where is not None:
            return f"{words} it would start now on {where}"
    for kept in others:
        if kept.start_at is None:
            continue
        room_s = kept.start_at - now
        longer = candidate.max_duration_s is None or candidate.max_duration_s > room_s
        if room_s >= MINUTE_S and longer and (where := starts(bid, room_s)) is not None:
            minutes = int(room_s // MINUTE_S)
            return f"with a max_duration of {minutes} min it would start now on {where}, before a reservation"
    for words, other in sorted(_smaller(bid), key=lambda smaller: _size(smaller[1]), reverse=True):
        where = starts(other)
        if where is not None:
            return f"{words} it would start now on {where}"
    return _after_an_end(scene, candidate, bid)


def _where(placements: Sequence[Placement]) -> str:
    nodes = list(dict.fromkeys(placement.node for placement in placements))
    return ", ".join(nodes) if len(nodes) <= NODES_SHOWN else f"{len(nodes)} nodes"


def _size(bid: Bid) -> tuple[int, int]:
    """Return how much of a request is left: its devices (or CPUs), whole nodes rather than thinner ones."""
    need, ranks = bid.shape.demand, bid.shape.ranks
    return ranks * (need.gpu_milli or need.cpus_milli), need.gpu_milli


def _with(bid: Bid, **demand: object) -> Bid:
    return replace(bid, shape=GangShape(bid.shape.ranks, replace(bid.shape.demand, **demand)))


def _milder(bid: Bid) -> Iterator[tuple[str, Bid]]:
    need = bid.shape.demand
    if need.gpu_model is not None:
        yield f"without asking for {need.gpu_model}", _with(bid, gpu_model=None)
    half = need.cpus_milli // 2
    if half >= MILLI:
        yield f"with {half / MILLI:g} CPUs per node", _with(bid, cpus_milli=half)
    if need.memory_mib >= 2:
        half = need.memory_mib // 2
        yield f"with {half / 1024:g} GiB of memory per node", _with(bid, memory_mib=half)


def _smaller(bid: Bid) -> Iterator[tuple[str, Bid]]:
    need = bid.shape.demand
    for count in range(need.gpus_whole - 1, 0, -1):
        share = count / need.gpus_whole
        milder = _with(
            bid,
            gpu_milli=count * MILLI,
            cpus_milli=max(1, int(need.cpus_milli * share)),
            memory_mib=int(need.memory_mib * share),
        )
        words = f"with {gpus_words(count * MILLI)} instead of {gpus_words(need.gpu_milli)} per node"
        yield words, milder
    for ranks in range(bid.shape.ranks - 1, 0, -1):
        nodes = f"{ranks} node{'s' if ranks > 1 else ''}"
        yield (
            f"with {nodes} instead of {bid.shape.ranks}",
            replace(bid, shape=GangShape(ranks, need)),
        )


def _after_an_end(scene: Scene, candidate: Candidate, bid: Bid) -> str | None:
    """Return whose end alone would make room: own jobs before those of others, the earliest known end first."""
    holdings = sorted(
        scene.snapshot.holdings,
        key=lambda h: (h.tenant != candidate.tenant, h.ends_at if h.ends_at is not None else FOREVER, h.key),
    )
    wish = Wish.of(bid, scene.config)
    trial = Trial(scene.snapshot.nodes)
    for holding in holdings[:HOLDERS_MAX]:
        trial.release(holding.placements)
        if place(trial, wish) is not None:
            if holding.tenant == candidate.tenant:
                return f"after your job {holding.key.job} ends it would start"
            return f"after one job of tenant {holding.tenant} ends it would start"
        trial.take((p for p in holding.placements if p.node in trial.offers), FOREVER)
    return None
