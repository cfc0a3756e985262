"""Devices, nodes and amounts. Devices are counted in milli-GPUs, CPUs in milli-cores, memory in MiB."""

from __future__ import annotations

from pydantic import Field

from corral.model.resources import Health
from corral.wire.v1.base import Answer


class Amount(Answer):
    """A quantity of the three resources."""

    gpu_milli: int
    cpus_milli: int
    memory_mib: int


class DeviceSpec(Answer):
    """A device as it was found."""

    uuid: str = Field(description="its only identity")
    model: str
    vendor: str
    memory_mib: int
    index: int = Field(description="position on the PCI bus")
    island: int = Field(description="devices of one island reach each other without the host")
    simulated: bool


class ForeignProcess(Answer):
    """A process on a device that corral did not start."""

    pid: int
    memory_mib: int | None
    owner: str | None


class DeviceState(Answer):
    """One observation of a device; null is "not available", never 0."""

    uuid: str
    health: Health
    memory_used_mib: int | None
    utilisation_percent: float | None
    temperature_c: float | None
    power_w: float | None
    xid: int | None = Field(description="the driver's last error number")
    detail: str | None
    pids: list[int]
    foreign: list[ForeignProcess]


class NodeSpec(Answer):
    """A node as its agent registered it."""

    id: str
    hostname: str
    address: str
    cpus_milli: int
    memory_mib: int
    devices: list[DeviceSpec]
    rack: str
    simulated: bool
    incarnation: str = Field(description="changes when the node was restarted")


class Demand(Answer):
    """What one task needs. Below 1000 milli-GPUs it is a share of one device."""

    gpu_milli: int
    gpu_model: str | None
    cpus_milli: int
    memory_mib: int


class GangShape(Answer):
    """Equal tasks that start together or not at all."""

    ranks: int
    demand: Demand


class DeviceShare(Answer):
    """A held part of one device."""

    uuid: str
    milli: int


class Placement(Answer):
    """Where one rank runs and what it holds there."""

    rank: int
    node: str
    devices: list[DeviceShare]
    cpus_milli: int
    memory_mib: int
    port: int | None = Field(description="the leased rendezvous port, of rank 0 only")
