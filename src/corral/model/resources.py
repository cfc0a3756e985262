"""What nodes have and what tasks need. Devices are counted in milli-GPUs, CPUs in milli-cores, memory in MiB."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from corral.model.ids import DeviceId, NodeId

MILLI = 1000


class Health(StrEnum):
    """Health of a device as its probe judges it. ``unknown`` is never shown as healthy."""

    HEALTHY = "healthy"
    SUSPECT = "suspect"
    FAILED = "failed"
    UNKNOWN = "unknown"


class DeviceSpec(msgspec.Struct, frozen=True):
    """A device as it was found: ``uuid`` is its only identity, ``index`` the position on the PCI bus."""

    uuid: DeviceId
    model: str
    vendor: str
    memory_mib: int
    index: int
    island: int = 0
    simulated: bool = False


class ForeignProcess(msgspec.Struct, frozen=True):
    """A process on a device that corral did not start."""

    pid: int
    memory_mib: int | None
    owner: str | None = None


class DeviceState(msgspec.Struct, frozen=True):
    """One observation of a device. ``None`` is "not available", never 0. Units are in the names."""

    uuid: DeviceId
    health: Health
    memory_used_mib: int | None = None
    utilisation_percent: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    xid: int | None = None
    detail: str | None = None
    pids: tuple[int, ...] = ()
    foreign: tuple[ForeignProcess, ...] = ()


class NodeSpec(msgspec.Struct, frozen=True):
    """A node as its agent registers it.

    ``incarnation`` changes when the node (boot id, pid namespace) was restarted; ``address`` is where ranks of a gang
    reach each other. ``machine`` tells two machines of one name apart: a restart of one is no proof that nothing runs
    on the other.
    """

    id: NodeId
    hostname: str
    address: str
    cpus_milli: int
    memory_mib: int
    devices: tuple[DeviceSpec, ...] = ()
    rack: str = "rack-0"
    simulated: bool = False
    incarnation: str = ""
    machine: str = ""


class Demand(msgspec.Struct, frozen=True):
    """What one task needs. ``gpu_milli`` below 1000 is a share of one device, otherwise whole devices."""

    gpu_milli: int = 0
    gpu_model: str | None = None
    cpus_milli: int = MILLI
    memory_mib: int = 0

    @property
    def gpus_whole(self) -> int:
        """Return the number of whole devices (0 for a share or none)."""
        return self.gpu_milli // MILLI if self.gpu_milli >= MILLI else 0

    @property
    def is_share(self) -> bool:
        """Return whether the demand is a fraction of one device."""
        return 0 < self.gpu_milli < MILLI


class GangShape(msgspec.Struct, frozen=True):
    """``ranks`` equal tasks that start together or not at all. Equal shapes are interchangeable for placement."""

    ranks: int
    demand: Demand


class DeviceShare(msgspec.Struct, frozen=True):
    """A held part of one device."""

    uuid: DeviceId
    milli: int


class Placement(msgspec.Struct, frozen=True):
    """Where one rank runs and what it holds there. ``port`` is the leased rendezvous port (rank 0 only)."""

    rank: int
    node: NodeId
    devices: tuple[DeviceShare, ...]
    cpus_milli: int
    memory_mib: int
    port: int | None = None

    @property
    def gpu_milli(self) -> int:
        """Return the milli-GPUs held."""
        return sum(share.milli for share in self.devices)


class Amount(msgspec.Struct, frozen=True):
    """A quantity of the three resources that fairness and quotas look at."""

    gpu_milli: int = 0
    cpus_milli: int = 0
    memory_mib: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(
            self.gpu_milli + other.gpu_milli, self.cpus_milli + other.cpus_milli, self.memory_mib + other.memory_mib
        )

    def __sub__(self, other: Amount) -> Amount:
        return Amount(
            self.gpu_milli - other.gpu_milli, self.cpus_milli - other.cpus_milli, self.memory_mib - other.memory_mib
        )

    def times(self, count: int) -> Amount:
        """Return ``count`` times this amount."""
        return Amount(self.gpu_milli * count, self.cpus_milli * count, self.memory_mib * count)

    @classmethod
    def of(cls, need: Demand | Placement) -> Amount:
        """Return what a demand asks or a placement holds."""
        return cls(need.gpu_milli, need.cpus_milli, need.memory_mib)

    def dominant_share(self, capacity: Amount) -> float:
        """Return the largest of the three shares of ``capacity`` (dominant resource, Ghodsi et al., NSDI'11)."""
        return max(
            self.gpu_milli / capacity.gpu_milli if capacity.gpu_milli else 0.0,
            self.cpus_milli / capacity.cpus_milli if capacity.cpus_milli else 0.0,
            self.memory_mib / capacity.memory_mib if capacity.memory_mib else 0.0,
        )
