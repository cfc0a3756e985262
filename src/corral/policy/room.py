"""The free part of one node, and what fits into it."""

from __future__ import annotations

from collections.abc import Mapping

from corral.model.ids import DeviceId
from corral.model.offer import NodeOffer
from corral.model.resources import MILLI, Demand, Placement
from corral.policy.feasibility import model_matches, whole
from corral.policy.fragmentation import Key


class Room:
    """The free part of one node: milli by device in the order of ``offer.devices``, CPUs and memory.

    ``positions`` are those of its devices; ``model`` is that of all of them (``None``: they differ, or there are none).
    """

    __slots__ = ("cpus_milli", "free", "memory_mib", "model", "offer", "positions")

    def __init__(
        self,
        offer: NodeOffer,
        free: list[int],
        cpus_milli: int,
        memory_mib: int,
        model: str | None,
        positions: Mapping[DeviceId, int],
    ) -> None:
        self.offer = offer
        self.free = free
        self.cpus_milli = cpus_milli
        self.memory_mib = memory_mib
        self.model = model
        self.positions = positions

    @classmethod
    def of(cls, offer: NodeOffer) -> Room:
        """Return a copy of an offer's free part."""
        devices = offer.devices
        models = {d.model for d in devices}
        return cls(
            offer,
            [d.free_milli for d in devices],
            offer.cpus_milli,
            offer.memory_mib,
            models.pop() if len(models) == 1 else None,
            {d.uuid: i for i, d in enumerate(devices)},
        )

    def copy(self, free: list[int] | None = None) -> Room:
        """Return a room that can be changed by itself, with so much free of its devices."""
        left = self.free.copy() if free is None else free
        return Room(self.offer, left, self.cpus_milli, self.memory_mib, self.model, self.positions)

    def fit(self, demand: Demand, exact: str | None) -> int:
        """Return how many ranks fit; ``exact`` narrows the devices to one model by its full name."""
        cpus, memory, milli = demand.cpus_milli, demand.memory_mib, demand.gpu_milli
        if cpus > max(0, self.cpus_milli) or memory > max(0, self.memory_mib):
            return 0
        fits = min(whole(self.cpus_milli, cpus), whole(self.memory_mib, memory))
        if milli == 0:
            return fits
        free, model = self.free, self.model
        if exact is not None or demand.gpu_model is not None:
            if model is None:
                free = [free[i] for i in self.eligible(demand, exact)]
            elif not (model == exact if exact is not None else model_matches(demand.gpu_model, model)):
                return 0
        if milli >= MILLI:
            return min(fits, free.count(MILLI) // (milli // MILLI))
        return min(fits, sum([left // milli for left in free if left > 0]))

    def eligible(self, demand: Demand, exact: str | None) -> list[int]:
        """Return the positions of the devices of the wanted model."""
        devices = self.offer.devices
        if self.model is not None:
            matches = self.model == exact if exact is not None else model_matches(demand.gpu_model, self.model)
            return list(range(len(devices))) if matches else []
        if exact is not None:
            return [i for i, d in enumerate(devices) if d.model == exact]
        if demand.gpu_model is None:
            return list(range(len(devices)))
        return [i for i, d in enumerate(devices) if model_matches(demand.gpu_model, d.model)]

    @property
    def key(self) -> Key:
        """Return what makes nodes alike."""
        devices = [(d.model, d.island, free) for d, free in zip(self.offer.devices, self.free, strict=True)]
        if self.model is not None:
            devices.sort()
        return tuple(devices), self.cpus_milli, self.memory_mib

    def change(self, placement: Placement, sign: int) -> None:
        """Give back (``sign`` 1) or take (-1) what a placement holds. Unknown devices are passed over."""
        self.cpus_milli += sign * placement.cpus_milli
        self.memory_mib += sign * placement.memory_mib
        for share in placement.devices:
            i = self.positions.get(share.uuid)
            if i is not None:
                self.free[i] = min(MILLI, self.free[i] + sign * share.milli)
