"""Simulated devices: always labelled, only where asked for.

What they say stands in a JSON file that tests and drills edit:

    {"devices": {"SIM-H100-node-1-0": {"failed": "drill: XID 79", "xid": 79},
                 "SIM-H100-node-1-3": {"temperature_c": 96.5, "foreign": [{"pid": 4242, "memory_mib": 1024}]}}}

A device that the file does not name is healthy and tells nothing else. A file that is missing names none; one that
cannot be understood makes every device ``unknown``, and says why.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec

from corral.devices.models import SIMULATED_MEMORY_MIB
from corral.devices.xid import explain, health_of
from corral.model.errors import DeviceProbeFailed, InvalidField
from corral.model.ids import DeviceId
from corral.model.resources import DeviceSpec, DeviceState, ForeignProcess, Health


class SimulatedDevice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a simulated device says. ``failed`` and ``suspect`` are reasons; ``vanished`` answers no more."""

    failed: str | None = None
    suspect: str | None = None
    vanished: bool = False
    xid: int | None = None
    memory_used_mib: int | None = None
    utilisation_percent: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    foreign: tuple[ForeignProcess, ...] = ()


class SimulatedState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    devices: dict[str, SimulatedDevice] = {}


def read_state(path: Path) -> SimulatedState:
    """Return what a state file says, nothing when it is missing; raise ``DeviceProbeFailed`` when it is damaged."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=SimulatedState)
    except FileNotFoundError:
        return SimulatedState()
    except (OSError, msgspec.DecodeError) as error:
        raise DeviceProbeFailed(f"the state of the simulated devices in {path} is not readable: {error}") from error


def edit_state(path: Path, uuid: str, **changes: Any) -> None:
    """Change what one device says (fields of :class:`SimulatedDevice`), atomically; without changes, mend it."""
    devices = dict(read_state(path).devices)
    if changes:
        devices[uuid] = msgspec.structs.replace(devices.get(uuid, SimulatedDevice()), **changes)
    else:
        devices.pop(uuid, None)
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    new.write_bytes(msgspec.json.format(msgspec.json.encode(SimulatedState(devices)), indent=2))
    new.replace(path)


def simulated_devices(model: str, count: int, node: str) -> tuple[DeviceSpec, ...]:
    """Return ``count`` devices named ``SIM-<model>-<node>-<index>``, of the size of the real model.

    ``model`` is a key of ``SIMULATED_MEMORY_MIB`` in any case; raises ``InvalidField`` for any other.
    """
    name = {known.lower(): known for known in SIMULATED_MEMORY_MIB}.get(model.lower())
    if name is None:
        near = get_close_matches(model.upper(), SIMULATED_MEMORY_MIB, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}? " if near else ""
        raise InvalidField(
            f"no device model {model!r:.40} can be simulated",
            field="simulated",
            hint=f"{hint}known: {', '.join(sorted(SIMULATED_MEMORY_MIB))}",
        )
    if count < 0:
        raise InvalidField(f"a node cannot have {count} devices", field="gpus_per_node")
    return tuple(
        DeviceSpec(
            DeviceId(f"SIM-{name}-{node}-{index}"),
            name,
            SimulatedProbe.vendor,
            SIMULATED_MEMORY_MIB[name],
            index,
            simulated=True,
        )
        for index in range(count)
    )


class SimulatedProbe:
    """``corral.ports.probe.DeviceProbe`` of the devices of :func:`simulated_devices`. ``reason`` is always ``None``."""

    vendor = "simulated"
    reason: str | None = None
    refused = False

    def __init__(self, state_file: Path, model: str, count: int, node: str) -> None:
        self._state_file = state_file
        self._specs = simulated_devices(model, count, node)

    def discover(self) -> tuple[DeviceSpec, ...]:
        """Return all devices, also those that the state file lets vanish: they are ``failed``."""
        return self._specs

    def sample(self, own_pids: Sequence[int]) -> tuple[DeviceState, ...]:
        """Return what the state file says now."""
        try:
            said = read_state(self._state_file).devices
        except DeviceProbeFailed as error:
            return tuple(DeviceState(spec.uuid, Health.UNKNOWN, detail=str(error)) for spec in self._specs)
        return tuple(_state(spec.uuid, said.get(spec.uuid, SimulatedDevice()), own_pids) for spec in self._specs)

    def close(self) -> None:
        """Do nothing."""


def _state(uuid: DeviceId, says: SimulatedDevice, own_pids: Sequence[int]) -> DeviceState:
    if says.vanished:
        return DeviceState(uuid, Health.FAILED, detail=says.failed or "the device has vanished (simulated)")
    health, detail = Health.HEALTHY, None
    if says.failed is not None:
        health, detail = Health.FAILED, says.failed
    elif says.suspect is not None:
        health, detail = Health.SUSPECT, says.suspect
    elif says.xid is not None:
        health, detail = health_of(says.xid), explain(says.xid)
    return DeviceState(
        uuid,
        health,
        memory_used_mib=says.memory_used_mib,
        utilisation_percent=says.utilisation_percent,
        temperature_c=says.temperature_c,
        power_w=says.power_w,
        xid=says.xid,
        detail=detail,
        pids=tuple(sorted(process.pid for process in says.foreign)),
        foreign=tuple(process for process in says.foreign if process.pid not in own_pids),
    )
