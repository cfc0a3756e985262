"""Clusters in one line: ``12xV100,12xP100,12xK80`` or ``18x8xH100/6``.

    cluster = group ("," group)*
    group   = [nodes "x"] [devices "x"] model ["/" nodes per rack]

One number is that of the nodes, of one device each; two are nodes and devices per node. All groups without ``/`` are in
one rack.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from corral.model.errors import InvalidField
from corral.model.ids import DeviceId, NodeId
from corral.model.resources import DeviceSpec, NodeSpec

DEVICES_MAX = 1_000_000
"""Devices of one simulated cluster: ten times the largest pool that this project aims at."""

CPUS_PER_DEVICE_MILLI = 8_000
MEMORY_PER_DEVICE_MIB = 65_536
DEVICE_MEMORY_MIB = 32_768

_GROUP = re.compile(r"(?:(\d+)x)?(?:(\d+)x)?((?!x\d)[A-Za-z][\w.-]*?)(?:/(\d+))?", re.ASCII)
_HINT = "write groups like 12xV100 (nodes of one device) or 18x8xH100/6 (nodes x devices, 6 nodes a rack)"


def parse_cluster(text: str) -> tuple[NodeSpec, ...]:
    """Return the nodes of a cluster specification. Raises ``InvalidField``."""
    nodes: list[NodeSpec] = []
    devices_total = 0
    for group in text.split(","):
        found = _GROUP.fullmatch(group.strip())
        if found is None:
            raise InvalidField(f"{group.strip()!r} is not a group of nodes", field="--cluster", hint=_HINT)
        count, devices, per_rack = (int(part) if part else None for part in found.group(1, 2, 4))
        count, devices = count if count is not None else 1, devices if devices is not None else 1
        if count < 1 or devices < 1 or per_rack == 0:
            raise InvalidField(f"{group.strip()!r} has a number below 1", field="--cluster", hint=_HINT)
        devices_total += count * devices
        if devices_total > DEVICES_MAX:
            raise InvalidField(f"more than {DEVICES_MAX} devices", field="--cluster")
        nodes.extend(_group(len(nodes), count, devices, found.group(3), per_rack))
    return tuple(nodes)


def _group(first: int, count: int, devices: int, model: str, per_rack: int | None) -> list[NodeSpec]:
    racks = [f"rack-{first + i - i % per_rack}" if per_rack else "rack" for i in range(count)]
    return [simulated_node(f"node-{first + i:05d}", devices, model, rack=rack) for i, rack in enumerate(racks)]


def simulated_node(name: str, devices: int, model: str, *, rack: str = "rack-0") -> NodeSpec:
    """Return a node with devices of one model, and as many CPUs and as much memory as they usually come with."""
    return NodeSpec(
        id=NodeId(name),
        hostname=name,
        address=name,
        cpus_milli=CPUS_PER_DEVICE_MILLI * devices,
        memory_mib=MEMORY_PER_DEVICE_MIB * devices,
        devices=tuple(
            DeviceSpec(DeviceId(f"{name}-gpu{i:03d}"), model, "simulated", DEVICE_MEMORY_MIB, i, simulated=True)
            for i in range(devices)
        ),
        rack=rack,
        simulated=True,
        incarnation="boot-1",
    )


def models_of(nodes: Sequence[NodeSpec]) -> tuple[str, ...]:
    """Return the device models of a cluster, sorted."""
    return tuple(sorted({device.model for node in nodes for device in node.devices}))


def device_count(nodes: Sequence[NodeSpec]) -> int:
    """Return the number of devices of a cluster."""
    return sum(len(node.devices) for node in nodes)


def largest_node(nodes: Sequence[NodeSpec], model: str | None = None) -> int:
    """Return the most devices (of a model) that one node has."""
    return max(
        (sum(1 for device in node.devices if model in (None, device.model)) for node in nodes),
        default=0,
    )
