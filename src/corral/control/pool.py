"""The controller as the API sees it: implements ``ports.pool.Pool`` over the shell, the store and the engine."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator, Sequence

import msgspec
from msgspec.structs import replace

from corral.control import explaining, maintenance, reports
from corral.control.access import Access, digest_of, require_admin, scope, seen_by
from corral.control.accounts import HOUR_S, listed_job
from corral.control.explaining import veiled_plan
from corral.control.files import ControllerFiles
from corral.control.follow import LogSource, LogStart, follow_changes, follow_log
from corral.control.inputs import Administer, Cancel, EndedJob, Quiesce, Submit
from corral.control.shell import ControlShell
from corral.control.submission import names_within
from corral.model.ask import JobAsk
from corral.model.errors import Conflict, CorralError, Forbidden, Refusal, UnknownDependency
from corral.model.events import (
    Fact,
    MaintenanceEnded,
    MaintenanceStarted,
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
from corral.model.ids import DEFAULT_TENANT, NodeId, QueueName, TenantId
from corral.model.job import Job
from corral.model.plan import PlanAsk, PlanReport
from corral.model.report import (
    HeadReport,
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
from corral.ports.planner import Planner, PlanQuestion
from corral.ports.pool import Change, JobPage, Principal, Submission
from corral.ports.store import JobQuery, JournalEntry, Store, UsageRow

WAIT_MAX_S = 3_600.0
STOP_MAX_S = 90.0


class Identity(msgspec.Struct, frozen=True):
    """What this daemon says of itself."""

    version: str
    pid: int
    url: str
    started_at: float


class ControllerPool:
    """Every public method checks the principal first."""

    def __init__(
        self,
        shell: ControlShell,
        store: Store,
        identity: Identity,
        planner: Planner,
        files: ControllerFiles | None = None,
    ) -> None:
        """Without ``files`` tasks run where the files are: none travel."""
        self._shell = shell
        self._planner = planner
        self._store = store
        self._access = Access(shell, store)
        self._identity = identity
        self.heads: tuple[HeadReport, ...] = ()
        """The controllers of this pool, as whoever knows them says."""
        self._files = files

    def authenticate(self, secret: str) -> Principal:
        """Return who a bearer token belongs to."""
        return self._access.authenticate(secret)

    # ---- jobs ------------------------------------------------------------------------------------------------------

    async def submit(self, who: Principal, submission: Submission) -> tuple[Job, ...]:
        """Admit jobs durably, all or none."""
        asks = tuple(self._owned(who, ask) for ask in submission.asks)
        if len({ask.tenant for ask in asks}) > 1:
            raise Forbidden("the jobs of one submission belong to one tenant")
        if self._files is not None:
            await self._files.admit(asks)
        digest = _digest(asks) if submission.idempotency_key else None
        ended = await self._ended_references(asks)
        while True:
            answer = await self._shell.ask(Submit(asks, submission.idempotency_key, digest, ended))
            if not isinstance(answer, Refusal):
                break
            # A job that was live when it was looked for may have ended before the core was asked.
            again = await self._ended_references(asks) if answer.code == UnknownDependency.code else ended
            if again.keys() == ended.keys():
                raise CorralError.of(answer)
            ended = again
        found = []
        for name in answer if isinstance(answer, tuple) else ():
            live = self._shell.core.book.state.jobs.get(name)
            found.append(live if live is not None else (await self._access.find(who, name)).job)
        return tuple(found)

    @staticmethod
    def _owned(who: Principal, ask: JobAsk) -> JobAsk:
        if who.role is not Role.ADMIN and ask.tenant not in (None, who.tenant):
            raise Forbidden(f"this token belongs to tenant {who.tenant!r}, not to {ask.tenant!r}", field="tenant")
        return ask if ask.tenant is not None else replace(ask, tenant=who.tenant)

    async def _ended_references(self, asks: Sequence[JobAsk]) -> dict[str, EndedJob]:
        """Return the finished jobs of the tenant that ``after`` may mean; the core knows the live ones."""
        found: dict[str, EndedJob] = {}
        refs = {want.ref for ask in asks for want in ask.after} - names_within(asks).keys()
        if not refs:
            return found
        tenant = TenantId(asks[0].tenant or DEFAULT_TENANT)
        live = {job.spec.name for job in self._shell.core.book.state.jobs.values() if job.spec.tenant == tenant}
        for ref in sorted(refs - live):
            job = await self._access.finished(tenant, ref)
            if job is not None:
                found[ref] = EndedJob(job.id, job.state)
        return found

    async def cancel(self, who: Principal, ref: str) -> Job:
        """Ask for the end of a job."""
        found = await self._access.find(who, ref)
        if not found.live:
            raise Conflict(f"job {found.job.id} has already ended as {found.job.state}")
        if found.gang is not None and len(found.job.gangs) > 1:
            raise Conflict("single elements of an array cannot be cancelled", hint=f"cancel job {found.job.id}")
        by = f"{who.tenant}/{who.token_id}"
        answer = await self._shell.ask(Cancel(found.job.id, by))
        if isinstance(answer, Refusal):
            raise CorralError.of(answer)
        return (await self._access.find(who, found.job.id)).job

    async def job(self, who: Principal, ref: str) -> Job:
        """Return one live or finished job."""
        return (await self._access.find(who, ref)).job

    async def jobs(self, who: Principal, query: JobQuery, *, live: bool, finished: bool) -> JobPage:
        """Return live and/or finished jobs, newest first."""
        tenant = scope(who) or query.tenant
        state = self._shell.core.book.state
        mine = [j for j in state.jobs.values() if tenant in (None, j.spec.tenant)]
        leaving = [j for j in self._shell.core.book.leaving.values() if tenant in (None, j.spec.tenant)]
        in_memory = [*(mine if live else ()), *(leaving if finished else ())]
        before = query.before
        picked = [j for j in in_memory if _matches(j, query) and (before is None or int(j.id) < before)]
        page = sorted(picked, key=lambda j: -int(j.id))[: query.limit + 1]
        if finished:
            rows = await self._shell.read(
                self._store.finished_jobs, replace(query, tenant=tenant, limit=query.limit + 1)
            )
            known = {j.id for j in page}
            page += [listed_job(row) for row in rows if row.id not in known]
            page.sort(key=lambda j: -int(j.id))
        more = len(page) > query.limit
        page = page[: query.limit]
        return JobPage(tuple(page), int(page[-1].id) if more else None, len(mine))

    async def why(self, who: Principal, ref: str) -> WhyReport:
        """Explain a job."""
        found = await self._access.find(who, ref)
        return explaining.why(self._shell.core, found.job, found.gang, self._shell.clock.now(), scope(who))

    async def receipt(self, who: Principal, ref: str) -> Receipt:
        """Return what a job cost so far or in all."""
        found = await self._access.find(who, ref)
        row = None if found.live else await self._shell.read(self._store.finished_job, found.job.id)
        idle = row.idle_share if row is not None else self._live_idle(found.job)
        return reports.receipt(self._shell.core, found.job, self._shell.clock.now(), idle)

    def _live_idle(self, job: Job) -> float | None:
        count = self._shell.core.book.observed.idle.get(job.id)
        return count.share if count is not None else None

    def progress(self, job: Job) -> float | None:
        """Return how much of a live job is done, 0..1, as far as its tasks report; ``None`` when that is not known."""
        return self._shell.core.book.observed.done_share(job)

    async def history(self, who: Principal, ref: str) -> list[JournalEntry]:
        """Return the journaled facts of a job, oldest first."""
        found = await self._access.find(who, ref)
        entries = await self._shell.read(self._store.entries_of_job, found.job.id)
        return [seen_by(entry, scope(who)) for entry in entries]

    async def wait(self, who: Principal, ref: str, timeout_s: float) -> Job:
        """Return the job once it ended, or as it is after ``timeout_s``."""
        found = await self._access.find(who, ref)
        if not found.live and found.job.id not in self._shell.core.book.leaving:
            return found.job
        # Not before the end is in the journal: what was told as ended must not run again after a crash.
        ended = self._shell.feed.ended(found.job.id)
        try:
            await asyncio.wait([ended], timeout=min(timeout_s, WAIT_MAX_S))
        finally:
            self._shell.feed.forget(found.job.id, ended)
        return found.job

    def changes(self, who: Principal, ref: str | None, after_seq: int | None) -> AsyncIterator[Change]:
        """Yield journaled facts, live."""
        return follow_changes(self._shell, self._store, self._access, who, ref, after_seq)

    def follow_log(
        self, who: Principal, ref: str, *, rank: int | None, offset: int, follow: bool, incarnation: int | None = None
    ) -> AsyncIterator[LogChunk]:
        """Yield the log of one task."""
        start = LogStart(rank or 0, offset, incarnation)
        source = LogSource(self._shell, self._files)
        return follow_log(source, self._store, self._access, who, ref, start, follow=follow)

    # ---- the pool --------------------------------------------------------------------------------------------------

    async def nodes(self, who: Principal) -> tuple[NodeReport, ...]:
        """Return all nodes; a user sees its own holders only."""
        return reports.nodes(self._shell.core, self._shell.clock.now(), scope(who))

    async def queue(self, who: Principal, limit: int) -> tuple[QueueLine, ...]:
        """Return pending gangs in the order in which they are considered; foreign names are not shown to users."""
        return explaining.queue(self._shell.core, self._shell.clock.now(), limit, scope(who))

    async def ledger(self, who: Principal, hours: float) -> Ledger:
        """Return who received, owes and was preempted in the last hours."""
        return reports.ledger(self._shell.core, self._shell.clock.now() - hours * HOUR_S, scope(who))

    async def plan(self, who: Principal, ask: PlanAsk) -> PlanReport:
        """Return what changes would do, tried on a copy of the pool."""
        if ask.weights or ask.drain or ask.add:
            require_admin(who)
        core = self._shell.core
        answering = [name for name in core.book.state.nodes if core.book.board.view(name).answering]
        asks = tuple(self._owned(who, one) for one in ask.submit)
        question = PlanQuestion(core.image(), self._shell.clock.now(), answering, replace(ask, submit=asks))
        report = await self._planner.plan(question)
        viewer = scope(who)
        return report if viewer is None else veiled_plan(report, viewer)

    def status(self) -> PoolStatus:
        """Return the pool at a glance."""
        me = self._identity
        status = reports.status(self._shell.core, self._shell.clock.now(), self._shell.last_seq)
        return replace(
            status,
            version=me.version,
            pid=me.pid,
            url=me.url,
            started_at=me.started_at,
            clock_offset_s=self._shell.clock.wall_offset_s(),
            heads=self.heads,
            store_away_s=self._shell.unanswered_s,
        )

    async def tenants(self, who: Principal) -> tuple[TenantReport, ...]:
        """Return all tenants (admin) or one's own."""
        found = reports.tenants(self._shell.core, self._shell.clock.now())
        return tuple(t for t in found if scope(who) in (None, t.tenant.id))

    async def queues(self, who: Principal) -> tuple[Queue, ...]:
        """Return the queues."""
        del who
        return tuple(self._shell.core.book.state.queues.values())

    async def usage(self, who: Principal, since: float, until: float, tenant: TenantId | None) -> Sequence[UsageRow]:
        """Return what was used in the hours that ``since`` to ``until`` touch; what still runs counts up to now."""
        bound = scope(who)
        if bound is not None and tenant not in (None, bound):
            raise Forbidden(f"this token belongs to tenant {bound!r}")
        only = bound or tenant
        first, end = int(since // HOUR_S) * HOUR_S, (int(until // HOUR_S) + 1) * HOUR_S
        rows = await self._shell.read(self._store.usage, first, end, only)
        running = reports.running_usage(self._shell.core, self._shell.clock.now(), first, end, only)
        return reports.merge_usage([*rows, *running])

    # ---- admin -----------------------------------------------------------------------------------------------------

    async def _administer(self, who: Principal, fact: Fact, *, create: bool = False) -> None:
        require_admin(who)
        answer = await self._shell.ask(Administer(fact, create=create))
        if isinstance(answer, Refusal):
            raise CorralError.of(answer)

    def _by(self, who: Principal) -> str:
        return f"{who.tenant}/{who.token_id}"

    async def cordon(self, who: Principal, node: NodeId, reason: str, *, drain: bool = False) -> None:
        """Give a node no new tasks; with ``drain`` have those that run there give way."""
        fact = NodeCordoned(at=self._shell.clock.now(), node=node, by=self._by(who), reason=reason, drain=drain)
        await self._administer(who, fact)

    async def uncordon(self, who: Principal, node: NodeId) -> None:
        """Give a node tasks again."""
        await self._administer(who, NodeUncordoned(at=self._shell.clock.now(), node=node, by=self._by(who)))

    async def remove_node(self, who: Principal, node: NodeId) -> None:
        """Forget a lost node without tasks."""
        await self._administer(who, NodeRemoved(at=self._shell.clock.now(), node=node, by=self._by(who)))

    async def maintenance(self, who: Principal) -> MaintenanceReport:
        """Return how far a planned outage is prepared."""
        del who
        return maintenance.report(self._shell.core, self._shell.clock.now())

    async def start_maintenance(self, who: Principal, duration_s: float, reason: str) -> MaintenanceReport:
        """Grant long leases from now on."""
        now = self._shell.clock.now()
        await self._administer(who, MaintenanceStarted(at=now, until=now + duration_s, by=self._by(who), reason=reason))
        return await self.maintenance(who)

    async def stop_maintenance(self, who: Principal) -> MaintenanceReport:
        """Take the long leases back."""
        await self._administer(who, MaintenanceEnded(at=self._shell.clock.now(), by=self._by(who)))
        return await self.maintenance(who)

    async def set_queue(self, who: Principal, queue: Queue, *, create: bool) -> None:
        """Add or change a queue."""
        fact = QueueSet(at=self._shell.clock.now(), queue=queue, by=self._by(who))
        await self._administer(who, fact, create=create)

    async def remove_queue(self, who: Principal, name: QueueName) -> None:
        """Remove an unused queue."""
        await self._administer(who, QueueRemoved(at=self._shell.clock.now(), queue=name, by=self._by(who)))

    async def set_tenant(self, who: Principal, tenant: Tenant, *, create: bool) -> None:
        """Add or change a tenant."""
        fact = TenantSet(at=self._shell.clock.now(), tenant=tenant, by=self._by(who))
        await self._administer(who, fact, create=create)

    async def remove_tenant(self, who: Principal, tenant: TenantId) -> None:
        """Remove a tenant without unfinished jobs."""
        await self._administer(who, TenantRemoved(at=self._shell.clock.now(), tenant=tenant, by=self._by(who)))

    async def issue_token(self, who: Principal, tenant: TenantId, role: Role, label: str) -> tuple[Token, str]:
        """Make a token; the secret is returned this once."""
        secret = f"corral_{secrets.token_urlsafe(32)}"
        token = Token(secrets.token_hex(4), digest_of(secret), tenant, role, self._shell.clock.now(), label)
        await self._administer(who, TokenIssued(at=token.created_at, token=token, by=self._by(who)))
        return replace(token, digest=""), secret

    async def tokens(self, who: Principal) -> tuple[Token, ...]:
        """Return the tokens that the principal may see, digests removed."""
        found = self._shell.core.book.state.tokens.values()
        return tuple(replace(t, digest="") for t in found if scope(who) in (None, t.tenant))

    async def revoke_token(self, who: Principal, token_id: str) -> None:
        """Refuse a token from now on."""
        require_admin(who)
        if token_id == who.token_id:
            raise Conflict("a token cannot revoke itself", hint="use another admin token")
        await self._administer(who, TokenRevoked(at=self._shell.clock.now(), token_id=token_id, by=self._by(who)))

    async def prepare_stop(self, who: Principal, *, stop_tasks: bool) -> int:
        """Place nothing more; when asked, stop what runs (it is queued again) and wait until it has ended."""
        require_admin(who)
        if stop_tasks:
            changes = self._shell.feed.subscribe(None, None)
            try:
                await self._shell.ask(Quiesce(stop_tasks=True))
                async with asyncio.timeout(STOP_MAX_S):
                    while self._live_tasks() and await changes.queue.get() is not None:
                        pass
            except TimeoutError:
                pass
            finally:
                self._shell.feed.unsubscribe(changes)
        return self._live_tasks()

    def _live_tasks(self) -> int:
        return sum(len(holding.placements) for holding in self._shell.core.book.board.holdings.values())


def _digest(asks: Sequence[JobAsk]) -> str:
    """Return what tells two requests under one idempotency key apart; the order of keys in a mapping does not count."""
    return hashlib.sha256(msgspec.json.encode(asks, order="deterministic")).hexdigest()


def _matches(job: Job, query: JobQuery) -> bool:
    return (
        (query.name is None or job.spec.name == query.name)
        and (query.state is None or job.state == query.state)
        and (query.since is None or job.ended_at is None or job.ended_at >= query.since)
    )
