"""A pool in memory: the whole port, without nodes that run anything. Tests say what happens to its jobs."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator, Sequence

import msgspec
from msgspec.structs import replace

from corral.model.ask import JobAsk
from corral.model.errors import (
    Conflict,
    DuplicateName,
    Forbidden,
    IdempotencyMismatch,
    NotFound,
    TooManyJobs,
    Unauthenticated,
)
from corral.model.events import Fact, JobCancelRequested, JobEnded, JobSubmitted
from corral.model.ids import GangKey, JobId, NodeId, QueueName, TenantId
from corral.model.job import Cause, Gang, Job, JobSpec, JobState, Task, TaskExit, TaskState
from corral.model.market import Preemption, PreemptionKind
from corral.model.plan import Course, PlanAsk, PlanReport
from corral.model.report import (
    DeviceReport,
    Ledger,
    LedgerEntry,
    LedgerLine,
    NodeConstraint,
    NodeReport,
    PoolStatus,
    QueueLine,
    Receipt,
    TenantReport,
    WhyReport,
)
from corral.model.resources import Amount, Demand, DeviceSpec, DeviceState, GangShape, Health, NodeSpec
from corral.model.tenant import Queue, Quota, Role, Tenant, Token
from corral.ports.engine import LogChunk
from corral.ports.pool import Change, JobPage, Principal, Submission
from corral.ports.store import JobQuery, JournalEntry, UsageRow
from tests.unit.api.outages import Outages, admin_only

ADMIN, ALICE, BOB, NODE = "admin-secret", "alice-secret", "bob-secret", "node-secret"
JOBS_MAX = 200


def spec_of(ask: JobAsk) -> JobSpec:
    demand = Demand(ask.gpu_milli, ask.gpu_model, ask.cpus_milli or 1000, ask.memory_mib or 1024)
    return JobSpec(
        name=ask.name or "job",
        tenant=TenantId(ask.tenant or ""),
        shape=GangShape(ask.num_nodes, demand),
        argv=ask.argv,
        script=ask.script,
        envs=ask.envs,
        indices=ask.indices or (0,),
        points=ask.points,
        is_array=ask.indices is not None,
        priority=ask.priority,
    )


class MemoryPool(Outages):
    """Every method checks the principal first, as the port says."""

    def __init__(self) -> None:
        self.principals = {
            ADMIN: Principal(TenantId("default"), Role.ADMIN, "t0"),
            ALICE: Principal(TenantId("alice"), Role.USER, "t1"),
            BOB: Principal(TenantId("bob"), Role.USER, "t2"),
            NODE: Principal(TenantId("default"), Role.NODE, "t3"),
        }
        self.all: dict[str, Job] = {}
        self.done: dict[str, float] = {}
        self.planned: list[PlanAsk] = []
        self.keys: dict[tuple[str, str], tuple[str, tuple[str, ...]]] = {}
        self.facts: list[tuple[JournalEntry, str | None]] = []
        self.logs: dict[str, list[bytearray]] = {}
        self.complete: set[str] = set()
        self.changed = asyncio.Event()
        self.tenants_by_id = {name: Tenant(TenantId(name)) for name in ("default", "alice", "bob")}
        self.queues_by_name = {"default": Queue(QueueName("default"))}
        self.token_rows: dict[str, Token] = {}
        self.cordoned = ""
        self.draining = False
        self.open_streams = 0
        self.waiting = 0
        self.broken: Exception | None = None
        self.stopped_tasks: bool | None = None
        self.asked: list[JobAsk] = []

    # ---- what tests do ---------------------------------------------------------------------------------------------

    def note(self, fact: Fact, tenant: str | None) -> None:
        self.facts.append((JournalEntry(len(self.facts) + 1, 1, fact), tenant))
        self.wake()

    def wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def write(self, ref: str, data: bytes, *, complete: bool = False) -> None:
        self.logs.setdefault(ref, [bytearray()])[-1].extend(data)
        if complete:
            self.complete.add(ref)
        self.wake()

    def restart(self, ref: str) -> None:
        """Begin a new incarnation with a log of its own."""
        self.logs.setdefault(ref, [bytearray()]).append(bytearray())
        self.wake()

    def finish(self, ref: str, exit_: TaskExit) -> None:
        job = self.all[ref]
        state = JobState.SUCCEEDED if exit_.ok else JobState.FAILED
        ended = TaskState.SUCCEEDED if exit_.ok else TaskState.FAILED
        task = msgspec.structs.replace(job.gangs[0].tasks[0], state=ended, ended_at=5.0, exit=exit_)
        job.gangs[0] = msgspec.structs.replace(job.gangs[0], state=state, tasks=(task, *job.gangs[0].tasks[1:]))
        job.state, job.ended_at = state, 5.0
        job.exit_code, job.exit_cause = exit_.code, exit_.cause
        self.note(JobEnded(at=5.0, job=job.id, state=state), job.spec.tenant)

    # ---- the port --------------------------------------------------------------------------------------------------

    def authenticate(self, secret: str) -> Principal:
        if secret not in self.principals:
            raise Unauthenticated("this token is not known")
        return self.principals[secret]

    def _find(self, who: Principal, ref: str) -> Job:
        if self.broken is not None:
            raise self.broken
        number = ref.split(".", maxsplit=1)[0]
        job = self.all.get(number) or next((j for j in reversed(self.all.values()) if j.spec.name == ref), None)
        if job is None or (who.role is not Role.ADMIN and job.spec.tenant != who.tenant):
            raise NotFound(f"there is no job {ref}")
        return job

    async def submit(self, who: Principal, submission: Submission) -> tuple[Job, ...]:
        asks = [ask if ask.tenant else msgspec.structs.replace(ask, tenant=who.tenant) for ask in submission.asks]
        if who.role is not Role.ADMIN and any(ask.tenant != who.tenant for ask in asks):
            raise Forbidden("this token is another tenant's", field="tenant")
        if len(self.all) + len(asks) > JOBS_MAX:
            raise TooManyJobs("the pool holds as many jobs as it may")
        digest = hashlib.sha256(msgspec.json.encode(asks)).hexdigest()
        key = (str(who.tenant), submission.idempotency_key or secrets.token_hex(8))
        if key in self.keys:
            known, ids = self.keys[key]
            if known != digest:
                raise IdempotencyMismatch("the key was used for other jobs")
            return tuple(self.all[id_] for id_ in ids)
        self.asked += asks
        jobs = tuple(self._admit(ask) for ask in asks)
        self.keys[key] = (digest, tuple(job.id for job in jobs))
        return jobs

    def _admit(self, ask: JobAsk) -> Job:
        spec, id_ = spec_of(ask), JobId(str(len(self.all) + 1))
        tasks = tuple(Task(rank) for rank in range(spec.shape.ranks))
        gangs = {i: Gang(i, tasks) for i in range(spec.gangs)}
        job = self.all[id_] = Job(id_, spec, 1.0, gangs, user=ask.user, open_gangs=len(gangs))
        self.note(JobSubmitted(at=1.0, job=id_, spec=spec, user=ask.user), spec.tenant)
        return job

    async def cancel(self, who: Principal, ref: str) -> Job:
        job = self._find(who, ref)
        if job.state.ended:
            raise Conflict(f"job {job.id} has ended")
        job.cancelled_by = who.token_id
        self.note(JobCancelRequested(at=2.0, job=job.id, by=who.token_id), job.spec.tenant)
        return job

    async def job(self, who: Principal, ref: str) -> Job:
        return self._find(who, ref)

    async def jobs(self, who: Principal, query: JobQuery, *, live: bool, finished: bool) -> JobPage:
        mine = [
            job
            for job in reversed(self.all.values())
            if (who.role is Role.ADMIN or job.spec.tenant == who.tenant)
            and (query.before is None or int(job.id) < query.before)
            and (query.name in (None, job.spec.name))
            and (query.state in (None, job.state.value))
            and (finished if job.state.ended else live)
        ]
        page = mine[: query.limit]
        more = int(page[-1].id) if len(mine) > len(page) else None
        return JobPage(tuple(page), more, sum(not job.state.ended for job in mine))

    async def why(self, who: Principal, ref: str) -> WhyReport:
        job = self._find(who, ref)
        free, total = Amount(0, 2000, 512), Amount(8000, 64000, 65536)
        lacks = NodeConstraint(NodeId("n0"), 0, free, total, ("too few free devices",))
        return WhyReport(job.id, 0, job.state, "waits for devices", job.spec.shape, constraints=(lacks,))

    async def receipt(self, who: Principal, ref: str) -> Receipt:
        job = self._find(who, ref)
        return Receipt(
            job=job.id,
            name=job.spec.name,
            tenant=job.spec.tenant,
            state=job.state,
            submitted_at=1.0,
            started_at=2.0,
            ended_at=job.ended_at,
            waited_s=1.0,
            ran_s=3.0,
            gpu_hours=0.25,
            lost_gpu_hours=0.0,
            idle_share=None,
            restarts=0,
            moves=0,
            gangs=len(job.gangs),
            exit_cause="exited",
            exit_code=job.exit_code,
            nodes=(NodeId("n0"),),
        )

    def progress(self, job: Job) -> float | None:
        return self.done.get(job.id)

    async def history(self, who: Principal, ref: str) -> list[JournalEntry]:
        id_ = self._find(who, ref).id
        return [entry for entry, _ in self.facts if getattr(entry.fact, "job", None) == id_]

    async def wait(self, who: Principal, ref: str, timeout_s: float) -> Job:
        job = self._find(who, ref)
        self.waiting += 1
        try:
            async with asyncio.timeout(timeout_s):
                while not job.state.ended:
                    await self.changed.wait()
        except TimeoutError:
            pass
        finally:
            self.waiting -= 1
        return job

    async def changes(self, who: Principal, ref: str | None, after_seq: int | None) -> AsyncIterator[Change]:
        id_ = self._find(who, ref).id if ref is not None else None
        sent = len(self.facts) if after_seq is None else after_seq
        self.open_streams += 1
        try:
            while True:
                changed = self.changed
                for entry, tenant in self.facts[sent:]:
                    sent = entry.seq
                    mine = who.role is Role.ADMIN or tenant == who.tenant
                    if mine and id_ in (None, getattr(entry.fact, "job", None)):
                        yield Change(entry)
                await changed.wait()
        finally:
            self.open_streams -= 1

    async def follow_log(
        self, who: Principal, ref: str, *, rank: int | None, offset: int, follow: bool, incarnation: int | None = None
    ) -> AsyncIterator[LogChunk]:
        job = self._find(who, ref)
        if (rank or 0) >= job.spec.shape.ranks:
            raise NotFound(f"job {job.id} has no rank {rank}")
        life = incarnation or max(1, len(self.logs.get(job.id, ())))
        self.open_streams += 1
        try:
            while True:
                changed, complete, lives = self.changed, job.id in self.complete, self.logs.get(job.id, [])
                log = lives[life - 1] if life <= len(lives) else b""
                while data := bytes(log[offset : offset + 65536]):
                    over = (complete or life < len(lives)) and offset + len(data) == len(log)
                    yield LogChunk(offset, data, over, life)
                    offset += len(data)
                if follow and life < len(lives):
                    life, offset = life + 1, 0
                elif complete or not follow:
                    return
                else:
                    await changed.wait()
        finally:
            self.open_streams -= 1

    async def nodes(self, who: Principal) -> tuple[NodeReport, ...]:
        device = DeviceSpec(uuid="SIM-1", model="H100", vendor="nvidia", memory_mib=81920, index=0, simulated=True)  # type: ignore[arg-type]
        spec = NodeSpec(NodeId("n0"), "host", "127.0.0.1", 64000, 65536, (device,), simulated=True)
        seen = DeviceState(device.uuid, Health.HEALTHY, memory_used_mib=12)
        held = DeviceReport(device, seen, None, 0, ())
        report = NodeReport(spec, "up", bool(self.cordoned), self.cordoned, 0.5, Amount(), (held,), ())
        return (replace(report, draining=self.draining),)

    async def cordon(self, who: Principal, node: NodeId, reason: str, *, drain: bool = False) -> None:
        self._admin(who)
        if node != "n0":
            raise NotFound(f"there is no node {node}")
        self.cordoned, self.draining = reason or "no reason", drain

    async def uncordon(self, who: Principal, node: NodeId) -> None:
        self._admin(who)
        self.cordoned, self.draining = "", False

    async def remove_node(self, who: Principal, node: NodeId) -> None:
        self._admin(who)
        raise Conflict(f"node {node} is up")

    async def queue(self, who: Principal, limit: int) -> tuple[QueueLine, ...]:
        pending = [job for job in self.all.values() if job.state is JobState.PENDING]
        return tuple(
            QueueLine(i, j.gang_key(0), j.spec.name, j.spec.tenant, j.spec.queue, 0, j.spec.shape, 1.0, "devices")
            for i, j in enumerate(pending[:limit])
        )

    async def ledger(self, who: Principal, hours: float) -> Ledger:
        line = LedgerLine(who.tenant, hours * 3_600, 4.0, 6.0, 2.0, 1, 1, 0.5, 0)
        preemption = Preemption(PreemptionKind.ROOM, JobId("9"), TenantId("bob"), 30.0)
        return Ledger(0.0, (line,), (LedgerEntry(1.0, GangKey(JobId("1"), 0), who.tenant, 4_000, preemption),))

    async def plan(self, who: Principal, ask: PlanAsk) -> PlanReport:
        self.planned.append(ask)
        if self.broken is not None:
            raise self.broken
        course = Course(GangKey(JobId("7"), 0), "try", who.tenant, running=False, start=5.0, end=None)
        return PlanReport(1.0, 1.0 + ask.horizon_s, 3, (course,), (), (), 0.5, 0.75, 9.0, None, "ages")

    async def queues(self, who: Principal) -> tuple[Queue, ...]:
        return tuple(self.queues_by_name.values())

    async def set_queue(self, who: Principal, queue: Queue, *, create: bool) -> None:
        self._admin(who)
        _check(queue.name, self.queues_by_name, create=create)
        self.queues_by_name[queue.name] = queue

    async def remove_queue(self, who: Principal, name: QueueName) -> None:
        self._admin(who)
        _check(name, self.queues_by_name, create=False)
        del self.queues_by_name[name]

    async def tenants(self, who: Principal) -> tuple[TenantReport, ...]:
        mine = [t for t in self.tenants_by_id.values() if who.role is Role.ADMIN or t.id == who.tenant]
        return tuple(TenantReport(t, 0.5, 0.25, 0.25, Amount(1000, 0, 0), 1, 0) for t in mine)

    async def set_tenant(self, who: Principal, tenant: Tenant, *, create: bool) -> None:
        self._admin(who)
        _check(tenant.id, self.tenants_by_id, create=create)
        self.tenants_by_id[tenant.id] = tenant

    async def remove_tenant(self, who: Principal, tenant: TenantId) -> None:
        self._admin(who)
        _check(tenant, self.tenants_by_id, create=False)
        del self.tenants_by_id[tenant]

    async def issue_token(self, who: Principal, tenant: TenantId, role: Role, label: str) -> tuple[Token, str]:
        self._admin(who)
        token, secret = Token(secrets.token_hex(4), "", tenant, role, 1.0, label), secrets.token_hex(16)
        self.token_rows[token.id] = token
        self.principals[secret] = Principal(tenant, role, token.id)
        return token, secret

    async def tokens(self, who: Principal) -> tuple[Token, ...]:
        return tuple(t for t in self.token_rows.values() if who.role is Role.ADMIN or t.tenant == who.tenant)

    async def revoke_token(self, who: Principal, token_id: str) -> None:
        self._admin(who)
        if token_id not in self.token_rows:
            raise NotFound(f"there is no token {token_id}")
        del self.token_rows[token_id]
        self.principals = {secret: p for secret, p in self.principals.items() if p.token_id != token_id}

    async def usage(self, who: Principal, since: float, until: float, tenant: TenantId | None) -> Sequence[UsageRow]:
        return [UsageRow(tenant or who.tenant, 3600, 1.5, 2.5)] if since <= 3600 < until else []

    def status(self) -> PoolStatus:
        running = sum(job.state is JobState.RUNNING for job in self.all.values())
        return PoolStatus(
            version="1", pid=1, url="", started_at=0.0, now=9.0, epoch=1, seq=len(self.facts), nodes_up=1, nodes=1,
            devices=1, devices_failed=0, simulated_devices=1, capacity=Amount(1000, 64000, 65536), held=Amount(),
            running_gangs=running, pending_gangs=0, waiting_jobs=0, finished_jobs=0, cpu_pool=False,
            clock_offset_s=0.0, models={"H100": 1},
        )  # fmt: skip

    async def prepare_stop(self, who: Principal, *, stop_tasks: bool) -> int:
        self._admin(who)
        self.stopped_tasks = stop_tasks
        return 0 if stop_tasks else self.status().running_gangs

    _admin = staticmethod(admin_only)


def _check(name: str, known: dict[str, object] | dict[str, Tenant] | dict[str, Queue], *, create: bool) -> None:
    if create and name in known:
        raise DuplicateName(f"{name} exists")
    if not create and name not in known:
        raise NotFound(f"there is no {name}")


EXIT_0 = TaskExit(Cause.EXITED, exit_code=0)
EXIT_3 = TaskExit(Cause.EXITED, exit_code=3)
KILLED = TaskExit(Cause.SIGNAL, signal=9)
QUOTA = Quota(gpu_milli=1000)
