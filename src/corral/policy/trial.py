"""The working view of one round: node offers that can be taken from, with what reservations keep. Forgotten afterwards.

A round looks at the same few shapes again and again, so the ranks that fit are kept in one table per (demand, exact
device model, binding reservations); taking something recomputes only the touched node in each table. Only touched nodes
are copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from corral.model.ids import NodeId
from corral.model.offer import NodeOffer
from corral.model.resources import MILLI, Demand, Placement
from corral.policy.feasibility import device_fit, model_matches, whole


class Room:
    """The free part of one node: milli by device in the order of ``offer.devices``, CPUs and memory."""

    __slots__ = ("cpus_milli", "free", "memory_mib", "offer")

    def __init__(self, offer: NodeOffer, free: list[int], cpus_milli: int, memory_mib: int) -> None:
        self.offer = offer
        self.free = free
        self.cpus_milli = cpus_milli
        self.memory_mib = memory_mib

    @classmethod
    def of(cls, offer: NodeOffer) -> Room:
        """Return a copy of an offer's free part."""
        return cls(offer, [d.free_milli for d in offer.devices], offer.cpus_milli, offer.memory_mib)

    def fit(self, demand: Demand, exact: str | None) -> int:
        """Return how many ranks fit; ``exact`` narrows the devices to one model by its full name."""
        fits = min(whole(self.cpus_milli, demand.cpus_milli), whole(self.memory_mib, demand.memory_mib))
        if demand.gpu_milli == 0 or fits <= 0:
            return max(0, fits)
        return min(fits, device_fit([self.free[i] for i in self.eligible(demand, exact)], demand))

    def eligible(self, demand: Demand, exact: str | None) -> list[int]:
        """Return the positions of the devices of the wanted model."""
        devices = self.offer.devices
        if exact is not None:
            return [i for i, d in enumerate(devices) if d.model == exact]
        if demand.gpu_model is None:
            return list(range(len(devices)))
        return [i for i, d in enumerate(devices) if model_matches(demand.gpu_model, d.model)]

    def change(self, placement: Placement, sign: int) -> None:
        """Give back (``sign`` 1) or take (-1) what a placement holds. Unknown devices are passed over."""
        self.cpus_milli += sign * placement.cpus_milli
        self.memory_mib += sign * placement.memory_mib
        for share in placement.devices:
            for i, device in enumerate(self.offer.devices):
                if device.uuid == share.uuid:
                    self.free[i] = min(MILLI, self.free[i] + sign * share.milli)


class Keep:
    """What one reservation still lacks on one node: below 0 where more than enough will be given back in time."""

    __slots__ = ("cpus_milli", "devices", "memory_mib")

    def __init__(self, devices: int) -> None:
        self.devices = [0] * devices
        self.cpus_milli = 0
        self.memory_mib = 0

    def change(self, offer: NodeOffer, placement: Placement, sign: int) -> None:
        """Add (1) what the reservation needs, or subtract (-1) what a holder gives back in time."""
        self.cpus_milli += sign * placement.cpus_milli
        self.memory_mib += sign * placement.memory_mib
        for share in placement.devices:
            for i, device in enumerate(offer.devices):
                if device.uuid == share.uuid:
                    self.devices[i] += sign * share.milli


class Trial:
    """A mutable trial copy of the pool. ``mask`` has bit ``i`` set when reservation ``i`` binds the question."""

    def __init__(self, nodes: Sequence[NodeOffer]) -> None:
        self.offers: dict[NodeId, NodeOffer] = {offer.node: offer for offer in nodes}
        self._rooms: dict[NodeId, Room] = {}
        self._keeps: list[dict[NodeId, Keep]] = []
        self._tables: dict[tuple[Demand, str | None, int], dict[NodeId, int]] = {}
        self._models: tuple[str, ...] | None = None

    @property
    def models(self) -> tuple[str, ...]:
        """Return the device models of the pool, sorted."""
        if self._models is None:
            self._models = tuple(sorted({d.model for offer in self.offers.values() for d in offer.devices}))
        return self._models

    def room(self, node: NodeId, mask: int = 0) -> Room:
        """Return a copy of what is free on a node once the binding reservations have theirs."""
        known = self._rooms.get(node)
        room = (
            Room.of(self.offers[node])
            if known is None
            else Room(known.offer, known.free.copy(), known.cpus_milli, known.memory_mib)
        )
        if mask:
            for i, keeps in enumerate(self._keeps):
                keep = keeps.get(node) if mask >> i & 1 else None
                if keep is not None:
                    room.cpus_milli -= max(0, keep.cpus_milli)
                    room.memory_mib -= max(0, keep.memory_mib)
                    room.free = [
                        max(0, free - kept) if kept > 0 else free
                        for free, kept in zip(room.free, keep.devices, strict=True)
                    ]
        return room

    def fits(self, demand: Demand, exact: str | None = None, mask: int = 0) -> dict[NodeId, int]:
        """Return the nodes that can take ranks of ``demand`` now, with how many. Do not change the answer."""
        key = (demand, exact, mask)
        table = self._tables.get(key)
        if table is None:
            table = self._tables[key] = {}
            for node in self.offers:
                fit = self.room(node, mask).fit(demand, exact)
                if fit > 0:
                    table[node] = fit
        return table

    def take(self, placements: Iterable[Placement], end: float, starts: Sequence[float | None] = ()) -> None:
        """Take placements that end at ``end``; reservations that start later count them as given back in time.

        ``starts`` are the start times of the reservations whose keeps were added, in order.
        """
        for placement in placements:
            self._own(placement.node).change(placement, -1)
            for keeps, start in zip(self._keeps, starts, strict=True):
                keep = keeps.get(placement.node)
                if keep is not None and start is not None and end <= start:
                    keep.change(self.offers[placement.node], placement, -1)
            self._refresh(placement.node)

    def release(self, placements: Iterable[Placement]) -> None:
        """Give back placements. Nodes that are not offered are passed over."""
        for placement in placements:
            if placement.node in self.offers:
                self._own(placement.node).change(placement, 1)
                self._refresh(placement.node)

    def branch(self) -> Trial:
        """Return an independent copy without what reservations keep."""
        other = Trial(())
        other.offers = self.offers
        other._rooms = {node: self.room(node) for node in self._rooms}
        other._models = self._models
        return other

    def keep(self, keeps: dict[NodeId, Keep]) -> None:
        """Protect what the next reservation needs from those whom it binds."""
        self._keeps.append(keeps)

    def _own(self, node: NodeId) -> Room:
        room = self._rooms.get(node)
        if room is None:
            room = self._rooms[node] = Room.of(self.offers[node])
        return room

    def _refresh(self, node: NodeId) -> None:
        for (demand, exact, mask), table in self._tables.items():
            fit = self.room(node, mask).fit(demand, exact)
            if fit > 0:
                table[node] = fit
            else:
                table.pop(node, None)
