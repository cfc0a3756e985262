"""What the offered nodes have, busy or not, as a bidder wants to know it: models, racks and NVLink islands."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable

from corral.model.offer import NodeOffer, Snapshot
from corral.model.resources import MILLI, Demand
from corral.policy.feasibility import device_fit, model_matches, whole

_Devices = tuple[tuple[str, int], ...]


class Landscape:
    """Alike nodes of a rack count together, so that a question costs O(racks x kinds), once for equal questions.

    ``model`` is an exact device model; ``None`` leaves the choice to the demand.
    """

    def __init__(self, nodes: Iterable[NodeOffer]) -> None:
        kinds = Counter(
            (n.rack, n.total.cpus_milli, n.total.memory_mib, tuple([(d.model, d.island) for d in n.devices]))
            for n in nodes
        )
        self._kinds = list(kinds.items())
        self.racks = len({rack for rack, *_ in kinds})
        self.models: tuple[str, ...] = tuple(sorted({model for *_, devices in kinds for model, _ in devices}))
        self._ranks: dict[tuple[Demand, str | None], tuple[int, int]] = {}
        self._islands: dict[tuple[int, str | None, str | None], tuple[bool, bool]] = {}

    def matching(self, demand: Demand) -> tuple[str, ...]:
        """Return the device models that a demand allows."""
        return tuple(model for model in self.models if model_matches(demand.gpu_model, model))

    def ranks(self, demand: Demand, model: str | None = None) -> int:
        """Return how many ranks the empty pool could take at once."""
        return self._fits(demand, model)[0]

    def ranks_in_rack(self, demand: Demand, model: str | None = None) -> int:
        """Return how many ranks the best empty rack could take at once."""
        return self._fits(demand, model)[1]

    def islands_matter(self, demand: Demand, model: str | None = None) -> bool:
        """Return whether a rank would find its devices in one NVLink island of some node, and might not."""
        key = (demand.gpus_whole, demand.gpu_model, model)
        known = self._islands.get(key)
        if known is None:
            known = self._islands[key] = self._look_at_islands(demand, model)
        together, apart = known
        return together and apart

    def _look_at_islands(self, demand: Demand, model: str | None) -> tuple[bool, bool]:
        together = apart = False
        for (*_, devices), _count in self._kinds:
            sizes = Counter(island for name, island in devices if _eligible(name, demand, model))
            if sum(sizes.values()) >= demand.gpus_whole:
                together = together or max(sizes.values(), default=0) >= demand.gpus_whole
                apart = apart or len(sizes) > 1
        return together, apart

    def _fits(self, demand: Demand, model: str | None) -> tuple[int, int]:
        known = self._ranks.get((demand, model))
        if known is None:
            racks: Counter[str] = Counter()
            for (rack, cpus_milli, memory_mib, devices), count in self._kinds:
                racks[rack] += count * _fit(cpus_milli, memory_mib, devices, demand, model)
            known = self._ranks[demand, model] = (sum(racks.values()), max(racks.values(), default=0))
        return known


def _eligible(name: str, demand: Demand, model: str | None) -> bool:
    return name == model if model is not None else model_matches(demand.gpu_model, name)


def _fit(cpus_milli: int, memory_mib: int, devices: _Devices, demand: Demand, model: str | None) -> int:
    fits = min(whole(cpus_milli, demand.cpus_milli), whole(memory_mib, demand.memory_mib))
    if demand.gpu_milli == 0 or fits <= 0:
        return max(0, fits)
    count = sum(1 for name, _ in devices if _eligible(name, demand, model))
    return min(fits, device_fit((MILLI,) * count, demand))


class _Same:
    """A snapshot by identity: comparing all of it would cost more than what the cache saves."""

    __slots__ = ("snapshot",)

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

    def __hash__(self) -> int:
        return id(self.snapshot)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.snapshot is other.snapshot


@functools.lru_cache(maxsize=1)
def _landscape(same: _Same) -> Landscape:
    return Landscape(same.snapshot.nodes)


def landscape_of(snapshot: Snapshot) -> Landscape:
    """Return the landscape of a snapshot; the offers of one round, which share a snapshot, share it too."""
    return _landscape(_Same(snapshot))
