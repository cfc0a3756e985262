"""What a front end is told, and what it tells: routes to replicas out, load and health back.

A front end keeps the last table that it was told and serves by it without any controller. Tables of an older leader
epoch are refused; within one epoch what came last counts.
"""

from __future__ import annotations

import msgspec

from corral.model.ids import JobId, ServiceName, TenantId
from corral.model.service import Retry, Scaling, Secrets, Traffic

GUARD_HEADER = "X-Corral-Front-End-Token"
"""In this header front ends show a replica that they are front ends (guard ``token``), also when they check it."""

SERVICE_HEADER = "X-Corral-Service"
"""Names the service to the relay, which takes it from nobody but the proxy beside it."""

TENANT_HEADER = "X-Corral-Tenant"
"""Tells relay and replica whose key a caller showed. What callers put there themselves is taken away."""

REPLICA_HEADER = "X-Corral-Replica"
"""In an answer of the relay: which replica gave it. The proxy writes it into its log and takes it away."""


class Backend(msgspec.Struct, frozen=True):
    """A replica that was ready. ``name`` is its name in the proxy; ``weight`` 1..256 is for weighted balancing."""

    name: str
    job: JobId
    incarnation: int
    revision: int
    address: str
    port: int
    draining: bool = False
    weight: int = 100


class Route(msgspec.Struct, frozen=True):
    """A service as a front end sees it. ``shares`` are the percents of requests by revision during a canary.

    ``reason`` says, for people, why there is no replica. ``secrets`` are those that a front end needs. Front ends ask
    ``health_path`` five times a second, and take a replica that twice does not answer in ``health_timeout_s`` for dead;
    without a path they try its port.
    """

    service: ServiceName
    tenant: TenantId
    traffic: Traffic
    scaling: Scaling
    secrets: Secrets
    backends: tuple[Backend, ...] = ()
    model: str | None = None
    shares: dict[int, int] = {}
    reason: str = ""
    health_path: str | None = None
    health_timeout_s: float = 0.3

    @property
    def relayed(self) -> bool:
        """Return whether its requests pass the relay: they may wait, be hedged, stream, or be retried under way.

        All others go from the proxy to a replica straight. Whoever asks a model may ask for a stream.
        """
        traffic = self.traffic
        return (
            traffic.stream
            or traffic.hedge_after_s is not None
            or traffic.retry is Retry.BEFORE_FIRST_TOKEN
            or self.scaling.replicas_min == 0
            or self.model is not None
        )


class RoutingTable(msgspec.Struct, frozen=True):
    """All routes. ``digest`` names the content; ``keys`` are API keys' SHA-256 (hex) with the tenant of each."""

    epoch: int
    digest: str
    routes: tuple[Route, ...] = ()
    keys: dict[str, TenantId] = {}


class BackendLoad(msgspec.Struct, frozen=True):
    """A backend as one front end sees it. Counters rise from the front end's start."""

    name: str
    up: bool
    ejected: bool = False
    outstanding: int = 0
    requests: int = 0
    errors: int = 0
    retries: int = 0
    drained: bool = False


class RouteLoad(msgspec.Struct, frozen=True):
    """A service as one front end sees it. ``waiting`` are requests for which there is no replica yet.

    ``latency_p50_s`` and ``latency_p99_s`` are over the last minute.
    """

    service: ServiceName
    requests: int = 0
    errors: int = 0
    retries: int = 0
    ejections: int = 0
    outstanding: int = 0
    waiting: int = 0
    latency_p50_s: float | None = None
    latency_p99_s: float | None = None
    backends: tuple[BackendLoad, ...] = ()


class FrontEndReport(msgspec.Struct, frozen=True):
    """What a front end tells every second, and at once when a request waits for a replica.

    ``address`` is where it serves (a URL), ``holds`` the virtual addresses that it has now, ``problem`` what is wrong.
    """

    name: str
    address: str
    epoch: int
    digest: str
    loads: tuple[RouteLoad, ...] = ()
    holds: tuple[str, ...] = ()
    problem: str = ""
    version: str = ""
