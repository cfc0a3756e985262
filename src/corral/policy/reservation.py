"""EASY reservations: the first gang that does not fit gets a start time and concrete placements (Lifka, JSSPP'95).

Known ends are promises: with them alone the start is the earliest time at which the gang fits, and whoever ends before
it may use the kept devices in the meantime. Where some holder declared no end there is no such time; then the devices
that are expected first are kept as they come free, for nobody but the gang. Expected ends of such holders order the
choice only: the longer it ran, the longer it is expected to go on. Who has to make room for the gang once its tenure
is over (a lower priority of its tenant, what was lent of its guarantee) is expected to end then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter

import msgspec
from msgspec.structs import replace

from corral.model.ids import DeviceId, NodeId, TenantId
from corral.model.offer import Bid, Candidate, Holding, NodeOffer, Reservation, Standing
from corral.model.resources import MILLI, Amount, Demand, GangShape, Placement
from corral.policy.apart import port_taken
from corral.policy.config import SchedulingConfig
from corral.policy.cursor import FOREVER
from corral.policy.fairness import below_guarantee
from corral.policy.feasibility import empty_fit
from corral.policy.placement import Wish, place
from corral.policy.room import Room
from corral.policy.trial import Constraint, Keep, Trial


class Plan(msgspec.Struct, frozen=True):
    """A reservation and when its last device is expected (seconds since the epoch; equal to ``start_at`` if known)."""

    reservation: Reservation
    expected_at: float


def expected_end(holding: Holding, now: float, config: SchedulingConfig) -> float:
    """Return the declared end, or ``now`` plus the age of a holder that declared none (at least ``unknown_end_s``)."""
    if holding.ends_at is not None:
        return max(now, holding.ends_at)
    return now + max(config.unknown_end_s, now - holding.started_at)


def yielding(
    candidate: Candidate,
    holdings: Sequence[Holding],
    standings: Mapping[TenantId, Standing],
    now: float,
    config: SchedulingConfig,
) -> Sequence[Holding]:
    """Return the holdings with the ends that a gang may count on.

    Who has a lower priority in the gang's tenant is asked to make room in the first round after its tenure; so is,
    while that tenant is below its guarantee, who holds what is lent. Global rounds may preempt others too, but a gang
    cannot count on that.
    """
    standing = standings.get(candidate.tenant)
    short = standing is not None and below_guarantee(standing, _need(candidate.bids[0]))
    if not short and all(h.tenant != candidate.tenant or h.priority >= candidate.priority for h in holdings):
        return holdings
    seen = []
    for holding in holdings:
        own = holding.tenant == candidate.tenant
        yields = holding.priority < candidate.priority if own else short and _lent(holding, standings)
        gone = max(now, holding.tenure_until) + config.round_s
        if yields and holding.preemptible and not holding.stopping and gone < FOREVER:
            seen.append(replace(holding, ends_at=gone if holding.ends_at is None else min(gone, holding.ends_at)))
        else:
            seen.append(holding)
    return seen


def _need(bid: Bid) -> Amount:
    return Amount.of(bid.shape.demand).times(bid.shape.ranks)


def _lent(holding: Holding, standings: Mapping[TenantId, Standing]) -> bool:
    """Return whether a holder's tenant would still have what it is guaranteed without it."""
    standing = standings.get(holding.tenant)
    if standing is None:
        return True
    holds = Amount()
    for placement in holding.placements:
        holds = holds + Amount.of(placement)
    return not below_guarantee(replace(standing, held=standing.held - holds), holds)


