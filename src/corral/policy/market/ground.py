"""What a round has to give: the devices of the pool by seat, free now or held by gangs that may give way.

A seat is the devices of one model on one node; the cells above it are its node's rack and the whole pool, those below
it NVLink islands and devices. What fixed gangs and reservations hold is out of reach.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from corral.model.ids import DeviceId, GangKey, NodeId
from corral.model.offer import NodeOffer, Reservation, Snapshot
from corral.model.resources import MILLI, DeviceShare, GangShape, Placement
from corral.policy.apart import Apart
from corral.policy.market.contenders import Contender

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Seat:
    """The devices of one model on one node, by their positions in the node's offer."""

    __slots__ = ("island", "model", "node", "positions", "rack")

    def __init__(self, node: int, model: int, rack: int) -> None:
        self.node = node
        self.model = model
        self.rack = rack
        self.positions: list[int] = []
        self.island: dict[int, int] = {}


class Footprint:
    """What a running gang holds of the ground: whole devices by seat, shares, CPUs and memory by node.

    ``shares`` are (seat, position, milli-GPUs). What a reservation keeps for another is left out: it comes to nobody
    here when the gang gives way.
    """

    __slots__ = ("cpus", "memory", "seats", "shares")

    def __init__(self) -> None:
        self.seats: dict[int, list[int]] = {}
        self.shares: list[tuple[int, int, int]] = []
        self.cpus: dict[int, int] = {}
        self.memory: dict[int, int] = {}


