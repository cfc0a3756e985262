"""The smallest change of a request that would start it sooner. What is said was tried: a round placed just that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from msgspec.structs import replace

from corral.model.ids import GangKey, NodeId
from corral.model.offer import Bid, Candidate, Holding, NodeOffer, Reservation, Snapshot, Standing
from corral.model.resources import MILLI, Amount, GangShape, Placement
from corral.policy.arbitration import arbitrate
from corral.policy.cursor import FOREVER
from corral.policy.feasibility import gpus_words
from corral.policy.outlook import Scene, in_order
from corral.policy.pending import PendingIndex
from corral.policy.placement import Wish, place
from corral.policy.reservation import constraints_of
from corral.policy.trial import Trial

MINUTE_S = 60.0
MIB_PER_GIB = 1024
NODES_SHOWN = 4
HOLDERS_MAX = 512
"""Holders whose end is tried: an answer within 100 ms on pools of thousands of devices."""

AHEAD_MAX = 200
"""Gangs of a trial round, the first in line: for one behind them nothing is said."""

ROUNDS_MAX = 4
"""Trial rounds of one answer: only what fits where nobody else waits is worth one."""


def cheapest_change(scene: Scene, candidate: Candidate) -> str | None:
    """Return the first of these that would start the gang now, else whose end would, ``None`` when nothing helps.

    A declared duration that ends before the reservation in its way; any model, half the CPUs, half the memory; fewer
    GPUs (alone, else with CPUs and memory in proportion, which the words then name); fewer nodes; the end of one
    holder. Each holds with all reservations of others and with those ahead in line, who are placed first.
    """
    others = [kept for kept in scene.reservations if kept.key != candidate.key]
    trial = Trial(scene.snapshot.nodes)
    trial.constrain(constraints_of(others, trial, scene.snapshot.holdings))
    rounds = _Rounds(scene, others)

    def fits(asked: Candidate) -> bool:
        end = FOREVER if asked.max_duration_s is None else scene.snapshot.at + asked.max_duration_s
        return place(trial, Wish.of(asked.bids[0], scene.config), trial.mask(end)) is not None

    if fits(candidate):
        return None
    for words, asked in _changes(scene, candidate, others, trial):
        if fits(asked) and (placements := rounds.changed(candidate, asked)) is not None:
            return f"{words} it would start now on {_where(placements)}"
    return _after_an_end(scene, candidate, rounds)


class _Rounds:
    """Trial rounds with one thing changed, at most ``ROUNDS_MAX`` of them."""

    def __init__(self, scene: Scene, others: Sequence[Reservation]) -> None:
        self._scene = scene
        self._others = others
        self._left = ROUNDS_MAX

    @property
    def spent(self) -> bool:
        """Return whether no round is left."""
        return self._left == 0

    def changed(self, candidate: Candidate, asked: Candidate) -> tuple[Placement, ...] | None:
        """Return where a gang would start now had it asked so from the beginning, ``None`` when it would not."""
        return self._run(self._scene, candidate.key, asked, self._others)

    def ended(self, holding: Holding, candidate: Candidate) -> bool:
        """Return whether a gang would start if a holder ended now."""
        scene = self._scene
        back = _amount(holding.placements)
        standing = scene.standing(holding.tenant)
        held = Amount(
            max(0, standing.held.gpu_milli - back.gpu_milli),
            max(0, standing.held.cpus_milli - back.cpus_milli),
            max(0, standing.held.memory_mib - back.memory_mib),
        )
        lower = Standing(standing.tenant, held, standing.decayed_share)
        after = replace(
            scene,
            snapshot=_without(scene.snapshot, holding),
            standings={**scene.standings, holding.tenant: lower},
        )
        return self._run(after, candidate.key, candidate, scene.reservations) is not None

    def _run(
        self, scene: Scene, key: GangKey, asked: Candidate, reservations: Sequence[Reservation]
    ) -> tuple[Placement, ...] | None:
        if self.spent:
            return None
        self._left -= 1
        first = list(islice(in_order(scene), AHEAD_MAX))
        if all(one.key != key for one in first):
            return None
        pending = PendingIndex(asked if one.key == key else one for one in first)
        verdict = arbitrate(scene.snapshot, pending, scene.standings, scene.queues, reservations, scene.config)
        return next((won.placements for won in verdict.allocations if won.key == key), None)


def _amount(placements: Sequence[Placement]) -> Amount:
    total = Amount()
    for placement in placements:
        total = total + Amount.of(placement)
    return total


def _without(snapshot: Snapshot, holding: Holding) -> Snapshot:
    """Return the snapshot as it would be if a holder had ended."""
    by_node: dict[NodeId, list[Placement]] = {}
    for placement in holding.placements:
        by_node.setdefault(placement.node, []).append(placement)

    def freed(offer: NodeOffer) -> NodeOffer:
        here = by_node.get(offer.node)
        if here is None:
            return offer
        back: dict[str, int] = {}
        for share in (share for placement in here for share in placement.devices):
            back[share.uuid] = back.get(share.uuid, 0) + share.milli
        return replace(
            offer,
            devices=tuple(replace(d, free_milli=min(MILLI, d.free_milli + back.get(d.uuid, 0))) for d in offer.devices),
            cpus_milli=offer.cpus_milli + sum(p.cpus_milli for p in here),
            memory_mib=offer.memory_mib + sum(p.memory_mib for p in here),
        )

    return replace(
        snapshot,
        nodes=tuple(freed(offer) for offer in snapshot.nodes),
        holdings=tuple(other for other in snapshot.holdings if other.key != holding.key),
    )


def _where(placements: Sequence[Placement]) -> str:
    nodes = list(dict.fromkeys(placement.node for placement in placements))
    return ", ".join(nodes) if len(nodes) <= NODES_SHOWN else f"{len(nodes)} nodes"


def _changes(
    scene: Scene, candidate: Candidate, others: Sequence[Reservation], trial: Trial
) -> Iterator[tuple[str, Candidate]]:
    """Yield changed requests in words and as they are, the smallest change first."""
    for kept in others:
        room_s = 0.0 if kept.start_at is None else kept.start_at - scene.snapshot.at
        # Down to what the words say: what is tried is what a user would type.
        room_s -= room_s % (MINUTE_S if room_s >= MINUTE_S else 1.0)
        if room_s > 0 and (candidate.max_duration_s is None or candidate.max_duration_s > room_s):
            length = f"{room_s / MINUTE_S:.0f} min" if room_s >= MINUTE_S else f"{room_s:.0f} s"
            yield f"with a max_duration of at most {length}", replace(candidate, max_duration_s=room_s)
    bid = candidate.bids[0]
    end = FOREVER if candidate.max_duration_s is None else scene.snapshot.at + candidate.max_duration_s
    smaller = sorted(
        _smaller(bid, trial.fits(bid.shape.demand, None, trial.mask(end))),
        key=lambda found: _size(found[1]),
        reverse=True,
    )
    for words, other in (*_milder(bid), *smaller):
        yield words, replace(candidate, bids=(other,))


def _size(bid: Bid) -> tuple[int, int]:
    """Return how much of a request is left: its devices (or CPUs), whole nodes rather than thinner ones."""
    need, ranks = bid.shape.demand, bid.shape.ranks
    return ranks * (need.gpu_milli or need.cpus_milli), need.gpu_milli


def _with(bid: Bid, **demand: object) -> Bid:
    return replace(bid, shape=GangShape(bid.shape.ranks, replace(bid.shape.demand, **demand)))


def _cpus(milli: int) -> tuple[str, int]:
    """Return CPUs in words, and as much as the words say: whole ones where there are any."""
    said = max(1, milli if milli < MILLI else milli - milli % MILLI)
    return f"{said / MILLI:g} CPU" + ("" if said <= MILLI else "s"), said


def _memory(mib: int) -> tuple[str, int]:
    """Return memory in words, and as much as the words say: whole GiB where there are any."""
    said = max(1, mib if mib < MIB_PER_GIB else mib - mib % MIB_PER_GIB)
    return (f"{said} MiB" if said < MIB_PER_GIB else f"{said // MIB_PER_GIB} GiB"), said


def _milder(bid: Bid) -> Iterator[tuple[str, Bid]]:
    need = bid.shape.demand
    if need.gpu_model is not None:
        yield f"without asking for {need.gpu_model}", _with(bid, gpu_model=None)
    if need.cpus_milli >= 2 * MILLI:
        words, cpus = _cpus(need.cpus_milli // 2)
        yield f"with {words} per node", _with(bid, cpus_milli=cpus)
    if need.memory_mib >= 2:
        words, memory = _memory(need.memory_mib // 2)
        yield f"with {words} of memory per node", _with(bid, memory_mib=memory)


def _smaller(bid: Bid, fits: Mapping[NodeId, int]) -> Iterator[tuple[str, Bid]]:
    need, ranks = bid.shape.demand, bid.shape.ranks
    for count in range(need.gpus_whole - 1, 0, -1):
        fewer = gpus_words(count * MILLI)
        yield (
            f"with {fewer} instead of {gpus_words(need.gpu_milli)} per node",
            _with(bid, gpu_milli=count * MILLI),
        )
        # The user may have fixed CPUs and memory: what is taken from them has to be said.
        cpus_words, cpus = _cpus(need.cpus_milli * count // need.gpus_whole)
        memory_words, memory = _memory(need.memory_mib * count // need.gpus_whole)
        yield (
            f"with {fewer}, {cpus_words} and {memory_words} per node",
            _with(bid, gpu_milli=count * MILLI, cpus_milli=cpus, memory_mib=memory),
        )
    left = min(ranks - 1, sum(fits.values()))
    if left > 0:
        nodes = f"{left} node{'s' if left > 1 else ''}"
        yield f"with {nodes} instead of {ranks}", replace(bid, shape=GangShape(left, need))


def _after_an_end(scene: Scene, candidate: Candidate, rounds: _Rounds) -> str | None:
    """Return whose end alone would start it: own jobs before those of others, the earliest known end first."""
    holdings = sorted(
        scene.snapshot.holdings,
        key=lambda h: (h.tenant != candidate.tenant, h.ends_at if h.ends_at is not None else FOREVER, h.key),
    )
    wish = Wish.of(candidate.bids[0], scene.config)
    trial = Trial(scene.snapshot.nodes)
    for holding in holdings[:HOLDERS_MAX]:
        if rounds.spent:
            break
        trial.release(holding.placements)
        enough = place(trial, wish) is not None
        trial.take((p for p in holding.placements if p.node in trial.offers), FOREVER)
        if enough and rounds.ended(holding, candidate):
            if holding.key.job == candidate.key.job:
                return "after another element of this job ends it would start"
            if holding.tenant == candidate.tenant:
                return f"after your job {holding.key.job} ends it would start"
            return f"after one job of tenant {holding.tenant} ends it would start"
    return None
