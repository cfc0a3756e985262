"""What replicas of one service keep from each other: nodes and racks where they can, fixed ports always.

A service dies with its last replica. So a node that has one of its replicas already is dear to the next one, more than
what the pool's other shapes lose by it, and a rack a little. Where there is no other room they stand together: nothing
waits for beauty. A port, though, can be had once on a machine, whosever the replicas are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from corral.model.ids import NodeId, ServiceName
from corral.model.offer import Holding, Kin, NodeOffer
from corral.model.resources import Placement

SAME_NODE = 32.0
"""Devices: what each replica of the service that a node has already costs the next one. A whole node of eight devices
lost to all other shapes, and leaving an island, are less."""

SAME_RACK = 2.0
"""Devices: racks fail seldom, and a gang that finds no whole node in its rack loses more than that."""


class Apart:
    """Where the kin are, on the nodes of ``offers``; ``add`` follows what is placed meanwhile."""

    def __init__(self, offers: Mapping[NodeId, NodeOffer], holdings: Iterable[Holding]) -> None:
        self._offers = offers
        self._on: dict[ServiceName, Counter[NodeId]] = {}
        self._ports: set[tuple[str, int]] = set()
        for holding in holdings:
            if holding.kin is not None:
                self.add(holding.kin, holding.placements)

    def add(self, kin: Kin, placements: Iterable[Placement]) -> None:
        """Note where one of them is, or comes."""
        for placement in placements:
            self._on.setdefault(kin.service, Counter())[placement.node] += 1
            if kin.port is not None:
                self._ports.add((self._address(placement.node), kin.port))

    def _address(self, node: NodeId) -> str:
        """Return what a machine is known by to others: nodes may share it."""
        offer = self._offers.get(node)
        return (offer.address if offer is not None else "") or node

    def cost(self, kin: Kin) -> dict[NodeId, float]:
        """Return what nodes cost (in devices) beside what they cost anyway; nodes not named cost nothing more."""
        on = self._on.get(kin.service)
        if not on:
            return {}
        racks: Counter[str] = Counter()
        for node, count in on.items():
            offer = self._offers.get(node)
            if offer is not None:
                racks[offer.rack] += count
        cost = {
            node: SAME_NODE * on.get(node, 0) + SAME_RACK * racks[offer.rack]
            for node, offer in self._offers.items()
            if offer.rack in racks
        }
        least = min(cost.values(), default=0.0) if len(cost) == len(self._offers) else 0.0
        return {node: dear - least for node, dear in cost.items() if dear > least}

    def without(self, kin: Kin) -> frozenset[NodeId]:
        """Return the nodes on whose machine the port is taken."""
        if kin.port is None or not any(port == kin.port for _, port in self._ports):
            return frozenset()
        return frozenset(node for node in self._offers if (self._address(node), kin.port) in self._ports)

    def clashes(self, kin: Kin | None, placements: Sequence[Placement]) -> bool:
        """Return whether a gang's port is taken where it would go."""
        if kin is None or kin.port is None:
            return False
        return any((self._address(placement.node), kin.port) in self._ports for placement in placements)


def port_taken(kin: Kin | None, offers: Mapping[NodeId, NodeOffer], holdings: Iterable[Holding]) -> frozenset[NodeId]:
    """Return the nodes on whose machine the port of a gang is taken: none for one that has no port of its own."""
    return Apart(offers, holdings).without(kin) if kin is not None and kin.port is not None else frozenset()
