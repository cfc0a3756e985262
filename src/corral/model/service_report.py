"""What is told of services: to people, and to front ends."""

from __future__ import annotations

import msgspec

from corral.model.ids import JobId, NodeId, ServiceName, TenantId
from corral.model.routes import BackendLoad, RouteLoad
from corral.model.service import ReplicaPhase, Revision, Rollout


class ReplicaReport(msgspec.Struct, frozen=True):
    """A replica: its job, where it runs, and what the front ends see of it together (``load``)."""

    job: JobId
    ordinal: int
    revision: int
    phase: ReplicaPhase
    state: str
    node: NodeId | None
    address: str
    since: float
    ready: bool | None
    load: BackendLoad | None = None
    message: str = ""


class ServiceReport(msgspec.Struct, frozen=True):
    """A service: ``load`` is the sum over all front ends, ``waits_for`` says why it has fewer replicas than wanted."""

    name: ServiceName
    tenant: TenantId
    stable: int
    wanted: int
    ready: int
    replicas_min: int
    replicas_max: int
    model: str | None
    urls: tuple[str, ...]
    created_at: float
    replicas: tuple[ReplicaReport, ...]
    rollout: Rollout | None
    revisions: tuple[Revision, ...]
    load: RouteLoad | None
    message: str = ""
    waits_for: str = ""
    removing: bool = False


class FrontEndStatus(msgspec.Struct, frozen=True):
    """A front end as the controller knows it; ``current`` says that it serves by the newest table."""

    name: str
    address: str
    heard_s: float
    current: bool
    holds: tuple[str, ...] = ()
    problem: str = ""
