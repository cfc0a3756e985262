"""The devices of a machine that somebody else handed out: only those are there for corral."""

from __future__ import annotations

from collections.abc import Sequence

from corral.model.resources import DeviceSpec, DeviceState
from corral.ports.probe import DeviceProbe


class AllottedProbe:
    """A probe that shows the devices named, by uuid or by index in the order of the bus. See ``ports.probe``."""

    def __init__(self, probe: DeviceProbe, allotted: Sequence[str]) -> None:
        self._probe = probe
        self._allotted = frozenset(allotted)
        self._uuids: frozenset[str] = frozenset()

    @property
    def vendor(self) -> str:
        """Return the vendor of the probe behind."""
        return self._probe.vendor

    def discover(self) -> tuple[DeviceSpec, ...]:
        """Return the devices that are allotted. Raises ``DeviceProbeFailed``."""
        found = tuple(
            device
            for device in self._probe.discover()
            if device.uuid in self._allotted or str(device.index) in self._allotted
        )
        self._uuids |= {device.uuid for device in found}
        return found

    def sample(self, own_pids: Sequence[int]) -> tuple[DeviceState, ...]:
        """Return one observation per device that was found."""
        return tuple(state for state in self._probe.sample(own_pids) if state.uuid in self._uuids)

    def close(self) -> None:
        """Let the library go."""
        self._probe.close()
