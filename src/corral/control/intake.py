"""Intake: admission of jobs, cancellation and admin acts. Answers are values or refusals, never half-done."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from msgspec.structs import replace

from corral.control.book import Book
from corral.control.inputs import Administer, Cancel, Submit
from corral.control.keeping import queues_of
from corral.control.stopping import cancel, drain
from corral.control.submission import Admission, names_known, refuse, submission_order
from corral.model.errors import (
    Conflict,
    DuplicateName,
    IdempotencyMismatch,
    InvalidField,
    NotFound,
    Refusal,
    TooManyJobs,
)
from corral.model.events import (
    MaintenanceEnded,
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
from corral.model.ids import DEFAULT_QUEUE, DEFAULT_TENANT, JobId, NodeId, TenantId
from corral.model.resources import MILLI
from corral.model.tenant import Tenant
from corral.policy.admission import AdmissionDefaults


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
            return refuse(TooManyJobs, f"the pool holds its maximum of {self._book.config.jobs_max} unfinished jobs")
        order = submission_order(ask.asks)
        if isinstance(order, Refusal):
            return order
        admission = Admission(self._book, self._defaults, now, ask)
        for index in order:
            refusal = admission.add(index)
            if refusal is not None:
                return refusal
        for fact in admission.facts():
            self._book.record(fact)
        return admission.ids

    def _known_key(self, tenant: TenantId, ask: Submit) -> tuple[JobId, ...] | Refusal | None:
        if ask.idempotency_key is None:
            return None
        known = self._book.state.keys.get(f"{tenant}\0{ask.idempotency_key}")
        if known is None:
            return None
        if known.digest != ask.digest:
            return refuse(IdempotencyMismatch, "this idempotency key was used before with another request")
        return known.jobs

    # ---- cancellation and admin acts -------------------------------------------------------------------------------

    def cancel(self, now: float, ask: Cancel) -> JobId | Refusal:
        """Record the wish; the AppMaster decides what follows. A second wish changes nothing."""
        job = self._book.state.jobs.get(ask.job)
        if job is None:
            return refuse(Conflict, f"job {ask.job} has ended")
        cancel(self._book, now, job, ask.by)
        return ask.job

    def administer(self, now: float, ask: Administer) -> Refusal | None:
        """Check an admin act and record it, dated anew: it may have waited while others were recorded."""
        refusal = self._admin_refusal(ask)
        if refusal is None:
            self._book.record(replace(ask.fact, at=now))
            if isinstance(ask.fact, NodeCordoned) and ask.fact.drain:
                drain(self._book, now, ask.fact.node)
        return refusal

    def _admin_refusal(self, ask: Administer) -> Refusal | None:
        state = self._book.state
        match ask.fact:
            case TenantSet(tenant=tenant):
                return _exists(state.tenants, tenant.id, "tenant", create=ask.create) or _quota_refusal(tenant)
            case QueueSet(queue=queue):
                return _exists(state.queues, queue.name, "queue", create=ask.create)
            case TenantRemoved(tenant=name):
                used = any(j.spec.tenant == name for j in state.jobs.values())
                used = used or any(service.tenant == name for service in state.services.values())
                return _removable(state.tenants, name, "tenant", used=used, kept=name == DEFAULT_TENANT)
            case QueueRemoved(queue=queue_name):
                used = any(j.spec.queue == queue_name for j in state.jobs.values())
                used = used or any(queue_name in queues_of(service) for service in state.services.values())
                return _removable(state.queues, queue_name, "queue", used=used, kept=queue_name == DEFAULT_QUEUE)
            case TokenIssued() | TokenRevoked():
                return self._token_refusal(ask.fact)
            case NodeCordoned(node=node) | NodeUncordoned(node=node) | NodeRemoved(node=node):
                return self._node_refusal(node, removes=isinstance(ask.fact, NodeRemoved))
            case MaintenanceEnded(at=at):
                planned = state.maintenance
                active = planned is not None and planned.active(at)
                return None if active else refuse(Conflict, "no maintenance is under way")
            case _:
                return None

    def _token_refusal(self, fact: TokenIssued | TokenRevoked) -> Refusal | None:
        state = self._book.state
        if isinstance(fact, TokenRevoked):
            return None if fact.token_id in state.tokens else _missing("token", fact.token_id, ())
        if fact.token.id in state.tokens:
            return refuse(Conflict, f"token {fact.token.id} exists already", hint="make another one")
        tenant = fact.token.tenant
        return None if tenant in state.tenants else _missing("tenant", tenant, state.tenants)

    def _node_refusal(self, node: NodeId, *, removes: bool) -> Refusal | None:
        state = self._book.state
        if node not in state.nodes:
            return _missing("node", node, state.nodes)
        busy = node in state.held and bool(state.held[node].gangs)
        if removes and (self._book.observed.contact(node).connected or busy):
            return refuse(Conflict, f"node {node} is alive or has tasks", hint="stop its agent first")
        return None


def _missing(what: str, name: str, names: Iterable[str]) -> Refusal:
    return refuse(NotFound, f"there is no {what} {name!r}", hint=names_known(names))


def _exists(names: Collection[str], name: str, what: str, *, create: bool) -> Refusal | None:
    there = name in names
    if create and there:
        return refuse(DuplicateName, f"{what} {name!r} exists already", field="name")
    return None if create or there else _missing(what, name, names)


def _quota_refusal(tenant: Tenant) -> Refusal | None:
    floor, cap = tenant.guaranteed, tenant.limit
    for what, low, high in (("GPUs", floor.gpu_milli, cap.gpu_milli), ("CPUs", floor.cpus_milli, cap.cpus_milli)):
        if low is not None and high is not None and low > high:
            message = f"{low / MILLI:g} guaranteed {what} are more than the limit of {high / MILLI:g}"
            return refuse(InvalidField, message, field="guaranteed", hint="lower the guarantee or raise the limit")
    return None


def _removable(names: Collection[str], name: str, what: str, *, used: bool, kept: bool) -> Refusal | None:
    if name not in names:
        return _missing(what, name, names)
    if kept:
        return refuse(Conflict, f"{what} {name!r} is built in and stays")
    return refuse(Conflict, f"{what} {name!r} has unfinished jobs or services") if used else None
