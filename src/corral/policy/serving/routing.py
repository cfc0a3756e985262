"""What front ends are told, computed from the state alone: after a change of leader routes stay as they are."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from corral.model.ids import TenantId
from corral.model.job import Gang, Job
from corral.model.resources import Placement
from corral.model.routes import Backend, Route, RoutingTable
from corral.model.service import ProbeKind, Replica, ReplicaPhase, Service
from corral.model.state import PoolState
from corral.model.tenant import Role
from corral.policy.serving.speeds import bandwidth_gb_s, weights

CALLERS = frozenset({Role.USER, Role.ADMIN, Role.CALLER})
"""Whose tokens are API keys."""


def backend_name(replica: Replica) -> str:
    """Return the name of a replica in the proxies: a moved one is another server."""
    return f"r{replica.job}-{replica.incarnation}"


def table_of(state: PoolState, epoch: int) -> RoutingTable:
    """Return all routes and keys. The digest names the content, whoever leads."""
    routes = tuple(route_of(state, service) for _, service in sorted(state.services.items()))
    keys = _keys(state) if routes else {}
    content = msgspec.json.encode([routes, sorted(keys.items())])
    return RoutingTable(epoch, hashlib.sha256(content).hexdigest(), routes, keys)


def _keys(state: PoolState) -> dict[str, TenantId]:
    return {token.digest: token.tenant for token in state.tokens.values() if token.role in CALLERS}


def route_of(state: PoolState, service: Service) -> Route:
    """Return a service as front ends see it."""
    spec = service.current
    return Route(
        service=service.name,
        tenant=service.tenant,
        traffic=spec.traffic,
        scaling=spec.scaling,
        secrets=service.secrets.for_front_end(),
        backends=_backends(state, service),
        model=spec.model,
        shares=_shares(service),
        reason=_reason(service),
        health_path=_health_path(service),
    )


def _shares(service: Service) -> dict[int, int]:
    rollout = service.rollout
    if rollout is None or rollout.canary_percent is None or not _serves(service, rollout.revision):
        return {}
    return {service.stable: 100 - rollout.canary_percent, rollout.revision: rollout.canary_percent}


def _serves(service: Service, revision: int) -> bool:
    return any(r.revision == revision and r.phase is ReplicaPhase.SERVING for r in service.replicas.values())


def _health_path(service: Service) -> str | None:
    """Return the path that all replicas answer when they are ready, ``None`` where only the port can be tried."""
    specs = [service.current] + ([service.spec(service.rollout.revision)] if service.rollout is not None else [])
    paths = {p.path if (p := spec.probes.readiness).kind is ProbeKind.HTTP else None for spec in specs}
    return paths.pop() if len(paths) == 1 else None


def _backends(state: PoolState, service: Service) -> tuple[Backend, ...]:
    found: list[Backend] = []
    speeds: dict[str, float | None] = {}
    for replica in service.replicas.values():
        job = state.jobs.get(replica.job)
        gang = job.gangs.get(0) if job is not None else None
        if job is None or gang is None or not _routed(replica, gang):
            continue
        placement = gang.placements[0]
        port = job.spec.serving.port if job.spec.serving is not None else None
        port = port if port is not None else placement.port
        node = state.nodes.get(placement.node)
        if port is None or node is None:
            continue
        name = backend_name(replica)
        speeds[name] = _speed(state, placement)
        found.append(
            Backend(
                name=name,
                job=replica.job,
                incarnation=replica.incarnation,
                revision=replica.revision,
                address=node.spec.address or node.spec.hostname,
                port=port,
                draining=leaving(replica, job, gang),
            )
        )
    found.sort(key=lambda backend: int(backend.job))
    return tuple(_weighted(found, weights(speeds)))


def _weighted(backends: list[Backend], by_name: Mapping[str, int]) -> list[Backend]:
    return [replace(backend, weight=by_name[backend.name]) for backend in backends]


def _routed(replica: Replica, gang: Gang) -> bool:
    """Return whether requests may be under way there: it was ready in the incarnation that runs."""
    return replica.phase is not ReplicaPhase.STARTING and replica.incarnation == gang.incarnation and gang.live


def leaving(replica: Replica, job: Job, gang: Gang) -> bool:
    """Return whether a replica is on its way out, so that it gets no new requests."""
    return replica.phase is ReplicaPhase.DRAINING or gang.stopping is not None or job.cancelled_by is not None


def _speed(state: PoolState, placement: Placement) -> float | None:
    """Return the memory bandwidth (GB/s) of all that a replica holds of devices, ``None`` when it is not known."""
    models = {device.uuid: device.model for device in state.nodes[placement.node].spec.devices}
    total = 0.0
    for share in placement.devices:
        each = bandwidth_gb_s(models.get(share.uuid, ""))
        if each is None:
            return None
        total += each * share.milli / 1000
    return total if placement.devices else None


def _reason(service: Service) -> str:
    """Return why there is no replica that serves; empty where there is one."""
    phases = [replica.phase for replica in service.replicas.values()]
    if ReplicaPhase.SERVING in phases:
        return ""
    if service.removed_by is not None:
        return "the service is being removed"
    starting = phases.count(ReplicaPhase.STARTING)
    said = f": {service.message}" if service.message else ""
    if starting:
        return (f"{starting} replicas are starting" if starting > 1 else "a replica is starting") + said
    if service.wanted == 0:
        return "it is at rest: nobody asked for it lately"
    return f"no replica runs{said}"
