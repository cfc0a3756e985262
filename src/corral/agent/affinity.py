"""Which CPUs a task is held on where no control group limits it."""

from __future__ import annotations

from collections.abc import Iterable

from corral.model.resources import MILLI


class CpuChooser:
    """Counts what is held of every CPU of the node and gives out the least held ones."""

    def __init__(self, cpus: Iterable[int]) -> None:
        self._held_milli = dict.fromkeys(sorted(cpus), 0)

    def take(self, cpus_milli: int) -> tuple[int, ...] | None:
        """Return the CPUs for a task that needs ``cpus_milli``, rounded up to whole ones; ``None`` for no limit.

        Tasks share a CPU when the node is asked for more than it has; equally held ones are taken in their order, so
        that neighbours (which share caches) stay together.
        """
        count = -(-cpus_milli // MILLI)
        if count <= 0 or count >= len(self._held_milli):
            return None
        chosen = sorted(sorted(self._held_milli, key=lambda cpu: (self._held_milli[cpu], cpu))[:count])
        self.hold(chosen, cpus_milli)
        return tuple(chosen)

    def hold(self, cpus: Iterable[int], cpus_milli: int) -> None:
        """Count a task that is on these CPUs already."""
        self._add(list(cpus), cpus_milli, 1)

    def give_back(self, cpus: Iterable[int], cpus_milli: int) -> None:
        """Count a task off."""
        self._add(list(cpus), cpus_milli, -1)

    def _add(self, cpus: list[int], milli: int, sign: int) -> None:
        known = [cpu for cpu in cpus if cpu in self._held_milli]
        for cpu in known:
            self._held_milli[cpu] += sign * (milli // len(known))
