"""The replicas of services as they are seen now, and the jobs that new ones are."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from corral.control.book import Book
from corral.control.submission import refuse
from corral.control.traffic import Traffic
from corral.model.ask import JobAsk
from corral.model.errors import InvalidField, NotFound, Refusal
from corral.model.ids import DEFAULT_QUEUE, JobId, NodeId, QueueName, ServiceName
from corral.model.job import Fencing, Gang, Job, JobSpec, JobState
from corral.model.messages import Readiness
from corral.model.service import Replica, ReplicaPhase, Service, ServiceSpec, ServingTask
from corral.policy.admission import AdmissionDefaults, admit
from corral.policy.config import PRIORITY_MAX
from corral.policy.serving.replicas import Seen
from corral.policy.serving.routing import backend_name, leaving

FLOOR_PRIORITY = 100
"""What a replica of the floor has more than its service says: an endpoint goes before its tenant's other work."""


AVOID_MAX = 4
"""Nodes that a service remembers to have failed on: with more it would soon avoid all there are."""


class Health(msgspec.Struct, frozen=True):
    """What was said last of a replica's probes, and since when that has been said (controller's clock)."""

    incarnation: int
    ready: bool
    since: float
    message: str = ""


class Replicas:
    """What is observed of replicas, of all services."""

    def __init__(self, book: Book, traffic: Traffic) -> None:
        self._book = book
        self._traffic = traffic
        self.health: dict[JobId, Health] = {}
        self.failed_on: dict[ServiceName, tuple[NodeId, ...]] = {}
        self._since: dict[tuple[JobId, int, str], float] = {}

    def hear(self, now: float, told: Readiness) -> bool:
        """Take in what probes say; return whether that is new."""
        known = self.health.get(told.task.job)
        same = known is not None and known.incarnation == told.incarnation and known.ready == told.ready
        since = known.since if known is not None and same else now
        self.health[told.task.job] = Health(told.incarnation, told.ready, since, told.message)
        return not same

    def ended(self, job: Job, state: JobState) -> None:
        """Drop what is known of a replica that has ended, but for where it failed."""
        self.health.pop(job.id, None)
        for key in [key for key in self._since if key[0] == job.id]:
            del self._since[key]
        placement, serving = job.gangs[0].tasks[0].placement, job.spec.serving
        if state is JobState.FAILED and placement is not None and serving is not None:
            before = self.failed_on.get(serving.service, ())
            known = (*(node for node in before if node != placement.node), placement.node)
            self.failed_on[serving.service] = known[-AVOID_MAX:]

    def avoid(self, service: Service) -> tuple[NodeId, ...]:
        """Return where the next replica should not go at first: one failure alone says nothing against a node."""
        return self.failed_on.get(service.name, ()) if service.failures > 1 else ()

    def ready(self, job: Job) -> bool | None:
        """Return whether a replica answers its probes now, ``None`` when that is not known."""
        health = self.health.get(job.id)
        return health.ready if health is not None and health.incarnation == job.gangs[0].incarnation else None

    def seen(self, now: float, service: Service) -> list[Seen]:
        """Return the replicas of a service as they are now."""
        found: list[tuple[Replica, Job, Gang]] = []
        on: dict[str, int] = {}
        for replica in service.replicas.values():
            job = self._book.state.jobs[replica.job]
            gang = job.gangs[0]
            found.append((replica, job, gang))
            for placement in gang.placements:
                on[placement.node] = on.get(placement.node, 0) + 1
        return [self._seen(now, service, *one, on) for one in found]

    def _seen(self, now: float, service: Service, replica: Replica, job: Job, gang: Gang, on: dict[str, int]) -> Seen:
        node = gang.placements[0].node if gang.live else None
        served = gang.live and replica.incarnation == gang.incarnation
        answers = self.ready(job)
        health = self.health.get(replica.job)
        serving = served and replica.phase is ReplicaPhase.SERVING
        answering = node is not None and self._book.board.view(node).answering
        out = leaving(replica, job, gang)
        known = self._book.state.nodes.get(node) if node is not None else None
        condemned = known is not None and known.draining
        return Seen(
            job=replica.job,
            revision=replica.revision,
            ordinal=replica.ordinal,
            phase=replica.phase,
            placed_at=gang.placed_at if gang.live else None,
            ready=serving and answers is not False and answering and not out,
            unready_s=now - health.since if serving and answers is False and health is not None else 0.0,
            condemned=condemned,
            condemned_s=now - self.since(now, replica.job, gang.incarnation, "condemned") if condemned else 0.0,
            leaving=out,
            idle=out and (not served or self.idle(now, service, replica, job, gang)),
            siblings=on.get(node, 1) - 1 if node is not None else 0,
        )

    def since(self, now: float, job: JobId, incarnation: int, what: str) -> float:
        """Return when something was seen of an incarnation for the first time: now, if it never was."""
        return self._since.setdefault((job, incarnation, what), now)

    def idle(self, now: float, service: Service, replica: Replica, job: Job, gang: Gang) -> bool:
        """Return whether no front end has a request under way at a replica that leaves, or none may have any more."""
        since = self.since(now, replica.job, gang.incarnation, "leaving")
        if replica.phase is ReplicaPhase.DRAINING:
            since = min(since, replica.since)
        limit_s = job.spec.serving.drain_s if job.spec.serving is not None else 0.0
        return now - since >= limit_s or self._traffic.drained(service.name, backend_name(replica), since, now)


