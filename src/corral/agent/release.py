"""Whether a device is free again after a task: no dead process is left in the driver's list, its memory is given back.

A driver gives memory back some time after the process is gone, and a broken one never does. The next task must not be
the one to find out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from corral.model.ids import DeviceId
from corral.model.resources import DeviceState, Health

# Drivers round and keep contexts of their own: what an idle device uses moves by some MiB.
SLACK_MIB = 64


class ReleaseCheck:
    """Remembers what idle devices use, and compares."""

    def __init__(self) -> None:
        self._idle_mib: dict[DeviceId, int] = {}

    def observe(self, states: Iterable[DeviceState], held: Mapping[DeviceId, int]) -> None:
        """Learn from a look what devices use that nobody holds. ``held`` counts the holders of each device."""
        for state in states:
            if state.memory_used_mib is not None and not held.get(state.uuid) and not state.pids and not state.foreign:
                self._idle_mib[state.uuid] = state.memory_used_mib

    def unreleased(
        self,
        states: Iterable[DeviceState],
        devices: Iterable[DeviceId],
        held: Mapping[DeviceId, int],
        pids: frozenset[int],
    ) -> str | None:
        """Return what an ended task's devices still hold, in words; ``None`` when they are free.

        ``held`` counts the other holders of each device: on a shared one only processes can be told apart. ``pids`` are
        the processes that the task had.
        """
        by_uuid = {state.uuid: state for state in states}
        for uuid in devices:
            state = by_uuid.get(uuid)
            if state is None or state.health is Health.UNKNOWN:
                return f"the state of device {uuid} is unknown"
            if state.health is Health.FAILED:
                continue
            lingering = pids & {*state.pids, *(process.pid for process in state.foreign)}
            if lingering:
                return f"device {uuid} still lists process {min(lingering)} of the task"
            idle = self._idle_mib.get(uuid)
            used = state.memory_used_mib
            alone = not held.get(uuid) and not state.foreign
            if alone and idle is not None and used is not None and used > idle + SLACK_MIB:
                return f"device {uuid} still uses {used} MiB, {idle} MiB when idle"
        return None
