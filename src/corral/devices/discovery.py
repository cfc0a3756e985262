"""Which vendors' devices does this machine have, and why not the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from corral.devices.amd import AmdProbe
from corral.devices.nvidia import NvidiaProbe
from corral.model.errors import DeviceProbeFailed
from corral.model.resources import DeviceSpec
from corral.ports.probe import DeviceProbe


class ReasonedProbe(DeviceProbe, Protocol):
    """A probe that says why it found nothing, or not all; ``refused``: because its driver did not answer for some."""

    reason: str | None
    refused: bool


class Absence(msgspec.Struct, frozen=True):
    """Why a vendor's devices are missing, or some of them.

    ``refused`` tells a driver that is there and refuses (an administrator should look) from one that is not there.
    """

    vendor: str
    reason: str
    refused: bool


class Discovery(msgspec.Struct, frozen=True):
    """What was found. ``probes`` answer and stay open: close them. No devices is a CPU node, not an error."""

    probes: tuple[DeviceProbe, ...]
    devices: tuple[DeviceSpec, ...]
    absences: tuple[Absence, ...]


def discover(probes: Sequence[ReasonedProbe] | None = None) -> Discovery:
    """Ask each vendor's driver (or the given probes) for its devices. Never raises; see ``Absence``.

    Blocks as the drivers do: some 100 ms with a driver whose devices sleep, without a driver as long as the import.
    """
    answering: list[DeviceProbe] = []
    devices: list[DeviceSpec] = []
    absences: list[Absence] = []
    for probe in (NvidiaProbe(), AmdProbe()) if probes is None else probes:
        try:
            found = probe.discover()
        except DeviceProbeFailed as error:
            absences.append(Absence(probe.vendor, str(error), refused=True))
            probe.close()
            continue
        if probe.reason is not None:
            absences.append(Absence(probe.vendor, probe.reason, refused=probe.refused))
        if found:
            answering.append(probe)
            devices.extend(found)
        else:
            probe.close()
    return Discovery(tuple(answering), tuple(devices), tuple(absences))
