"""Device probes: NVIDIA, AMD and simulated devices behind one port."""

from __future__ import annotations

from corral.devices.amd import AmdProbe
from corral.devices.cpu import NodeFacts, node_facts
from corral.devices.discovery import Absence, Discovery, discover
from corral.devices.nvidia import NvidiaProbe
from corral.devices.release import Unreleased, unreleased, wait_released
from corral.devices.simulated import SimulatedProbe, edit_state, read_state, simulated_devices
from corral.devices.xid import XidEvent

__all__ = [
    "Absence",
    "AmdProbe",
    "Discovery",
    "NodeFacts",
    "NvidiaProbe",
    "SimulatedProbe",
    "Unreleased",
    "XidEvent",
    "discover",
    "edit_state",
    "node_facts",
    "read_state",
    "simulated_devices",
    "unreleased",
    "wait_released",
]
