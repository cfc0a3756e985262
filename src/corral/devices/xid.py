"""What NVIDIA's XID errors mean for a device. Source: the Xid catalog, docs.nvidia.com/deploy/xid-errors."""

from __future__ import annotations

from typing import Final

import msgspec

from corral.model.ids import DeviceId
from corral.model.resources import Health

# The catalog's action is to restart the application, or none: the board is well.
_HARMLESS: Final = frozenset({8, 13, 31, 43, 45, 63, 68, 69, 92, 94, 121})
# Nothing runs there before a reset, a reboot or a repair.
_FATAL: Final = {
    46: "the GPU stopped processing",
    48: "an uncorrectable (double bit) memory error",
    62: "the internal microcontroller halted",
    64: "a memory row or page could not be retired",
    79: "the GPU has fallen off the bus",
    95: "an uncontained memory error",
    110: "a security fault",
    119: "the GPU system processor does not answer",
    120: "the GPU system processor failed",
    140: "an unrecovered memory error",
    143: "the GPU could not be initialised",
}


class XidEvent(msgspec.Struct, frozen=True):
    """One XID error of one device. ``at`` is in seconds since the epoch, the time of reading it from the driver."""

    uuid: DeviceId
    xid: int
    at: float


def health_of(xid: int) -> Health:
    """Return what an XID says about its device: ``healthy`` (an application's fault), ``suspect`` or ``failed``."""
    if xid in _FATAL:
        return Health.FAILED
    return Health.HEALTHY if xid in _HARMLESS else Health.SUSPECT


def explain(xid: int) -> str:
    """Return an XID in words."""
    if xid in _FATAL:
        return f"XID {xid}: {_FATAL[xid]}"
    return f"XID {xid}: an application's error" if xid in _HARMLESS else f"XID {xid}"
