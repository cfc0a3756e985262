"""The pool's state in memory: the fold of the journal. Changed only by ``transitions.fold``."""

from __future__ import annotations

import msgspec

from corral.model.ids import DeviceId, GangKey, JobId, NodeId, QueueName, ServiceName, TenantId
from corral.model.job import Job
from corral.model.resources import Amount, NodeSpec, Placement
from corral.model.service import Service
from corral.model.tenant import Queue, Tenant, Token

KEYS_MAX = 100_000
LEFT = "left the pool"
"""The reason of the cordon of a node that leaves."""
STOPPED = "its head is stopped"
"""The reason of the cordon of a head's own node while that head is being stopped, and others lead on."""
UNTIL_STARTED = frozenset({LEFT, STOPPED})
"""Cordons that are over when the machine is started again."""


class Node(msgspec.Struct):
    """A registered node and the facts about it. Whether it answers now is an observation and not kept here.

    ``draining``: it is cordoned, and what ran there was told to give way.
    """

    spec: NodeSpec
    lost: bool = False
    cordoned: bool = False
    cordon_reason: str = ""
    failed: dict[DeviceId, str] = {}
    draining: bool = False


class Held(msgspec.Struct):
    """What is held on one node: milli-units by device, CPUs, memory, rendezvous ports, and who is there."""

    devices: dict[DeviceId, int] = {}
    cpus_milli: int = 0
    memory_mib: int = 0
    ports: set[int] = set()
    gangs: dict[str, int] = {}

    @property
    def amount(self) -> Amount:
        """Return the sum."""
        return Amount(sum(self.devices.values()), self.cpus_milli, self.memory_mib)

    def hold(self, key: GangKey, placement: Placement) -> None:
        """Add a placement."""
        for share in placement.devices:
            self.devices[share.uuid] = self.devices.get(share.uuid, 0) + share.milli
        self.cpus_milli += placement.cpus_milli
        self.memory_mib += placement.memory_mib
        if placement.port is not None:
            self.ports.add(placement.port)
        self.gangs[str(key)] = self.gangs.get(str(key), 0) + 1

    def release(self, key: GangKey, placement: Placement) -> None:
        """Take a placement away."""
        for share in placement.devices:
            left = self.devices.get(share.uuid, 0) - share.milli
            if left > 0:
                self.devices[share.uuid] = left
            else:
                self.devices.pop(share.uuid, None)
        self.cpus_milli -= placement.cpus_milli
        self.memory_mib -= placement.memory_mib
        if placement.port is not None:
            self.ports.discard(placement.port)
        left = self.gangs.get(str(key), 0) - 1
        if left > 0:
            self.gangs[str(key)] = left
        else:
            self.gangs.pop(str(key), None)


class Maintenance(msgspec.Struct, frozen=True):
    """The newest planned outage, until ``until``. ``ended_at`` is set when it was called off.

    ``granted_until`` is the latest that leases were granted for, here or before, and ``granted_s`` the length of the
    longest of them: kept when all is over, for a node that was not heard since may still hold one. These times are the
    clocks of the controllers that granted, which may be wrong by as much as a grant is long.
    """

    started_at: float
    until: float
    by: str
    reason: str = ""
    ended_at: float | None = None
    granted_until: float = 0.0
    granted_s: float = 0.0

    def active(self, now: float) -> bool:
        """Return whether long leases are being granted."""
        return self.ended_at is None and now < self.until

    @property
    def forgotten_at(self) -> float:
        """Return from when on no grant is left, by whatever clock."""
        return self.granted_until + 2 * self.granted_s


class KeyUse(msgspec.Struct, frozen=True):
    """An idempotency key that was used: the jobs it made and the digest of the request."""

    jobs: tuple[JobId, ...]
    digest: str | None


class PoolState(msgspec.Struct):
    """Everything that the journal says. Finished jobs have left it (they are rows of the store)."""

    jobs: dict[JobId, Job] = {}
    nodes: dict[NodeId, Node] = {}
    held: dict[NodeId, Held] = {}
    tenants: dict[TenantId, Tenant] = {}
    tenant_held: dict[TenantId, Amount] = {}
    queues: dict[QueueName, Queue] = {}
    queue_held: dict[QueueName, Amount] = {}
    tokens: dict[str, Token] = {}
    keys: dict[str, KeyUse] = {}
    dependents: dict[JobId, tuple[JobId, ...]] = {}
    next_job: int = 1
    finished: int = 0
    at: float = 0.0
    maintenance: Maintenance | None = None
    services: dict[ServiceName, Service] = {}

    def capacity(self) -> Amount:
        """Return what all nodes that are not lost have together, without failed devices."""
        total = Amount()
        for node in self.nodes.values():
            if not node.lost:
                healthy = sum(1000 for d in node.spec.devices if d.uuid not in node.failed)
                total = total + Amount(healthy, node.spec.cpus_milli, node.spec.memory_mib)
        return total

    def remember_key(self, tenant: TenantId, key: str, job: JobId, digest: str | None) -> None:
        """Keep which job an idempotency key made; the oldest keys go first."""
        name = f"{tenant}\0{key}"
        known = self.keys.pop(name, None)
        self.keys[name] = KeyUse((*(known.jobs if known else ()), job), digest)
        while len(self.keys) > KEYS_MAX:
            del self.keys[next(iter(self.keys))]
