"""Services: what people ask of them is checked and recorded here, and their replicas are kept as many as wanted."""

from __future__ import annotations

from msgspec.structs import replace

from corral.control.book import Book
from corral.control.inputs import Serve
from corral.control.submission import refuse
from corral.model.ask import JobAsk
from corral.model.errors import Conflict, DuplicateName, InvalidField, NotFound, Refusal
from corral.model.events import (
    JobSubmitted,
    ReplicaReady,
    RolloutEnded,
    RolloutWidened,
    ServiceRemoved,
    ServiceScaled,
    ServiceSet,
)
from corral.model.ids import DEFAULT_QUEUE, JobId, QueueName
from corral.model.job import Fencing, JobSpec
from corral.model.messages import Heartbeat, Readiness
from corral.model.routes import FrontEndReport, RoutingTable
from corral.model.service import Guard, Service, ServiceSpec, ServingTask
from corral.policy.admission import AdmissionDefaults, admit
from corral.policy.serving.routing import table_of

REPLICAS_MAX = 1_000
"""Replicas of one service: each is a job in the controller."""

SUBMITTER = "service"
"""Who submits and ends replicas, as it stands in their history."""


class Services:
    """All services over the book. While they are ``still`` no replica is started or ended."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._defaults = AdmissionDefaults(grace_s=book.config.grace_default_s, fencing=Fencing.NONE)
        self.still = False
        self._digest: str | None = None

    # ---- what people ask -------------------------------------------------------------------------------------------

    def serve(self, now: float, ask: Serve) -> Refusal | None:
        """Check a wish and record it, dated and numbered anew."""
        fact = ask.fact
        service = self._book.state.services.get(fact.service)
        if isinstance(fact, ServiceSet):
            return self._set(now, fact, service)
        if service is None or service.removed_by is not None:
            return refuse(NotFound, f"there is no service {fact.service!r}")
        refusal = self._refusal(fact, service)
        if refusal is not None:
            return refusal
        if isinstance(fact, RolloutEnded):
            fact = replace(fact, revision=service.stable, undone=True)
        self._book.record(replace(fact, at=now))
        return None

    def _refusal(
        self, fact: ServiceScaled | RolloutWidened | RolloutEnded | ServiceRemoved, service: Service
    ) -> Refusal | None:
        if isinstance(fact, RolloutWidened | RolloutEnded) and service.rollout is None:
            return refuse(Conflict, f"no revision of service {service.name} is being brought out")
        if isinstance(fact, ServiceScaled):
            return _scale_refusal(service.current, fact.replicas)
        return None

    def _set(self, now: float, fact: ServiceSet, service: Service | None) -> Refusal | None:
        spec = fact.spec
        if service is not None and service.tenant != spec.tenant:
            return refuse(DuplicateName, f"another tenant has a service {spec.name!r}", field="name")
        if service is not None and service.removed_by is not None:
            return refuse(Conflict, f"service {spec.name} is being removed", hint="wait until it is gone")
        if service is not None and service.newest.spec == spec and self._counts(service):
            return None
        refusal = self._set_refusal(spec, service)
        if refusal is not None:
            return refusal
        if service is None and fact.secrets is None:
            return refuse(InvalidField, "a new service needs secrets", field="secrets")
        revision = 1 if service is None else service.newest.number + 1
        self._book.record(replace(fact, at=now, revision=revision))
        return None

    @staticmethod
    def _counts(service: Service) -> bool:
        """Return whether the newest revision is the stable one, or on its way to be."""
        following = service.rollout.revision if service.rollout is not None else service.stable
        return service.newest.number == following

    def _set_refusal(self, spec: ServiceSpec, service: Service | None) -> Refusal | None:
        scaling, config = spec.scaling, self._book.config
        if not 0 <= scaling.replicas_min <= scaling.replicas_max <= REPLICAS_MAX or scaling.replicas_max < 1:
            words = f"{scaling.replicas_min} to {scaling.replicas_max} replicas are no range within 0 to {REPLICAS_MAX}"
            return refuse(InvalidField, words, field="replicas")
        if spec.port is not None and config.port_first <= spec.port <= config.port_last:
            words = f"the pool gives ports {config.port_first} to {config.port_last} out itself"
            return refuse(InvalidField, words, field="port", hint="leave port out and take the one in PORT")
        if service is not None and (service.current.traffic.guard is Guard.MTLS) != (spec.traffic.guard is Guard.MTLS):
            words = "a service cannot change to or from mtls while it serves"
            return refuse(Conflict, words, field="guard", hint="give it another name, or stop it first")
        found = self._admitted(spec, 1, 1)
        return found if isinstance(found, Refusal) else None

    # ---- replicas --------------------------------------------------------------------------------------------------

    def _admitted(self, spec: ServiceSpec, revision: int, ordinal: int) -> JobSpec | Refusal:
        """Return the job that a replica is, or why there can be none."""
        state, ask = self._book.state, _ask(spec, ordinal)
        tenant, queue = state.tenants.get(spec.tenant), state.queues.get(QueueName(ask.queue or DEFAULT_QUEUE))
        if tenant is None:
            return refuse(NotFound, f"there is no tenant {spec.tenant!r}", field="tenant")
        if queue is None:
            return refuse(NotFound, f"there is no queue {ask.queue!r}", field="queue")
        if ask.num_nodes != 1 or ask.node_counts or ask.indices is not None or ask.points:
            return refuse(InvalidField, "a replica is one task on one node", field="num_nodes")
        pending = sum(job.spec.tenant == tenant.id for job in state.jobs.values()) if tenant.jobs_max is not None else 0
        admitted = admit(
            ask,
            tenant=tenant,
            queue=queue,
            capacity=self._book.inventory,
            defaults=self._defaults,
            pending_jobs=pending,
            resolved_after=(),
        )
        if isinstance(admitted, Refusal):
            return admitted
        serving = ServingTask(
            spec.name, revision, ordinal, spec.port, spec.probes, spec.traffic.guard, spec.traffic.drain_s
        )
        return replace(admitted, serving=serving)

    def _start(self, now: float, service: Service, revision: int) -> Refusal | None:
        """Submit a replica of a revision."""
        spec = self._admitted(service.spec(revision), revision, service.next_ordinal)
        if isinstance(spec, Refusal):
            return spec
        job = JobId(str(self._book.state.next_job))
        self._book.record(JobSubmitted(at=now, job=job, spec=spec, user=SUBMITTER))
        return None

    def settle(self, now: float) -> None:
        """Start what is missing."""
        if self.still:
            return
        for service in list(self._book.state.services.values()):
            revision = service.rollout.revision if service.rollout is not None else service.stable
            while service.removed_by is None and len(service.replicas) < service.wanted:
                if self._start(now, service, revision) is not None:
                    break

    # ---- what is seen ----------------------------------------------------------------------------------------------

    def heartbeat(self, now: float, beat: Heartbeat) -> None:
        """Take in how the replicas of a node answer their probes."""
        for health in beat.readiness:
            if health.ready:
                self._ready(now, health)

    def _ready(self, now: float, health: Readiness) -> None:
        job = self._book.state.jobs.get(health.task.job)
        gang = job.gangs.get(health.task.gang) if job is not None else None
        if job is None or gang is None or job.spec.serving is None or not gang.live:
            return
        service = self._book.state.services.get(job.spec.serving.service)
        replica = service.replicas.get(job.id) if service is not None else None
        if service is None or replica is None or gang.incarnation != health.incarnation:
            return
        if replica.incarnation != health.incarnation:
            self._book.record(ReplicaReady(at=now, service=service.name, job=job.id, incarnation=health.incarnation))

    def report(self, now: float, report: FrontEndReport) -> None:
        """Take in what a front end sees."""

    # ---- what front ends are told ----------------------------------------------------------------------------------

    def table(self) -> RoutingTable | None:
        """Return the routing table when it is another one than at the last call."""
        table = table_of(self._book.state, self._book.epoch)
        if table.digest == self._digest:
            return None
        self._digest = table.digest
        return table


def _ask(spec: ServiceSpec, ordinal: int) -> JobAsk:
    """Return what a replica asks for: its process ends when it ends, whoever starts the next one."""
    return replace(spec.replica, name=f"{spec.name}-{ordinal}", tenant=spec.tenant, max_restarts=0)


def _scale_refusal(spec: ServiceSpec, replicas: int) -> Refusal | None:
    """Return why there cannot be so many replicas. Limits bind where load decides; else a person does."""
    scaling = spec.scaling
    low, high = (scaling.replicas_min, scaling.replicas_max) if scaling.automatic else (0, REPLICAS_MAX)
    if low <= replicas <= high:
        return None
    words = f"{replicas} replicas are not between {low} and {high}"
    return refuse(InvalidField, words, field="replicas", hint="change the limits: bring out another revision")
