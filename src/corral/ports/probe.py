"""Finding devices and looking at them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from corral.model.resources import DeviceSpec, DeviceState


class DeviceProbe(Protocol):
    """One vendor's devices on this machine. Calls may block; the agent makes them in a thread of their own."""

    @property
    def vendor(self) -> str:
        """Return ``nvidia``, ``amd``, ``simulated``..."""

    def discover(self) -> tuple[DeviceSpec, ...]:
        """Return all devices, by PCI bus order. Raises ``DeviceProbeFailed`` when the library is there but refuses."""

    def sample(self, own_pids: Sequence[int]) -> tuple[DeviceState, ...]:
        """Return one observation per device ever discovered; a vanished one is ``failed``.

        ``own_pids`` are the processes of corral's tasks: all others on a device are reported as foreign.
        """

    def close(self) -> None:
        """Let the library go."""