class _Future:
    """A branch of the trial in which holders give back one after the other."""

    def __init__(self, trial: Trial, others: Iterable[Reservation], needed_milli: int) -> None:
        self.trial = trial.branch()
        self.devices: dict[DeviceId, float] = {}
        self.nodes: dict[NodeId, float] = {}
        self._needed_milli = needed_milli
        for other in others:
            self.trial.take((p for p in other.placements if p.node in trial.offers), FOREVER)

    def release(self, placements: Sequence[Placement], at: float) -> None:
        for device in self.trial.release(placements, self._needed_milli):
            self.devices[device] = at
        if not self._needed_milli:
            # Some bid wants no devices: then it is nodes that are waited for.
            for placement in placements:
                self.nodes[placement.node] = at

    def wish(self, wish: Wish, now: float) -> Wish:
        """Return the wish with waiting as the cost of nodes (a second weighs as a device) and devices by readiness."""
        cost: dict[NodeId, float] = {}
        for node in self.trial.fits(wish.shape.demand):
            wait = self._wait(self.trial.look(node), wish) - now
            cost[node] = max(0.0, wait) + wish.cost.get(node, wish.cost_unlisted)
        return replace(wish, cost=cost, ready=self.devices)

    def _wait(self, room: Room, wish: Wish) -> float:
        demand = wish.shape.demand
        if demand.gpu_milli == 0:
            return self.nodes.get(room.offer.node, 0.0)
        needed, devices = min(MILLI, demand.gpu_milli), room.offer.devices
        eligible = room.eligible(demand, None)
        times = sorted([self.devices.get(devices[i].uuid, 0.0) for i in eligible if room.free[i] >= needed])
        count = max(1, demand.gpus_whole)
        return times[count - 1] if len(times) >= count else 0.0

    def expected(self, placements: Sequence[Placement], now: float) -> float:
        times = [self.devices.get(s.uuid, now) for p in placements for s in p.devices]
        times += [self.nodes.get(p.node, now) for p in placements if not p.devices]
        return max((now, *times))


def _would_fit(shape: GangShape, offers: Iterable[NodeOffer]) -> bool:
    """Return whether the nodes could take a gang if nobody held anything of them."""
    left = shape.ranks
    for offer in offers:
        left -= empty_fit(offer, shape.demand)
        if left <= 0:
            return True
    return False


def plan(
    candidate: Candidate,
    bids: Sequence[Bid],
    trial: Trial,
    holdings: Sequence[Holding],
    others: Sequence[Reservation],
    now: float,
    config: SchedulingConfig,
) -> Plan | None:
    """Return the earliest reservation for a gang next to the ``others``, ``None`` when even an empty pool is too small.

    ``bids`` are those of the candidate's that its limits allow, best first.
    ``trial`` is the view of now (nothing is taken from it), ``holdings`` are all that hold something in it.
    """
    without = port_taken(candidate.kin, trial.offers, holdings)
    could = [bid for bid in bids if _would_fit(bid.shape, (o for n, o in trial.offers.items() if n not in without))]
    if not could:
        return None
    wishes = [Wish.of(bid, config, without) for bid in could]
    needed = min(min(MILLI, wish.shape.demand.gpu_milli) for wish in wishes)
    future = _Future(trial, others, needed)
    found = _try(future, wishes, now)
    if found is not None:
        return _plan_of(candidate, future, found, start_at=now, now=now)
    known = [(max(now, h.ends_at), h.key, h) for h in holdings if h.ends_at is not None]
    known.sort(key=itemgetter(0, 1))
    for at, _, holding in known:
        future.release(holding.placements, at)
        found = _try(future, wishes, now)
        if found is not None:
            return _plan_of(candidate, future, found, start_at=at, now=now)
    unknown = [(expected_end(h, now, config), h.key, h) for h in holdings if h.ends_at is None]
    unknown.sort(key=itemgetter(0, 1))
    for at, _, holding in unknown:
        future.release(holding.placements, at)
    found = _try(future, wishes, now)
    return _plan_of(candidate, future, found, start_at=None, now=now) if found is not None else None


