"""Placement of whole devices by buddy cells: device, NVLink island, node, rack, pool.

Nodes are kept by the number of devices that are free on them, per rack and for the pool, so that the tightest cell that
takes a rank is found without a look at the others. Ties go to the node that was there first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from corral.model.offer import Locality
from corral.model.resources import MILLI, GangShape, Placement
from corral.policy.market.ground import Footprint, Ground

Spot = tuple[int, tuple[int, ...]]
"""Where one rank goes: a seat and the positions of its devices there."""

TIDY_SCAN = 32
"""Nodes of one size that are looked at for an NVLink island that takes the rank whole."""


class Wanted:
    """A shape on one model with where it may go. ``cost`` by node orders first (lowest), ``avoid`` are left out."""

    __slots__ = ("avoid", "cost", "locality", "model", "shape")

    def __init__(
        self,
        shape: GangShape,
        locality: Locality,
        model: int,
        avoid: frozenset[int] = frozenset(),
        cost: Sequence[float] | None = None,
    ) -> None:
        self.shape = shape
        self.locality = locality
        self.model = model
        self.avoid = avoid
        self.cost = cost

    @property
    def kind(self) -> tuple[object, ...]:
        """Return what decides whether it fits."""
        return (self.shape, self.locality, self.model, self.avoid)


class Cells:
    """What is free while a round seats gangs. Changes are cheap; ``release`` may be taken back by ``withdraw``."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self.open: list[list[int]] = [list(positions) for positions in ground.open]
        self.cpus: list[int] = ground.cpus.tolist()
        self.memory: list[int] = ground.memory.tolist()
        self._parts: dict[tuple[int, int], int] = {}
        most = max((len(s.positions) for s in ground.seats), default=0)
        self._counts = np.zeros((max(1, len(ground.models)), max(1, ground.racks), most + 1), dtype=np.int64)
        self._most = most
        self._pool: dict[tuple[int, int], dict[int, None]] = {}
        self._rack: dict[tuple[int, int, int], dict[int, None]] = {}
        self._islands = [len(set(s.island.values())) > 1 for s in ground.seats]
        for index in range(len(ground.seats)):
            self._enter(index)

    # ---- changes ---------------------------------------------------------------------------------------------------

    def _enter(self, index: int) -> None:
        seat, free = self._ground.seats[index], len(self.open[index])
        self._counts[seat.model, seat.rack, free] += 1
        self._pool.setdefault((seat.model, free), {})[index] = None
        self._rack.setdefault((seat.model, seat.rack, free), {})[index] = None

    def _leave(self, index: int) -> None:
        seat, free = self._ground.seats[index], len(self.open[index])
        self._counts[seat.model, seat.rack, free] -= 1
        del self._pool[seat.model, free][index]
        del self._rack[seat.model, seat.rack, free][index]

    def take(self, spots: list[Spot], shape: GangShape) -> None:
        """Take the devices, CPUs and memory of ranks."""
        for index, positions in spots:
            self._close(index, set(positions))
            node = self._ground.seats[index].node
            self.cpus[node] -= shape.demand.cpus_milli
            self.memory[node] -= shape.demand.memory_mib

    def take_placements(self, placements: Sequence[Placement]) -> None:
        """Take what was placed by other rules: a device of which a share is taken is not whole any more."""
        for placement in placements:
            node = self._ground.node_of[placement.node]
            self.cpus[node] -= placement.cpus_milli
            self.memory[node] -= placement.memory_mib
            for share in placement.devices:
                at = self._ground.seat_of[share.uuid]
                self._parts[at] = self._part(at) - share.milli
                self._close(at[0], {at[1]})

    def release(self, footprint: Footprint) -> None:
        """Give back what a running gang holds, unless a reservation keeps it. Taken last where there is a choice."""
        for index, positions in footprint.seats.items():
            self._open(index, positions)
        for index, position, milli in footprint.shares:
            at = (index, position)
            self._parts[at] = self._part(at) + milli
            if self._parts[at] == MILLI:
                self._open(index, [position])
        self._change_host(footprint, 1)

    def withdraw(self, footprint: Footprint) -> bool:
        """Take back a release; return whether nobody used any of it in the meantime."""
        if not self._unused(footprint):
            return False
        for index, positions in footprint.seats.items():
            self._close(index, set(positions))
        for index, position, milli in footprint.shares:
            self._parts[index, position] -= milli
            self._close(index, {position})
        self._change_host(footprint, -1)
        return True

    def _unused(self, footprint: Footprint) -> bool:
        # A reservation may keep more of a node than is free there: who held it before may go on holding it.
        cpus, memory = self._ground.cpus, self._ground.memory
        if any(self.cpus[node] - held < min(0, cpus[node]) for node, held in footprint.cpus.items()):
            return False
        if any(self.memory[node] - held < min(0, memory[node]) for node, held in footprint.memory.items()):
            return False
        for index, positions in footprint.seats.items():
            if not set(positions) <= set(self.open[index]):
                return False
        for index, position, milli in footprint.shares:
            part = self._part((index, position))
            if part < milli or (part >= MILLI and position not in self.open[index]):
                return False
        return True

    def _part(self, at: tuple[int, int]) -> int:
        """Return the milli-GPUs of a device that nobody has a share of; whole devices in ``open`` have all."""
        known = self._parts.get(at)
        return self._ground.free_milli(*at) if known is None else known

    def _open(self, index: int, positions: list[int]) -> None:
        if positions:
            self._leave(index)
            self.open[index].extend(positions)
            self._enter(index)

    def _close(self, index: int, positions: set[int]) -> None:
        if not positions.isdisjoint(self.open[index]):
            self._leave(index)
            self.open[index] = [p for p in self.open[index] if p not in positions]
            self._enter(index)

    def _change_host(self, footprint: Footprint, sign: int) -> None:
        for node, cpus in footprint.cpus.items():
            self.cpus[node] += sign * cpus
        for node, memory in footprint.memory.items():
            self.memory[node] += sign * memory

    def free_by_model(self) -> list[int]:
        """Return how many whole devices of each model are free."""
        sums: list[int] = (self._counts.sum(axis=1) @ np.arange(self._most + 1)).tolist()
        return sums

    # ---- finding ---------------------------------------------------------------------------------------------------

    def find(self, wanted: Wanted) -> list[Spot] | None:
        """Return where the ranks go, ``None`` when they do not fit together. Takes nothing."""
        each, ranks = wanted.shape.demand.gpus_whole, wanted.shape.ranks
        if wanted.locality in (Locality.NODE, Locality.NVLINK):
            return self._on_one_node(wanted, each, ranks)
        if ranks == 1:
            for index in self._candidates(wanted, None, each):
                if self._hosts(index, wanted.shape, 1):
                    return self._spots([(index, 1)], each)
            return None
        return self._in_racks(wanted, each, ranks)

    def _candidates(self, wanted: Wanted, rack: int | None, need: int) -> Iterator[int]:
        """Yield seats with ``need`` devices free: by cost, the tightest, then those with an island that takes it."""
        cost = wanted.cost
        if cost is not None:
            yield from sorted(self._plain(wanted, rack, need), key=lambda i: cost[self._node(i)])
        else:
            yield from self._plain(wanted, rack, need)

    def _node(self, index: int) -> int:
        return self._ground.seats[index].node

    def _plain(self, wanted: Wanted, rack: int | None, need: int) -> Iterator[int]:
        split: list[int] = []
        for free in range(need, self._most + 1):
            here = self._pool.get((wanted.model, free)) if rack is None else self._rack.get((wanted.model, rack, free))
            looked = 0
            for index in here or ():
                if wanted.avoid and self._node(index) in wanted.avoid:
                    continue
                if self._islands[index] and looked < TIDY_SCAN and self._fullest(index) < need:
                    looked += 1
                    split.append(index)
                    continue
                yield index
        yield from split

    def _fullest(self, index: int) -> int:
        counts: dict[int, int] = {}
        island = self._ground.seats[index].island
        for position in self.open[index]:
            counts[island[position]] = counts.get(island[position], 0) + 1
        return max(counts.values(), default=0)

    def _hosts(self, index: int, shape: GangShape, ranks: int) -> bool:
        node = self._node(index)
        return (
            shape.demand.cpus_milli * ranks <= self.cpus[node] and shape.demand.memory_mib * ranks <= self.memory[node]
        )

    def _on_one_node(self, wanted: Wanted, each: int, ranks: int) -> list[Spot] | None:
        need = each * ranks
        for index in self._candidates(wanted, None, need):
            if wanted.locality is Locality.NVLINK and self._fullest(index) < need:
                continue
            if self._hosts(index, wanted.shape, ranks):
                chosen = self._choose(index, need, self.open[index])
                return [(index, tuple(chosen[r * each : (r + 1) * each])) for r in range(ranks)]
        return None

    def _in_racks(self, wanted: Wanted, each: int, ranks: int) -> list[Spot] | None:
        counts = self._counts[wanted.model]
        fits = counts @ (np.arange(self._most + 1) // each)
        if int(fits.sum()) < ranks:
            return None
        distinct = counts[:, each:].sum(axis=1)
        # The tightest rack with a node for every rank, then the tightest that takes them at all.
        for table in (distinct, fits):
            order = np.flatnonzero(table >= ranks)
            for rack in order[np.argsort(table[order], kind="stable")].tolist():
                found = self._gathered(wanted, [rack], each, ranks)
                if found is not None:
                    return found
        if wanted.locality is Locality.RACK:
            return None
        racks = np.argsort(-fits, kind="stable")
        return self._gathered(wanted, racks[fits[racks] > 0].tolist(), each, ranks)

    def _gathered(self, wanted: Wanted, racks: list[int], each: int, ranks: int) -> list[Spot] | None:
        """Take one rank per node while there are nodes, then more per node."""
        room: list[tuple[int, int]] = []
        for rack in racks:
            for index in self._candidates(wanted, rack, each):
                if self._hosts(index, wanted.shape, 1):
                    room.append((index, len(self.open[index]) // each))
                    if len(room) == ranks:
                        return self._spots([(i, 1) for i, _ in room], each)
        taken = dict.fromkeys((i for i, _ in room), 1)
        left = ranks - len(room)
        level = 2
        while left > 0:
            grown = False
            for index, fit in room:
                if left > 0 and fit >= level and self._hosts(index, wanted.shape, level):
                    taken[index] += 1
                    left -= 1
                    grown = True
            if not grown:
                return None
            level += 1
        return self._spots(list(taken.items()), each)

    def _spots(self, taken: list[tuple[int, int]], each: int) -> list[Spot]:
        spots: list[Spot] = []
        for index, count in taken:
            left = self.open[index]
            for _ in range(count):
                chosen = self._choose(index, each, left)
                spots.append((index, tuple(chosen)))
                left = [p for p in left if p not in chosen]
        return spots

    def _choose(self, index: int, count: int, left: list[int]) -> list[int]:
        """Return positions of devices: on the tightest island that takes all, else on as few islands as possible."""
        if not self._islands[index]:
            return left[:count]
        islands: dict[int, list[int]] = {}
        of = self._ground.seats[index].island
        for position in left:
            islands.setdefault(of[position], []).append(position)
        whole = [members for members in islands.values() if len(members) >= count]
        if whole:
            return min(whole, key=len)[:count]
        largest_first = sorted(islands.values(), key=lambda members: -len(members))
        return [p for members in largest_first for p in members][:count]
