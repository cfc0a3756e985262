"""How facts change services: what is said of them, and what the jobs that are their replicas do."""

from __future__ import annotations

from msgspec.structs import replace

from corral.model.errors import IllegalTransition
from corral.model.events import (
    GangRequeued,
    JobEnded,
    JobEvent,
    JobSubmitted,
    ReplicaDraining,
    ReplicaReady,
    RolloutEnded,
    RolloutWidened,
    ServiceEvent,
    ServiceRemoved,
    ServiceScaled,
    ServiceSet,
)
from corral.model.ids import ServiceName
from corral.model.job import JobState
from corral.model.service import (
    REVISIONS_MAX,
    STEADY_S,
    Replica,
    ReplicaPhase,
    Revision,
    Rollout,
    Service,
    ServingTask,
)


def fold_service(services: dict[ServiceName, Service], fact: ServiceEvent) -> None:
    """Change a service by a fact about it. Raises ``IllegalTransition`` and changes nothing."""
    if isinstance(fact, ServiceSet):
        _set(services, fact)
        return
    service = services.get(fact.service)
    if service is None:
        raise IllegalTransition(f"there is no service {fact.service}")
    match fact:
        case ServiceScaled():
            service.wanted = fact.replicas
            service.message = fact.reason
        case RolloutWidened():
            if service.rollout is None:
                raise IllegalTransition(f"service {fact.service} has no rollout")
            service.rollout = replace(service.rollout, canary_percent=fact.canary_percent)
        case RolloutEnded():
            _ended(service, fact)
        case ReplicaReady() | ReplicaDraining():
            _replica(service, fact)
        case ServiceRemoved():
            service.removed_by = fact.by
            _drop_when_empty(services, service)
        case _:
            raise IllegalTransition(f"no rule for {type(fact).__name__}")


def _set(services: dict[ServiceName, Service], fact: ServiceSet) -> None:
    known = services.get(fact.service)
    revision = Revision(fact.revision, fact.spec, fact.at, fact.by)
    if known is None:
        if fact.secrets is None or fact.revision != 1:
            raise IllegalTransition(f"service {fact.service} is new: it begins at revision 1, with its secrets")
        services[fact.service] = Service(
            name=fact.service,
            tenant=fact.spec.tenant,
            revisions=(revision,),
            stable=1,
            # One that rests while nobody asks starts once all the same: its owner sees whether it can.
            wanted=max(1, fact.spec.scaling.replicas_min),
            created_at=fact.at,
            secrets=fact.secrets,
            replicas={},
        )
        return
    if fact.revision != known.newest.number + 1:
        raise IllegalTransition(f"service {fact.service} is at revision {known.newest.number}, not {fact.revision - 1}")
    if fact.secrets is not None and fact.secrets.authority_pem and not known.secrets.authority_pem:
        known.secrets = replace(fact.secrets, token=known.secrets.token)
    known.revisions = _kept((*known.revisions, revision), known.stable)
    known.rollout = Rollout(fact.revision, fact.at, fact.by, fact.canary_percent)
    known.failures, known.failed_at, known.message = 0, None, ""


def _kept(revisions: tuple[Revision, ...], stable: int) -> tuple[Revision, ...]:
    newest = revisions[-REVISIONS_MAX:]
    return tuple(revision for revision in revisions if revision in newest or revision.number == stable)


def _ended(service: Service, fact: RolloutEnded) -> None:
    try:
        spec = service.spec(fact.revision)
    except KeyError:
        raise IllegalTransition(f"service {service.name} does not keep revision {fact.revision}") from None
    before = service.current.scaling
    service.stable = fact.revision
    service.rollout = None
    service.message = fact.reason
    service.failures, service.failed_at = 0, None
    scaling = spec.scaling
    if scaling.automatic:
        # Whether it rests is not for a new revision to say.
        low = scaling.replicas_min if service.wanted else 0
        service.wanted = min(max(service.wanted, low), scaling.replicas_max)
    elif before.replicas_min != scaling.replicas_min or before.automatic:
        service.wanted = scaling.replicas_min


def _replica(service: Service, fact: ReplicaReady | ReplicaDraining) -> None:
    known = service.replicas.get(fact.job)
    if known is None:
        raise IllegalTransition(f"job {fact.job} is no replica of service {service.name}")
    if isinstance(fact, ReplicaDraining):
        service.replicas[fact.job] = replace(known, phase=ReplicaPhase.DRAINING, since=fact.at)
        return
    phase = known.phase if known.phase is ReplicaPhase.DRAINING else ReplicaPhase.SERVING
    service.replicas[fact.job] = replace(known, phase=phase, incarnation=fact.incarnation, since=fact.at)
    rollout = service.rollout
    if rollout is not None and known.revision == rollout.revision and rollout.began_to_serve_at is None:
        service.rollout = replace(rollout, began_to_serve_at=fact.at)


def follow_job(
    services: dict[ServiceName, Service], fact: JobEvent, serving: ServingTask, *, unwanted: bool = False
) -> None:
    """Let a service know what happened to one of its replicas.

    ``unwanted`` tells of a job that was asked to end: its end says nothing against its revision.
    """
    service = services.get(serving.service)
    if service is None:
        return
    if isinstance(fact, JobSubmitted):
        service.replicas[fact.job] = Replica(fact.job, serving.revision, serving.ordinal, since=fact.at)
        service.next_ordinal = max(service.next_ordinal, serving.ordinal + 1)
        return
    known = service.replicas.get(fact.job)
    if known is None:
        return
    if isinstance(fact, GangRequeued) and known.phase is ReplicaPhase.SERVING:
        service.replicas[fact.job] = replace(known, phase=ReplicaPhase.STARTING, since=fact.at)
    elif isinstance(fact, JobEnded):
        del service.replicas[fact.job]
        if not unwanted and known.phase is not ReplicaPhase.DRAINING and fact.state is not JobState.CANCELLED:
            steady = known.phase is ReplicaPhase.SERVING and fact.at - known.since >= STEADY_S
            service.failures = 1 if steady else service.failures + 1
            service.failed_at, service.failed_revision = fact.at, known.revision
            service.message = fact.reason or "a replica ended by itself"
        _drop_when_empty(services, service)


def _drop_when_empty(services: dict[ServiceName, Service], service: Service) -> None:
    if service.removed_by is not None and not service.replicas:
        del services[service.name]
