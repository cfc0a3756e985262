"""The pool as the API sees it: what may be asked of the controller. Implemented by the control shell."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import msgspec

from corral.model.ask import JobAsk
from corral.model.ids import NodeId, QueueName, TenantId
from corral.model.job import Job
from corral.model.plan import PlanAsk, PlanReport
from corral.model.report import (
    Ledger,
    MaintenanceReport,
    NodeReport,
    PoolStatus,
    QueueLine,
    Receipt,
    TenantReport,
    WhyReport,
)
from corral.model.tenant import Queue, Role, Tenant, Token
from corral.ports.engine import LogChunk
from corral.ports.store import JobQuery, JournalEntry, UsageRow


class Principal(msgspec.Struct, frozen=True):
    """Who calls. An admin may name any tenant; a user is bound to its own."""

    tenant: TenantId
    role: Role
    token_id: str


class Submission(msgspec.Struct, frozen=True):
    """Jobs that are admitted together or not at all; ``after`` may name others of the same submission."""

    asks: tuple[JobAsk, ...]
    idempotency_key: str | None = None


class JobPage(msgspec.Struct, frozen=True):
    """Jobs, newest first; ``next_before`` is the job number to continue with, ``total_live`` counts unfinished ones."""

    jobs: tuple[Job, ...]
    next_before: int | None
    total_live: int


class Change(msgspec.Struct, frozen=True):
    """A journaled fact as subscribers see it."""

    entry: JournalEntry


class Pool(Protocol):
    """Every method checks the principal: foreign jobs are ``NotFound``, admin acts of users are ``Forbidden``.

    A ``ref`` is a job number (``12``), a gang (``12.3``), or a name (the newest live job of that name, else the newest
    finished one). All raise errors of ``corral.model.errors``; ``Unavailable`` while the controller starts or stops.
    """

    def authenticate(self, secret: str) -> Principal:
        """Return who a bearer token belongs to; raise ``Unauthenticated``."""

    async def submit(self, who: Principal, submission: Submission) -> tuple[Job, ...]:
        """Admit jobs durably. The same idempotency key and content returns the same jobs again."""

    async def cancel(self, who: Principal, ref: str) -> Job:
        """Ask for the end of a job. Ended jobs raise ``Conflict``."""

    async def job(self, who: Principal, ref: str) -> Job:
        """Return one live or finished job."""

    async def jobs(self, who: Principal, query: JobQuery, *, live: bool, finished: bool) -> JobPage:
        """Return live and/or finished jobs, newest first."""

    async def why(self, who: Principal, ref: str) -> WhyReport:
        """Explain a job."""

    async def receipt(self, who: Principal, ref: str) -> Receipt:
        """Return what a job cost so far or in all."""

    def progress(self, job: Job) -> float | None:
        """Return how much of a live job is done, 0..1, as far as its tasks report; ``None`` when that is not known."""

    async def history(self, who: Principal, ref: str) -> list[JournalEntry]:
        """Return the journaled facts of a job, oldest first."""

    async def wait(self, who: Principal, ref: str, timeout_s: float) -> Job:
        """Return the job once it ended, or as it is after ``timeout_s``."""

    def changes(self, who: Principal, ref: str | None, after_seq: int | None) -> AsyncIterator[Change]:
        """Yield journaled facts (of one job, or of all that the principal may see) from ``after_seq`` on, live."""

    def follow_log(
        self, who: Principal, ref: str, *, rank: int | None, offset: int, follow: bool, incarnation: int | None = None
    ) -> AsyncIterator[LogChunk]:
        """Yield the log of one task: rank 0 unless told; over restarts when followed.

        ``offset`` counts in the log of ``incarnation`` (``None``: the newest); those after it are read from their
        beginning. Every chunk tells its incarnation.
        """

    async def nodes(self, who: Principal) -> tuple[NodeReport, ...]:
        """Return all nodes. A user sees foreign holders without their names."""

    async def cordon(self, who: Principal, node: NodeId, reason: str, *, drain: bool = False) -> None:
        """Give a node no new tasks (admin).

        With ``drain`` the gangs that have a rank there are asked for a checkpoint, stopped, and queued again without
        charge. Returns at once: the node is empty when its report names no gangs.
        """

    async def uncordon(self, who: Principal, node: NodeId) -> None:
        """Give a node tasks again (admin)."""

    async def remove_node(self, who: Principal, node: NodeId) -> None:
        """Forget a lost node without tasks (admin)."""

    async def maintenance(self, who: Principal) -> MaintenanceReport:
        """Return how far a planned outage is prepared."""

    async def start_maintenance(self, who: Principal, duration_s: float, reason: str) -> MaintenanceReport:
        """Grant leases for so long from now on (admin). Calling it again sets the end anew."""

    async def stop_maintenance(self, who: Principal) -> MaintenanceReport:
        """Take the long leases back (admin); without a maintenance it raises ``Conflict``."""

    async def queue(self, who: Principal, limit: int) -> tuple[QueueLine, ...]:
        """Return pending gangs in the order in which they are considered."""

    async def ledger(self, who: Principal, hours: float) -> Ledger:
        """Return who received, owes and was preempted in the last hours. A user sees its own tenant only."""

    async def plan(self, who: Principal, ask: PlanAsk) -> PlanReport:
        """Return what changes would do. A user may try jobs of its own tenant, and sees no foreign ones."""

    async def queues(self, who: Principal) -> tuple[Queue, ...]:
        """Return the queues."""

    async def set_queue(self, who: Principal, queue: Queue, *, create: bool) -> None:
        """Add or change a queue (admin); creating an existing one raises ``DuplicateName``."""

    async def remove_queue(self, who: Principal, name: QueueName) -> None:
        """Remove an unused queue (admin)."""

    async def tenants(self, who: Principal) -> tuple[TenantReport, ...]:
        """Return all tenants (admin) or one's own."""

    async def set_tenant(self, who: Principal, tenant: Tenant, *, create: bool) -> None:
        """Add or change a tenant (admin); creating an existing one raises ``DuplicateName``."""

    async def remove_tenant(self, who: Principal, tenant: TenantId) -> None:
        """Remove a tenant without unfinished jobs (admin)."""

    async def issue_token(self, who: Principal, tenant: TenantId, role: Role, label: str) -> tuple[Token, str]:
        """Make a token (admin); the secret is returned this once."""

    async def tokens(self, who: Principal) -> tuple[Token, ...]:
        """Return the tokens (admin: all, user: of the own tenant), digests removed."""

    async def revoke_token(self, who: Principal, token_id: str) -> None:
        """Refuse a token from now on (admin)."""

    async def usage(self, who: Principal, since: float, until: float, tenant: TenantId | None) -> Sequence[UsageRow]:
        """Return used milli-GPU seconds by tenant and hour."""

    def status(self) -> PoolStatus:
        """Return the pool at a glance."""

    async def prepare_stop(self, who: Principal, *, stop_tasks: bool) -> int:
        """Return the number of live tasks (admin). With ``stop_tasks`` first place nothing more and stop what runs.

        What was stopped is queued again without charge. Waits for it, but not for ever: some tasks may be left.
        """
