"""What the nodes of a pool have in all, busy or not. Alike nodes count together: a large pool has few kinds of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from corral.model.resources import NodeSpec


class NodeKind(msgspec.Struct, frozen=True):
    """Nodes that have the same: ``nodes`` of them. ``models`` are (device model, devices of it on each), sorted."""

    cpus_milli: int
    memory_mib: int
    models: tuple[tuple[str, int], ...]
    nodes: int

    @property
    def devices(self) -> int:
        """Return how many devices each of the nodes has."""
        return sum(count for _, count in self.models)


class Inventory(msgspec.Struct, frozen=True):
    """All kinds of nodes of a pool. Make it once per change of the nodes, not per question."""

    kinds: tuple[NodeKind, ...]

    @classmethod
    def of(cls, nodes: Iterable[NodeSpec]) -> Inventory:
        """Return what these nodes have."""
        found = Counter(
            (node.cpus_milli, node.memory_mib, tuple(sorted(Counter(d.model for d in node.devices).items())))
            for node in nodes
        )
        return cls(tuple(NodeKind(*kind, count) for kind, count in sorted(found.items())))

    @property
    def nodes(self) -> int:
        """Return the number of nodes."""
        return sum(kind.nodes for kind in self.kinds)

    @property
    def models(self) -> dict[str, int]:
        """Return how many devices of each model there are, by name."""
        found: Counter[str] = Counter()
        for kind in self.kinds:
            for model, count in kind.models:
                found[model] += count * kind.nodes
        return dict(sorted(found.items()))
