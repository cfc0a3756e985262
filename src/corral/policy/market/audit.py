"""The last look at a plan before it leaves the room: does it take only what there is?"""

from __future__ import annotations

from collections.abc import Mapping

from corral.model.ids import NodeId
from corral.model.market import Award, Market, RoundPlan
from corral.model.offer import NodeOffer
from corral.model.resources import Placement


class _Left:
    """What is left of one node, device by device."""

    __slots__ = ("cpus_milli", "devices", "memory_mib")

    def __init__(self, offer: NodeOffer) -> None:
        self.devices = {device.uuid: device.free_milli for device in offer.devices}
        self.cpus_milli = offer.cpus_milli
        self.memory_mib = offer.memory_mib

    def change(self, placement: Placement, sign: int) -> None:
        self.cpus_milli += sign * placement.cpus_milli
        self.memory_mib += sign * placement.memory_mib
        for share in placement.devices:
            if share.uuid in self.devices:
                self.devices[share.uuid] += sign * share.milli
            elif sign < 0:
                raise AssertionError(f"a placement takes {share.uuid}, which is not offered")

    @property
    def short(self) -> bool:
        return min(self.cpus_milli, self.memory_mib, *self.devices.values()) < 0


def audit(market: Market, plan: RoundPlan) -> None:
    """Raise ``AssertionError`` when awards take more than is free once the evicted have given way, or tear a gang."""
    offers: Mapping[NodeId, NodeOffer] = {offer.node: offer for offer in market.snapshot.nodes}
    holdings = {holding.key: holding for holding in market.snapshot.holdings}
    left: dict[NodeId, _Left] = {}
    for award in plan.awards:
        _whole(award)
        for placement in award.placements:
            if placement.node not in left:
                left[placement.node] = _Left(offers[placement.node])
            left[placement.node].change(placement, -1)
    for eviction in plan.evictions:
        for placement in holdings[eviction.key].placements:
            if placement.node in left:
                left[placement.node].change(placement, 1)
    for node, rest in left.items():
        if rest.short:
            raise AssertionError(f"the plan takes more than {node} has")


def _whole(award: Award) -> None:
    if [placement.rank for placement in award.placements] != list(range(award.bid.shape.ranks)):
        raise AssertionError(f"the award of {award.key} does not seat all its ranks")
