"""Intake: admission of jobs, cancellation and admin acts. Answers are values or refusals, never half-done."""

from __future__ import annotations

from collections.abc import Mapping

from corral.control.book import Book
from corral.control.inputs import Administer, Cancel, EndedJob, Submit
from corral.control.waiting import satisfies
from corral.model.ask import JobAsk
from corral.model.errors import (
    Conflict,
    CorralError,
    DependencyCycle,
    DuplicateName,
    IdempotencyMismatch,
    NotFound,
    Refusal,
    TooManyJobs,
    UnknownDependency,
)
from corral.model.events import (
    JobCancelRequested,
    JobSubmitted,
    NodeCordoned,
    NodeRemoved,
    NodeUncordoned,
    QueueRemoved,
    QueueSet,
    TenantRemoved,
    TenantSet,
    TokenIssued,
    TokenRevoked,
)
from corral.model.ids import DEFAULT_QUEUE, DEFAULT_TENANT, JobId, NodeId, QueueName, TenantId
from corral.model.job import Dependency, Job, JobSpec
from corral.policy.admission import AdmissionDefaults, admit


def _refuse(kind: type[CorralError], message: str, *, field: str | None = None, hint: str | None = None) -> Refusal:
    return Refusal(kind.code, message, field, hint)


class Intake:
    """Everything that people ask for enters here."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._defaults = AdmissionDefaults(grace_s=book.config.grace_default_s)

    # ---- submission ------------------------------------------------------------------------------------------------

    def submit(self, now: float, ask: Submit) -> tuple[JobId, ...] | Refusal:
        """Admit all jobs of a submission or none; the same key and digest answer with the same jobs."""
        tenant = TenantId(ask.asks[0].tenant or DEFAULT_TENANT) if ask.asks else DEFAULT_TENANT
        known = self._known_key(tenant, ask)
        if known is not None:
            return known
        state = self._book.state
        if len(state.jobs) + len(ask.asks) > self._book.config.jobs_max:
            return _refuse(TooManyJobs, f"the pool holds its maximum of {self._book.config.jobs_max} unfinished jobs")
        first = state.next_job
        ids = {index: JobId(str(first + index)) for index in range(len(ask.asks))}
        order = submission_order(ask.asks)
        if isinstance(order, Refusal):
            return order
        names = {a.name: ids[i] for i, a in enumerate(ask.asks) if a.name}
        facts: dict[int, JobSubmitted] = {}
        for index in order:
            fact = self._admit_one(now, ask, index, ids, names)
            if isinstance(fact, Refusal):
                return fact
            facts[index] = fact
        for index in range(len(ask.asks)):
            self._book.record(facts[index])
        return tuple(ids.values())

    def _known_key(self, tenant: TenantId, ask: Submit) -> tuple[JobId, ...] | Refusal | None:
        if ask.idempotency_key is None:
            return None
        known = self._book.state.keys.get(f"{tenant}\0{ask.idempotency_key}")
        if known is None:
            return None
        if known.digest != ask.digest:
            return _refuse(IdempotencyMismatch, "this idempotency key was used before with another request")
        return known.jobs

    def _admit_one(
        self, now: float, ask: Submit, index: int, ids: Mapping[int, JobId], names: Mapping[str, JobId]
    ) -> JobSubmitted | Refusal:
        job = ask.asks[index]
        state = self._book.state
        tenant_id = TenantId(job.tenant or DEFAULT_TENANT)
        tenant = state.tenants.get(tenant_id)
        if tenant is None:
            return _refuse(NotFound, f"there is no tenant {tenant_id!r}", field="tenant", hint=_known(state.tenants))
        queue = state.queues.get(QueueName(job.queue or DEFAULT_QUEUE))
        if queue is None:
            return _refuse(NotFound, f"there is no queue {job.queue!r}", field="queue", hint=_known(state.queues))
        resolved = self._resolve_after(job, tenant_id, names, ask.ended)
        if isinstance(resolved, Refusal):
            return resolved
        after, waiting_for = resolved
        spec = admit(
            job,
            tenant=tenant,
            queue=queue,
            capacity=[n.spec for n in state.nodes.values()],
            defaults=self._defaults,
            pending_jobs=sum(1 for j in state.jobs.values() if j.spec.tenant == tenant_id)
            if tenant.jobs_max is not None
            else 0,
            resolved_after=after,
        )
        if isinstance(spec, Refusal):
            return spec
        return self._fact(now, ask, ids[index], spec, job.user, waiting_for)

    @staticmethod
    def _fact(
        now: float, ask: Submit, job: JobId, spec: JobSpec, user: str, waiting_for: tuple[JobId, ...]
    ) -> JobSubmitted:
        return JobSubmitted(
            at=now,
            job=job,
            spec=spec,
            user=user,
            waiting_for=waiting_for,
            idempotency_key=ask.idempotency_key,
            request_digest=ask.digest,
        )

    def _resolve_after(
        self, ask: JobAsk, tenant: TenantId, names: Mapping[str, JobId], ended: Mapping[str, EndedJob]
    ) -> tuple[tuple[Dependency, ...], tuple[JobId, ...]] | Refusal:
        after: list[Dependency] = []
        waiting_for: list[JobId] = []
        for want in ask.after:
            if want.ref in names:
                job = names[want.ref]
                waiting_for.append(job)
            else:
                live = self.find_live(want.ref, tenant)
                if isinstance(live, Refusal):
                    return live
                if live is not None:
                    job = live.id
                    waiting_for.append(job)
                elif want.ref in ended:
                    job = ended[want.ref].job
                    if not satisfies(want.kind, ended[want.ref].state):
                        return _refuse(
                            UnknownDependency,
                            f"job {job} ended as {ended[want.ref].state}, so this job could never start",
                            field="after",
                        )
                else:
                    return _refuse(UnknownDependency, f"there is no job {want.ref!r}", field="after")
            after.append(Dependency(job, want.kind))
        return tuple(after), tuple(dict.fromkeys(waiting_for))

    def find_live(self, ref: str, tenant: TenantId | None) -> Job | Refusal | None:
        """Return the live job of a number or name that the tenant (``None``: any) may see."""
        job = self._book.state.jobs.get(JobId(ref))
        if job is not None and tenant in (None, job.spec.tenant):
            return job
        same = [j for j in self._book.state.jobs.values() if j.spec.name == ref and tenant in (None, j.spec.tenant)]
        if len(same) > 1:
            numbers = ", ".join(j.id for j in same[:5])
            return _refuse(UnknownDependency, f"{len(same)} live jobs are named {ref!r}", hint=f"use one of {numbers}")
        return same[0] if same else None

    # ---- cancellation and admin acts -------------------------------------------------------------------------------

    def cancel(self, now: float, ask: Cancel) -> JobId | Refusal:
        """Record the wish; the AppMaster decides what follows. A second wish changes nothing."""
        job = self._book.state.jobs.get(ask.job)
        if job is None:
            return _refuse(Conflict, f"job {ask.job} has ended")
        if job.cancelled_by is None:
            fact = JobCancelRequested(at=now, job=job.id, by=ask.by)
            self._book.record(fact)
            self._book.tell(job.id, fact)
        return ask.job

    def administer(self, ask: Administer) -> Refusal | None:
        """Check and record an admin act."""
        refusal = self._admin_refusal(ask)
        if refusal is None:
            self._book.record(ask.fact)
        return refusal

    def _admin_refusal(self, ask: Administer) -> Refusal | None:
        state = self._book.state
        match ask.fact:
            case TenantSet(tenant=tenant):
                return _exists(state.tenants, tenant.id, "tenant", create=ask.create)
            case QueueSet(queue=queue):
                return _exists(state.queues, queue.name, "queue", create=ask.create)
            case TenantRemoved(tenant=name):
                used = any(j.spec.tenant == name for j in state.jobs.values())
                return _removable(state.tenants, name, "tenant", used=used, kept=name == DEFAULT_TENANT)
            case QueueRemoved(queue=queue_name):
                used = any(j.spec.queue == queue_name for j in state.jobs.values())
                return _removable(state.queues, queue_name, "queue", used=used, kept=queue_name == DEFAULT_QUEUE)
            case TokenIssued(token=token):
                return None if token.tenant in state.tenants else _missing("tenant", token.tenant, state.tenants)
            case TokenRevoked(token_id=token_id):
                return None if token_id in state.tokens else _missing("token", token_id, ())
            case NodeCordoned(node=node) | NodeUncordoned(node=node) | NodeRemoved(node=node):
                return self._node_refusal(node, removes=isinstance(ask.fact, NodeRemoved))
            case _:
                return None

    def _node_refusal(self, node: NodeId, *, removes: bool) -> Refusal | None:
        state = self._book.state
        if node not in state.nodes:
            return _missing("node", node, state.nodes)
        busy = node in state.held and bool(state.held[node].gangs)
        if removes and (self._book.observed.contact(node).connected or busy):
            return _refuse(Conflict, f"node {node} is alive or has tasks", hint="stop its agent first")
        return None


def submission_order(asks: tuple[JobAsk, ...]) -> list[int] | Refusal:
    """Return an order in which each job comes after those of the submission that it waits for."""
    names: dict[str, int] = {}
    for index, ask in enumerate(asks):
        if ask.name is not None and len(asks) > 1:
            if ask.name in names:
                return _refuse(DuplicateName, f"two jobs of this submission are named {ask.name!r}", field="name")
            names[ask.name] = index
    order: list[int] = []
    state = [0] * len(asks)
    for start in range(len(asks)):
        stack = [(start, False)]
        while stack:
            index, done = stack.pop()
            if done:
                state[index] = 2
                order.append(index)
                continue
            if state[index]:
                continue
            state[index] = 1
            stack.append((index, True))
            for want in asks[index].after:
                earlier = names.get(want.ref)
                if earlier is not None and state[earlier] == 1:
                    return _refuse(
                        DependencyCycle, f"{asks[index].name!r} and {want.ref!r} wait for each other", field="after"
                    )
                if earlier is not None and state[earlier] == 0:
                    stack.append((earlier, False))
    return order


def _known(names: object) -> str | None:
    listed = sorted(str(n) for n in names)[:8] if isinstance(names, dict) else []
    return f"known: {', '.join(listed)}" if listed else None


def _missing(what: str, name: str, names: object) -> Refusal:
    return _refuse(NotFound, f"there is no {what} {name!r}", hint=_known(names))


def _exists(
    names: Mapping[TenantId, object] | Mapping[QueueName, object], name: str, what: str, *, create: bool
) -> Refusal | None:
    there = name in names
    if create and there:
        return _refuse(DuplicateName, f"{what} {name!r} exists already", field="name")
    return None if create or there else _missing(what, name, names)


def _removable(names: object, name: str, what: str, *, used: bool, kept: bool) -> Refusal | None:
    if not isinstance(names, dict) or name not in names:
        return _missing(what, name, names)
    if kept:
        return _refuse(Conflict, f"{what} {name!r} is built in and stays")
    return _refuse(Conflict, f"{what} {name!r} has unfinished jobs") if used else None