def replica_spec(
    book: Book, spec: ServiceSpec, revision: int, ordinal: int, *, floor: bool, avoid: tuple[NodeId, ...] = ()
) -> JobSpec | Refusal:
    """Return the job that a replica is, or why there can be none. Those of the ``floor`` go first."""
    state, ask = book.state, replica_ask(spec, ordinal, floor=floor)
    tenant, queue = state.tenants.get(spec.tenant), state.queues.get(QueueName(ask.queue or DEFAULT_QUEUE))
    if tenant is None:
        return refuse(NotFound, f"there is no tenant {spec.tenant!r}", field="tenant")
    if queue is None:
        return refuse(NotFound, f"there is no queue {ask.queue!r}", field="queue")
    if ask.num_nodes != 1 or ask.node_counts or ask.indices is not None or ask.points:
        return refuse(InvalidField, "a replica is one task on one node", field="num_nodes")
    if ask.after:
        return refuse(InvalidField, "a replica waits for no other job", field="after")
    pending = sum(job.spec.tenant == tenant.id for job in state.jobs.values()) if tenant.jobs_max is not None else 0
    admitted = admit(
        ask,
        tenant=tenant,
        queue=queue,
        capacity=book.inventory,
        defaults=AdmissionDefaults(grace_s=book.config.grace_default_s, fencing=Fencing.NONE),
        pending_jobs=pending,
        resolved_after=(),
    )
    if isinstance(admitted, Refusal):
        return admitted
    traffic = spec.traffic
    serving = ServingTask(spec.name, revision, ordinal, spec.port, spec.probes, traffic.guard, traffic.drain_s, avoid)
    return replace(admitted, serving=serving)


def replica_ask(spec: ServiceSpec, ordinal: int, *, floor: bool) -> JobAsk:
    """Return what a replica asks for. Its process ends when it ends: the next one is another job."""
    ask = spec.replica
    priority = min(PRIORITY_MAX, ask.priority + FLOOR_PRIORITY) if floor else ask.priority
    return replace(ask, name=f"{spec.name}-{ordinal}", tenant=spec.tenant, max_restarts=0, priority=priority)


def queues_of(service: Service) -> set[QueueName]:
    """Return the queues in which replicas of a service wait, of whatever revision that may be brought out again."""
    return {QueueName(revision.spec.replica.queue or DEFAULT_QUEUE) for revision in service.revisions}
