"""One submission against the state as it is: names and order within it, dependencies, admission of each job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from corral.control.book import Book
from corral.control.inputs import Submit
from corral.control.waiting import satisfies
from corral.model.ask import JobAsk
from corral.model.errors import (
    CorralError,
    DependencyCycle,
    DuplicateName,
    NotFound,
    Refusal,
    UnknownDependency,
)
from corral.model.events import JobSubmitted
from corral.model.ids import DEFAULT_QUEUE, DEFAULT_TENANT, JobId, QueueName, TenantId
from corral.model.job import Dependency
from corral.model.tenant import Tenant
from corral.policy.admission import AdmissionDefaults, admit

NAMES_SHOWN = 8


def refuse(kind: type[CorralError], message: str, *, field: str | None = None, hint: str | None = None) -> Refusal:
    """Return the refusal with the code of an error class."""
    return Refusal(kind.code, message, field, hint)


def names_known(names: Iterable[str]) -> str | None:
    """Return the first names in words, as a hint; ``None`` when there are none."""
    listed = sorted(names)[:NAMES_SHOWN]
    return f"known: {', '.join(listed)}" if listed else None


class Admission:
    """The admission of one submission against the state as it is, all jobs or none: nothing is recorded here."""

    def __init__(self, book: Book, defaults: AdmissionDefaults, now: float, ask: Submit) -> None:
        self._state = book.state
        self._defaults = defaults
        self._now = now
        self._ask = ask
        self._capacity = book.inventory
        self._facts: dict[int, JobSubmitted] = {}
        self._unfinished: dict[TenantId, int] = {}
        self._live: dict[TenantId, dict[str, list[JobId]]] = {}
        first = book.state.next_job
        self.ids = tuple(JobId(str(first + index)) for index in range(len(ask.asks)))
        self._within = {name: self.ids[index] for name, index in names_within(ask.asks).items()}

    def facts(self) -> list[JobSubmitted]:
        """Return the facts in the order in which the jobs were given."""
        return [self._facts[index] for index in range(len(self.ids))]

    def add(self, index: int) -> Refusal | None:
        """Admit one job; those of the submission that it waits for come before it."""
        job, state = self._ask.asks[index], self._state
        tenant_id = TenantId(job.tenant or DEFAULT_TENANT)
        tenant = state.tenants.get(tenant_id)
        if tenant is None:
            return refuse(
                NotFound, f"there is no tenant {tenant_id!r}", field="tenant", hint=names_known(state.tenants)
            )
        queue = state.queues.get(QueueName(job.queue or DEFAULT_QUEUE))
        if queue is None:
            return refuse(NotFound, f"there is no queue {job.queue!r}", field="queue", hint=names_known(state.queues))
        resolved = self._resolve_after(job, tenant_id)
        if isinstance(resolved, Refusal):
            return resolved
        after, waiting_for = resolved
        unfinished = self._unfinished_of(tenant) if tenant.jobs_max is not None else 0
        spec = admit(
            job,
            tenant=tenant,
            queue=queue,
            capacity=self._capacity,
            defaults=self._defaults,
            pending_jobs=unfinished,
            resolved_after=after,
        )
        if isinstance(spec, Refusal):
            return spec
        self._unfinished[tenant_id] = unfinished + 1
        self._facts[index] = JobSubmitted(
            at=self._now,
            job=self.ids[index],
            spec=spec,
            user=job.user,
            waiting_for=waiting_for,
            idempotency_key=self._ask.idempotency_key,
            request_digest=self._ask.digest,
        )
        return None

    def _unfinished_of(self, tenant: Tenant) -> int:
        """Return how many unfinished jobs a tenant has, with those of this submission."""
        known = self._unfinished.get(tenant.id)
        return known if known is not None else sum(j.spec.tenant == tenant.id for j in self._state.jobs.values())

    def _resolve_after(
        self, ask: JobAsk, tenant: TenantId
    ) -> tuple[tuple[Dependency, ...], tuple[JobId, ...]] | Refusal:
        after: list[Dependency] = []
        waiting_for: list[JobId] = []
        for want in ask.after:
            job = self._within.get(want.ref) or self._find_live(want.ref, tenant)
            if isinstance(job, Refusal):
                return job
            ended = self._ask.ended.get(want.ref)
            if job is not None:
                waiting_for.append(job)
            elif ended is None:
                return refuse(UnknownDependency, f"there is no job {want.ref!r} of tenant {tenant}", field="after")
            elif satisfies(want.kind, ended.state):
                job = ended.job
            else:
                message = f"job {ended.job} ended as {ended.state}, so this job could never start"
                return refuse(UnknownDependency, message, field="after")
            after.append(Dependency(job, want.kind))
        return tuple(after), tuple(dict.fromkeys(waiting_for))

    def _find_live(self, ref: str, tenant: TenantId) -> JobId | Refusal | None:
        """Return the live job of a number or name that belongs to the tenant."""
        job = self._state.jobs.get(JobId(ref))
        if job is not None and job.spec.tenant == tenant:
            return job.id
        if tenant not in self._live:
            named = self._live[tenant] = {}
            for other in self._state.jobs.values():
                if other.spec.tenant == tenant:
                    named.setdefault(other.spec.name, []).append(other.id)
        same = self._live[tenant].get(ref, [])
        if len(same) > 1:
            hint = f"use one of {', '.join(same[:5])}"
            return refuse(UnknownDependency, f"{len(same)} live jobs are named {ref!r}", hint=hint)
        return same[0] if same else None


def names_within(asks: Sequence[JobAsk]) -> dict[str, int]:
    """Return the names by which jobs of one submission may mean each other: the position of each.

    A job that is submitted alone never means itself: its ``after`` may name an earlier one of the same name.
    """
    return {ask.name: index for index, ask in enumerate(asks) if ask.name} if len(asks) > 1 else {}


def submission_order(asks: tuple[JobAsk, ...]) -> list[int] | Refusal:
    """Return an order in which each job comes after those of the submission that it waits for."""
    names: dict[str, int] = {}
    for index, ask in enumerate(asks):
        if ask.name is not None and len(asks) > 1:
            if ask.name in names:
                return refuse(DuplicateName, f"two jobs of this submission are named {ask.name!r}", field="name")
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
                    return refuse(
                        DependencyCycle, f"{asks[index].name!r} and {want.ref!r} wait for each other", field="after"
                    )
                if earlier is not None and state[earlier] == 0:
                    stack.append((earlier, False))
    return order
