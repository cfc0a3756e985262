"""Which vendors' devices does this machine have, and why not the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from corral.devices.amd import AmdProbe
from corral.devices.nvidia import NvidiaProbe
from corral.model.errors import DeviceProbeFailed
from corral.ports.probe import DeviceProbe


class ReasonedProbe(DeviceProbe, Protocol):
    """A probe that says why it found nothing, or not all."""

    reason: str | None


class Discovery(NamedTuple):
    """What was found. ``probes`` answer and stay open: close them. No device is a CPU node, not an error.

    ``reasons`` say by vendor, in one line, why its devices are missing or some were left out.
    """

    probes: tuple[DeviceProbe, ...]
    reasons: dict[str, str]


def discover(probes: Sequence[ReasonedProbe] | None = None) -> Discovery:
    """Ask each vendor's driver (or the given probes) for devices, and keep the probes that have some. Never raises.

    Blocks as the drivers do: some 100 ms with a driver whose devices sleep, without a driver as long as the import.
    """
    answering: list[DeviceProbe] = []
    reasons: dict[str, str] = {}
    for probe in (NvidiaProbe(), AmdProbe()) if probes is None else probes:
        try:
            found = probe.discover()
        except DeviceProbeFailed as error:
            reasons[probe.vendor] = str(error)
            probe.close()
            continue
        if probe.reason is not None:
            reasons[probe.vendor] = probe.reason
        if found:
            answering.append(probe)
        else:
            probe.close()
    return Discovery(tuple(answering), reasons)