def _try(future: _Future, wishes: Sequence[Wish], now: float) -> tuple[Placement, ...] | None:
    """Return where the first wish that can be had goes; what waiting costs there decides where, not whether."""
    for wish in wishes:
        if future.trial.total(wish.shape.demand) >= wish.shape.ranks:
            found = place(future.trial, future.wish(wish, now))
            if found is not None:
                return found
    return None


def _plan_of(
    candidate: Candidate, future: _Future, placements: tuple[Placement, ...], *, start_at: float | None, now: float
) -> Plan:
    reservation = Reservation(candidate.key, candidate.tenant, placements, start_at, now)
    return Plan(reservation, start_at if start_at is not None else future.expected(placements, now))


def still_there(reservation: Reservation, offers: Mapping[NodeId, NodeOffer]) -> bool:
    """Return whether all nodes and devices of a reservation are still offered."""
    for placement in reservation.placements:
        offer = offers.get(placement.node)
        if offer is None:
            return False
        present = {device.uuid for device in offer.devices}
        if any(share.uuid not in present for share in placement.devices):
            return False
    return True


def expected_start(
    reservation: Reservation, holdings: Sequence[Holding], now: float, config: SchedulingConfig
) -> float:
    """Return when the holders of a reservation's devices (or of its nodes, without devices) are expected to be gone."""
    if reservation.start_at is not None:
        return max(now, reservation.start_at)
    devices = {share.uuid for p in reservation.placements for share in p.devices}
    nodes = {p.node for p in reservation.placements if not p.devices}
    latest = now
    for holding in _on(reservation.placements, holdings):
        for placement in holding.placements:
            if placement.node in nodes or any(share.uuid in devices for share in placement.devices):
                latest = max(latest, expected_end(holding, now, config))
    return latest


def _on(placements: Iterable[Placement], holdings: Sequence[Holding]) -> list[Holding]:
    """Return who holds something on one of the nodes of these placements: as a rule few of many."""
    nodes = {placement.node for placement in placements}
    return [h for h in holdings if not nodes.isdisjoint([p.node for p in h.placements])]


def renewed(
    old: Reservation,
    candidate: Candidate,
    bids: Sequence[Bid],
    trial: Trial,
    holdings: Sequence[Holding],
    others: Sequence[Reservation],
    now: float,
    config: SchedulingConfig,
) -> Reservation | None:
    """Return the reservation of a gang that has one (see ``plan`` and ``better``).

    As a rule it stays as it is, which is seen without making a new plan: too little is free by the time that would do.
    """
    without = port_taken(candidate.kin, trial.offers, holdings)
    barred = any(placement.node in without for placement in old.placements)
    if not barred and _stays(old, bids, trial, holdings, others, now, config):
        return old
    new = plan(candidate, bids, trial, holdings, others, now, config)
    if new is None or barred:
        return replace(new.reservation, made_at=old.made_at) if new is not None else None
    return better(old, new, trial.offers, holdings, now, config)


def _stays(
    old: Reservation,
    bids: Sequence[Bid],
    trial: Trial,
    holdings: Sequence[Holding],
    others: Sequence[Reservation],
    now: float,
    config: SchedulingConfig,
) -> bool:
    """Return whether no new plan could be better: all that might be free in time is too little for any bid."""
    has = (len(old.placements), Amount.of(old.placements[0]))
    if (old.start_at is not None and old.start_at <= now) or not still_there(old, trial.offers):
        return False
    if all((bid.shape.ranks, Amount.of(bid.shape.demand)) != has for bid in bids):
        return False
    if old.start_at is not None:
        back = [h for h in holdings if h.ends_at is not None and h.ends_at < old.start_at]
        demands = [bid.shape.demand for bid in bids]
    else:
        until = now + config.replan_ratio * (expected_start(old, holdings, now, config) - now)
        back = [h for h in holdings if h.ends_at is not None or expected_end(h, now, config) < until]
        # Of expected ends only those count that free a device.
        demands = [_on_devices(bid.shape.demand) for bid in bids]
    future = trial.branch()
    for other in others:
        future.take((p for p in other.placements if p.node in trial.offers), FOREVER)
    for holding in back:
        future.release(holding.placements)
    return all(future.total(demand) < bid.shape.ranks for demand, bid in zip(demands, bids, strict=True))