class Ground:
    """The pool as arrays. ``free`` and ``reach`` count whole devices by seat: free now, and free if all gave way."""

    def __init__(
        self, snapshot: Snapshot, contenders: Iterable[Contender], reservations: Sequence[Reservation]
    ) -> None:
        self.offers: Sequence[NodeOffer] = snapshot.nodes
        self.node_of: dict[NodeId, int] = {offer.node: i for i, offer in enumerate(snapshot.nodes)}
        self.apart = Apart({offer.node: offer for offer in self.offers}, snapshot.holdings)
        self.models: list[str] = []
        self.racks = 0
        self.seats: list[Seat] = []
        self.seat_of: dict[DeviceId, tuple[int, int]] = {}
        self.kept: dict[GangKey, tuple[Placement, ...]] = {}
        self.blocked: set[tuple[int, int]] = set()
        """Devices (seat, position) that a reservation keeps."""
        self._read()
        self.open: list[list[int]] = []
        self.cpus = np.fromiter((o.cpus_milli for o in self.offers), np.int64, len(self.offers))
        self.memory = np.fromiter((o.memory_mib for o in self.offers), np.int64, len(self.offers))
        self._free_milli = [[d.free_milli for d in offer.devices] for offer in self.offers]
        self._reserve(reservations)
        self.footprints: dict[GangKey, Footprint] = {
            c.key: self.footprint(c.holding.placements) for c in contenders if c.holding is not None
        }
        self._count()

    def _read(self) -> None:
        models: dict[str, int] = {}
        racks: dict[str, int] = {}
        for i, offer in enumerate(self.offers):
            rack = racks.setdefault(offer.rack, len(racks))
            mine: dict[str, int] = {}
            for position, device in enumerate(offer.devices):
                index = mine.get(device.model)
                if index is None:
                    index = mine[device.model] = len(self.seats)
                    self.seats.append(Seat(i, models.setdefault(device.model, len(models)), rack))
                seat = self.seats[index]
                seat.positions.append(position)
                seat.island[position] = device.island
                self.seat_of[device.uuid] = (index, position)
        self.models = list(models)
        self.racks = len(racks)
        self.seat_model: Ints = np.fromiter((s.model for s in self.seats), np.int64, len(self.seats))
        self.seat_node: Ints = np.fromiter((s.node for s in self.seats), np.int64, len(self.seats))
        self.seat_rack: Ints = np.fromiter((s.rack for s in self.seats), np.int64, len(self.seats))

    def _reserve(self, reservations: Sequence[Reservation]) -> None:
        """Take what reservations keep: also what is held there now is theirs once it is free."""
        for kept in reservations:
            self.kept[kept.key] = kept.placements
            for placement in kept.placements:
                node = self.node_of.get(placement.node)
                if node is None:
                    continue
                self.cpus[node] -= placement.cpus_milli
                self.memory[node] -= placement.memory_mib
                for share in placement.devices:
                    at = self.seat_of.get(share.uuid)
                    if at is not None:
                        self._free_milli[node][at[1]] -= share.milli
                        self.blocked.add(at)

    def footprint(self, placements: Iterable[Placement]) -> Footprint:
        """Return what placements hold of the ground."""
        found = Footprint()
        for placement in placements:
            node = self.node_of.get(placement.node)
            if node is None:
                continue
            found.cpus[node] = found.cpus.get(node, 0) + placement.cpus_milli
            found.memory[node] = found.memory.get(node, 0) + placement.memory_mib
            for share in placement.devices:
                at = self.seat_of.get(share.uuid)
                if at is None or at in self.blocked:
                    continue
                if share.milli == MILLI:
                    found.seats.setdefault(at[0], []).append(at[1])
                else:
                    found.shares.append((*at, share.milli))
        return found

    def placements(self, spots: Sequence[tuple[int, tuple[int, ...]]], shape: GangShape) -> tuple[Placement, ...]:
        """Return the placements of ranks at seats."""
        found = []
        for rank, (index, positions) in enumerate(spots):
            offer = self.offers[self.seats[index].node]
            shares = tuple(DeviceShare(offer.devices[p].uuid, MILLI) for p in sorted(positions))
            found.append(Placement(rank, offer.node, shares, shape.demand.cpus_milli, shape.demand.memory_mib))
        return tuple(found)

    def _count(self) -> None:
        """Count what is free, and what would be if all contenders gave way."""
        reach = [free.copy() for free in self._free_milli]
        self.reach_cpus, self.reach_memory = self.cpus.copy(), self.memory.copy()
        for footprint in self.footprints.values():
            for node, cpus in footprint.cpus.items():
                self.reach_cpus[node] += cpus
            for node, memory in footprint.memory.items():
                self.reach_memory[node] += memory
            for index, positions in footprint.seats.items():
                row = reach[self.seats[index].node]
                for position in positions:
                    row[position] += MILLI
            for index, position, milli in footprint.shares:
                reach[self.seats[index].node][position] += milli
        self.open = [[p for p in s.positions if self._free_milli[s.node][p] >= MILLI] for s in self.seats]
        self.free: Ints = np.fromiter((len(o) for o in self.open), np.int64, len(self.seats))
        self._reach_milli = reach
        self._island_max: Ints | None = None
        self._reach = [[p for p in s.positions if reach[s.node][p] >= MILLI] for s in self.seats]
        self.reach: Ints = np.fromiter((len(o) for o in self._reach), np.int64, len(self.seats))
        self.reach_milli: Ints = np.zeros(len(self.models), dtype=np.int64)
        for seat in self.seats:
            row = reach[seat.node]
            self.reach_milli[seat.model] += sum(max(0, row[p]) for p in seat.positions)

    def free_milli(self, index: int, position: int) -> int:
        """Return the milli-GPUs of a device that are free now and not kept."""
        return self._free_milli[self.seats[index].node][position]

    def island_max(self) -> Ints:
        """Return the whole devices within reach on the fullest island of each seat."""
        if self._island_max is None:
            counts = self.island_counts()
            self._island_max = np.fromiter((max(c, default=0) for c in counts), np.int64, len(counts))
        return self._island_max

    def island_counts(self) -> list[list[int]]:
        """Return the whole devices within reach on each island, by seat."""
        found = []
        for seat, positions in zip(self.seats, self._reach, strict=True):
            counts: dict[int, int] = {}
            for position in positions:
                counts[seat.island[position]] = counts.get(seat.island[position], 0) + 1
            found.append(list(counts.values()))
        return found

    def share_fits(self, milli: int) -> Ints:
        """Return how many shares of ``milli`` each seat could take if all contenders gave way."""
        return np.fromiter(
            (sum(max(0, self._reach_milli[s.node][p]) // milli for p in s.positions) for s in self.seats),
            np.int64,
            len(self.seats),
        )
