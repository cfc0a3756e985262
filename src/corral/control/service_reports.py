"""What people are told of a service: its facts, and what is seen of its replicas now."""

from __future__ import annotations

from urllib.parse import urlsplit

from corral.control.core import ControlCore
from corral.model.routes import RouteLoad
from corral.model.service import Replica, ReplicaPhase, Service
from corral.model.service_report import ReplicaReport, ServiceReport
from corral.policy.serving.routing import backend_name


def report(core: ControlCore, service: Service, now: float) -> ServiceReport:
    """Return one service."""
    load = core.services.traffic.merged(service.name, now)
    replicas = tuple(
        found
        for replica in sorted(service.replicas.values(), key=lambda one: one.ordinal)
        if (found := _replica(core, replica, load)) is not None
    )
    scaling = service.current.scaling
    return ServiceReport(
        name=service.name,
        tenant=service.tenant,
        stable=service.stable,
        wanted=service.wanted,
        ready=sum(one.phase is ReplicaPhase.SERVING and one.ready is not False for one in replicas),
        replicas_min=scaling.replicas_min,
        replicas_max=scaling.replicas_max,
        model=service.current.model,
        urls=_urls(core, service, now),
        created_at=service.created_at,
        replicas=replicas,
        rollout=service.rollout,
        revisions=service.revisions,
        load=load,
        message=service.message,
        waits_for=core.services.waits_for(now, service),
        removing=service.removed_by is not None,
    )


def _replica(core: ControlCore, replica: Replica, load: RouteLoad | None) -> ReplicaReport | None:
    job = core.book.state.jobs.get(replica.job)
    gang = job.gangs.get(0) if job is not None else None
    if job is None or gang is None:
        return None
    placement = gang.placements[0] if gang.live else None
    name = backend_name(replica)
    health = core.services.replicas.health.get(replica.job)
    seen = health if health is not None and health.incarnation == gang.incarnation else None
    return ReplicaReport(
        job=replica.job,
        ordinal=replica.ordinal,
        revision=replica.revision,
        phase=replica.phase,
        state=job.state.value,
        node=placement.node if placement is not None else None,
        address=_address(core, replica) if placement is not None else "",
        since=replica.since,
        ready=seen.ready if seen is not None else None,
        load=next((one for one in load.backends if one.name == name), None) if load is not None else None,
        message=seen.message if seen is not None and not seen.ready else job.message,
    )


def _address(core: ControlCore, replica: Replica) -> str:
    """Return HOST:PORT of a replica that is placed."""
    state = core.book.state
    job = state.jobs[replica.job]
    placement = job.gangs[0].placements[0]
    node = state.nodes.get(placement.node)
    fixed = job.spec.serving.port if job.spec.serving is not None else None
    port = fixed if fixed is not None else placement.port
    if node is None or port is None:
        return ""
    host = node.spec.address or node.spec.hostname
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _urls(core: ControlCore, service: Service, now: float) -> tuple[str, ...]:
    """Return where front ends answer for a service: its path at each of them, and its own port."""
    found: list[str] = []
    for one in core.services.traffic.statuses(now, None):
        parts = urlsplit(one.address)
        if not parts.netloc:
            continue
        found.append(f"{one.address.rstrip('/')}/{service.name}/")
        listen = service.current.traffic.listen
        if listen is not None and parts.hostname:
            host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
            found.append(f"{parts.scheme}://{host}:{listen}/")
    return tuple(dict.fromkeys(found))