def _on_devices(demand: Demand) -> Demand:
    return Demand(demand.gpu_milli, demand.gpu_model, 0, 0) if demand.gpu_milli else demand


def better(old: Reservation, new: Plan, offers: Mapping[NodeId, NodeOffer], holdings: Sequence[Holding],
           now: float, config: SchedulingConfig) -> Reservation:  # fmt: skip
    """Return which of an existing reservation and a new plan to keep. It stays unless it broke or gets earlier."""
    fresh = replace(new.reservation, made_at=old.made_at)
    if not still_there(old, offers):
        return fresh
    if old.start_at is not None:
        overdue = old.start_at <= now
        sooner = fresh.start_at is not None and fresh.start_at < old.start_at
        return fresh if overdue or sooner else old
    if fresh.start_at is not None:
        return fresh
    old_wait = expected_start(old, holdings, now, config) - now
    return fresh if new.expected_at - now < config.replan_ratio * old_wait else old


def constraints_of(reservations: Sequence[Reservation], trial: Trial, holdings: Sequence[Holding]) -> list[Constraint]:
    """Return what reservations need together: one constraint per known start, and one for those without.

    At each known start, all that start until then need their placements, less what holders with a declared end give
    back until then. Those without a start need theirs in addition and always, less what the holders give back whom
    they wait for: those on their devices that are not free yet.
    """
    offers = trial.offers
    found: list[Constraint] = []
    holdings = _on((p for kept in reservations for p in kept.placements), holdings) if reservations else ()
    known = sorted({kept.start_at for kept in reservations if kept.start_at is not None})
    for start in known:
        due = [kept for kept in reservations if kept.start_at is not None and kept.start_at <= start]
        back = [h for h in holdings if h.ends_at is not None and h.ends_at <= start]
        found.append(Constraint(start, start, _keeps(due, back, offers)))
    open_ = [kept for kept in reservations if kept.start_at is None]
    if open_:
        last = known[-1] if known else -FOREVER
        devices = _awaited(open_, trial)
        back = [
            h
            for h in holdings
            if (h.ends_at is not None and h.ends_at <= last)
            or any(share.uuid in devices for p in h.placements for share in p.devices)
        ]
        found.append(Constraint(-FOREVER, last, _keeps(reservations, back, offers)))
    return found


def _awaited(reservations: Sequence[Reservation], trial: Trial) -> set[DeviceId]:
    """Return the kept devices on which less is free now than is kept."""
    needed: dict[DeviceId, int] = {}
    for kept in reservations:
        for placement in kept.placements:
            for share in placement.devices:
                needed[share.uuid] = needed.get(share.uuid, 0) + share.milli
    found: set[DeviceId] = set()
    for node in sorted({p.node for kept in reservations for p in kept.placements} & trial.offers.keys()):
        room = trial.room(node)
        for device, free in zip(room.offer.devices, room.free, strict=True):
            if free < needed.get(device.uuid, 0):
                found.add(device.uuid)
    return found


def _keeps(
    reservations: Iterable[Reservation], given_back: Iterable[Holding], offers: Mapping[NodeId, NodeOffer]
) -> dict[NodeId, Keep]:
    keeps: dict[NodeId, Keep] = {}
    for kept in reservations:
        for placement in kept.placements:
            offer = offers.get(placement.node)
            if offer is not None:
                keep = keeps.get(placement.node)
                if keep is None:
                    keep = keeps[placement.node] = Keep(len(offer.devices))
                keep.change(offer, placement, 1)
    for holding in given_back:
        for placement in holding.placements:
            keep = keeps.get(placement.node)
            if keep is not None:
                keep.change(offers[placement.node], placement, -1)
    return keeps
