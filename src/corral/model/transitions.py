"""How facts change state: the one place where a job, a gang or the pool moves on.

``fold`` is used by the controller (live and on replay), ``apply_to_job`` also by every AppMaster for its own copy.
A fact that does not fit raises ``IllegalTransition`` before anything is changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from msgspec.structs import replace

from corral.model.errors import IllegalTransition
from corral.model.events import (
    DeviceFailed,
    DeviceRecovered,
    Fact,
    FilesReturned,
    GangEnded,
    GangEvent,
    GangPlaced,
    GangRequeued,
    GangStopping,
    JobCancelRequested,
    JobEnded,
    JobEvent,
    JobSubmitted,
    MaintenanceEnded,
    MaintenanceSettled,
    MaintenanceStarted,
    NodeCordoned,
    NodeJoined,
    NodeLost,
    NodeRemoved,
    NodeUncordoned,
    QueueRemoved,
    QueueSet,
    ServiceEvent,
    TaskEnded,
    TaskStarted,
    TenantRemoved,
    TenantSet,
    TokenIssued,
    TokenRevoked,
)
from corral.model.files import Returned, ReturnKind, with_returned
from corral.model.ids import GangKey
from corral.model.job import Gang, Job, JobState, StopReason, Task, TaskState, deciding_exit
from corral.model.resources import Amount, Placement
from corral.model.service_transitions import fold_service, follow_job
from corral.model.state import Held, Maintenance, Node, PoolState

AVOID_MAX = 8
T = TypeVar("T")


def new_job(fact: JobSubmitted) -> Job:
    """Return the job that a submission makes."""
    blank = tuple(Task(rank) for rank in range(fact.spec.shape.ranks))
    gangs = {index: Gang(index, blank, queued_at=fact.at) for index in range(fact.spec.gangs)}
    return Job(
        id=fact.job,
        spec=fact.spec,
        submitted_at=fact.at,
        gangs=gangs,
        user=fact.user,
        open_gangs=len(gangs),
        waiting_for=fact.waiting_for,
        idempotency_key=fact.idempotency_key,
        request_digest=fact.request_digest,
    )


def copy_job(job: Job) -> Job:
    """Return an independent copy: the mapping of gangs is new, the frozen values are shared."""
    return replace(job, gangs=dict(job.gangs))


def _gang_of(job: Job, fact: GangEvent, *, next_incarnation: bool = False) -> Gang:
    gang = job.gangs.get(fact.gang)
    if gang is None:
        raise IllegalTransition(f"job {job.id} has no gang {fact.gang}")
    expected = gang.incarnation + 1 if next_incarnation else gang.incarnation
    if fact.incarnation != expected:
        raise IllegalTransition(
            f"gang {job.id}.{fact.gang} is at incarnation {gang.incarnation}, the fact speaks of {fact.incarnation}"
        )
    if gang.state.ended:
        raise IllegalTransition(f"gang {job.id}.{fact.gang} has ended as {gang.state}")
    return gang


def _task_of(job: Job, gang: Gang, rank: int) -> Task:
    if rank not in range(len(gang.tasks)):
        raise IllegalTransition(f"gang {job.id}.{gang.index} has no rank {rank}")
    return gang.tasks[rank]


def _with_task(gang: Gang, task: Task, **changes: Any) -> Gang:
    tasks = tuple(task if old.rank == task.rank else old for old in gang.tasks)
    return replace(gang, tasks=tasks, **changes)


def _placed(job: Job, fact: GangPlaced) -> None:
    gang = _gang_of(job, fact, next_incarnation=True)
    if gang.state is not JobState.PENDING:
        raise IllegalTransition(f"gang {job.id}.{fact.gang} cannot be placed in state {gang.state}")
    sizes = {shape.ranks for shape in job.spec.shapes} or {job.spec.shape.ranks}
    ranks = [placement.rank for placement in fact.placements]
    if len(ranks) not in sizes or ranks != list(range(len(ranks))):
        raise IllegalTransition(f"the placements of gang {job.id}.{fact.gang} are not one for each rank, in order")
    tasks = tuple(Task(p.rank, TaskState.PLACED, p) for p in fact.placements)
    job.gangs[fact.gang] = replace(
        gang,
        tasks=tasks,
        state=JobState.RUNNING,
        incarnation=fact.incarnation,
        placed_at=fact.at,
        stopping=None,
        bid=fact.bid,
        waited_s=gang.waited_s + max(0.0, fact.at - gang.queued_at),
    )
    job.state = JobState.RUNNING


def _started(job: Job, fact: TaskStarted) -> None:
    gang = _gang_of(job, fact)
    task = _task_of(job, gang, fact.rank)
    if task.state not in (TaskState.PLACED, TaskState.STARTING):
        raise IllegalTransition(f"task {job.id}.{fact.gang}.{fact.rank} cannot start from {task.state}")
    first = fact.at if gang.started_at is None else gang.started_at
    job.gangs[fact.gang] = _with_task(
        gang, replace(task, state=TaskState.RUNNING, started_at=fact.at), started_at=first
    )
    if job.started_at is None:
        job.started_at = fact.at


def _task_ended(job: Job, fact: TaskEnded) -> None:
    gang = _gang_of(job, fact)
    task = _task_of(job, gang, fact.rank)
    if not task.state.holds or task.placement is None or not fact.state.ended:
        raise IllegalTransition(f"task {job.id}.{fact.gang}.{fact.rank} cannot end from {task.state}")
    held_s = max(0.0, fact.at - (gang.placed_at if gang.placed_at is not None else fact.at))
    started = task.started_at if task.started_at is not None else fact.exit.started_at
    ended = replace(task, state=fact.state, ended_at=fact.at, exit=fact.exit, started_at=started)
    used = gang.used_gpu_milli_s + held_s * task.placement.gpu_milli
    job.gangs[fact.gang] = _with_task(gang, ended, used_gpu_milli_s=used)


def _stopping(job: Job, fact: GangStopping) -> None:
    gang = _gang_of(job, fact)
    if not gang.live or gang.stopping is not None:
        raise IllegalTransition(f"gang {job.id}.{fact.gang} cannot be stopped now")
    job.gangs[fact.gang] = replace(gang, stopping=fact.reason)


def _requeued(job: Job, fact: GangRequeued) -> None:
    gang = _gang_of(job, fact)
    if gang.live or gang.state is not JobState.RUNNING:
        raise IllegalTransition(f"gang {job.id}.{fact.gang} cannot be requeued while it runs")
    placed_at = gang.placed_at if gang.placed_at is not None else fact.at
    since = placed_at if fact.saved_at is None else max(placed_at, fact.saved_at)
    lost = sum(t.placement.gpu_milli * max(0.0, (t.ended_at or fact.at) - since) for t in gang.tasks if t.placement)
    starts = [task.started_at for task in gang.tasks if task.started_at is not None]
    over = max((task.ended_at for task in gang.tasks if task.ended_at is not None), default=fact.at)
    served = max(0.0, over - max(starts)) if len(starts) == len(gang.tasks) else 0.0
    avoid = tuple(n for n in gang.avoid if n not in fact.avoid) + fact.avoid
    job.gangs[fact.gang] = replace(
        gang,
        tasks=tuple(Task(rank) for rank in range(job.spec.shape.ranks)),
        state=JobState.PENDING,
        queued_at=fact.at,
        placed_at=None,
        stopping=None,
        bid=None,
        attained_s=gang.attained_s + served,
        preemptions=gang.preemptions + (gang.stopping is StopReason.PREEMPTED),
        restarts=gang.restarts + (1 if fact.counted else 0),
        moves=gang.moves + (0 if fact.counted else 1),
        avoid=avoid[-AVOID_MAX:],
        lost_gpu_milli_s=gang.lost_gpu_milli_s + lost,
    )
    if all(g.state is not JobState.RUNNING for g in job.gangs.values()):
        job.state = JobState.PENDING


def _gang_ended(job: Job, fact: GangEnded) -> None:
    gang = _gang_of(job, fact)
    if gang.live or not fact.state.ended:
        raise IllegalTransition(f"gang {job.id}.{fact.gang} cannot end while it runs")
    tasks = tuple(replace(t, state=TaskState.CANCELLED) if t.state is TaskState.PENDING else t for t in gang.tasks)
    waited = gang.waited_s
    if gang.state is JobState.PENDING:
        waited += max(0.0, fact.at - gang.queued_at)
    job.gangs[fact.gang] = replace(gang, tasks=tasks, state=fact.state, ended_at=fact.at, waited_s=waited)
    job.open_gangs -= 1
    if fact.reason and not job.message:
        job.message = fact.reason


def _job_ended(job: Job, fact: JobEnded) -> None:
    if job.open_gangs or job.state.ended or not fact.state.ended:
        raise IllegalTransition(f"job {job.id} cannot end with {job.open_gangs} open gangs in state {job.state}")
    job.state = fact.state
    job.ended_at = fact.at
    decided = deciding_exit(job.gangs.values())
    if decided is not None:
        # All that ran may have ended well, and the job not: a gang of it was never started.
        job.exit_code = decided.code or (0 if fact.state is JobState.SUCCEEDED else 1)
        job.exit_cause = decided.cause
    if fact.reason:
        job.message = fact.reason


def _returned(job: Job, fact: FilesReturned) -> None:
    gang = _gang_of(job, fact)
    task = _task_of(job, gang, fact.rank)
    if not task.state.holds:
        raise IllegalTransition(f"task {job.id}.{fact.gang}.{fact.rank} gives files back, but is {task.state}")
    new = Returned(fact.rank, fact.incarnation, fact.tree, fact.at, fact.size_bytes)
    ranks = len(gang.tasks)
    if fact.what is ReturnKind.CHECKPOINT:
        job.gangs[fact.gang] = replace(gang, saved=with_returned(gang.saved, new, ranks))
    else:
        job.gangs[fact.gang] = replace(gang, outputs=with_returned(gang.outputs, new, ranks))


def _cancel_requested(job: Job, fact: JobCancelRequested) -> None:
    job.cancelled_by = job.cancelled_by or fact.by


_ON_JOB: dict[type[JobEvent], Callable[[Job, Any], None]] = {
    GangPlaced: _placed,
    TaskStarted: _started,
    TaskEnded: _task_ended,
    GangStopping: _stopping,
    GangRequeued: _requeued,
    FilesReturned: _returned,
    GangEnded: _gang_ended,
    JobEnded: _job_ended,
    JobCancelRequested: _cancel_requested,
}


def apply_to_job(job: Job, fact: JobEvent) -> None:
    """Change a job by a fact about it. Raises ``IllegalTransition`` and leaves the job as it was."""
    if job.state.ended:
        raise IllegalTransition(f"job {job.id} has ended as {job.state}")
    _ON_JOB[type(fact)](job, fact)


def _hold(state: PoolState, job: Job, key: GangKey, placements: tuple[Placement, ...]) -> None:
    for placement in placements:
        held = state.held.get(placement.node)
        if held is None:
            held = state.held[placement.node] = Held(devices={}, ports=set(), gangs={})
        held.hold(key, placement)
        _count(state, job, Amount.of(placement))


def _count(state: PoolState, job: Job, change: Amount) -> None:
    tenant, queue = job.spec.tenant, job.spec.queue
    state.tenant_held[tenant] = state.tenant_held.get(tenant, Amount()) + change
    state.queue_held[queue] = state.queue_held.get(queue, Amount()) + change


def _fold_job_event(state: PoolState, fact: JobEvent) -> None:
    job = state.jobs.get(fact.job)
    if job is None:
        raise IllegalTransition(f"there is no live job {fact.job}")
    apply_to_job(job, fact)
    if isinstance(fact, GangPlaced):
        _hold(state, job, job.gang_key(fact.gang), fact.placements)
    elif isinstance(fact, TaskEnded) and (placement := job.gangs[fact.gang].tasks[fact.rank].placement) is not None:
        state.held[placement.node].release(job.gang_key(fact.gang), placement)
        _count(state, job, Amount() - Amount.of(placement))
    elif isinstance(fact, JobEnded):
        del state.jobs[fact.job]
        state.finished += 1
        for name in state.dependents.pop(fact.job, ()):
            other = state.jobs.get(name)
            if other is not None:
                other.waiting_for = tuple(j for j in other.waiting_for if j != fact.job)


def _fold_submitted(state: PoolState, fact: JobSubmitted) -> None:
    if fact.job in state.jobs or int(fact.job) < state.next_job:
        raise IllegalTransition(f"job {fact.job} was submitted before")
    state.jobs[fact.job] = new_job(fact)
    state.next_job = int(fact.job) + 1
    for earlier in fact.waiting_for:
        state.dependents[earlier] = (*state.dependents.get(earlier, ()), fact.job)
    if fact.idempotency_key is not None:
        state.remember_key(fact.spec.tenant, fact.idempotency_key, fact.job, fact.request_digest)


def _node(state: PoolState, fact: NodeLost | NodeCordoned | NodeUncordoned | DeviceFailed | DeviceRecovered) -> Node:
    node = state.nodes.get(fact.node)
    if node is None:
        raise IllegalTransition(f"there is no node {fact.node}")
    return node


def _fold_node_event(state: PoolState, fact: Fact) -> bool:
    match fact:
        case NodeJoined():
            old = state.nodes.get(fact.spec.id)
            node = Node(fact.spec, failed={})
            if old is not None:
                node.cordoned, node.cordon_reason, node.draining = old.cordoned, old.cordon_reason, old.draining
                present = {d.uuid for d in fact.spec.devices}
                node.failed = {uuid: why for uuid, why in old.failed.items() if uuid in present}
            state.nodes[fact.spec.id] = node
            state.held.setdefault(fact.spec.id, Held(devices={}, ports=set(), gangs={}))
        case NodeLost():
            _node(state, fact).lost = True
        case NodeCordoned():
            node = _node(state, fact)
            node.cordoned, node.cordon_reason = True, fact.reason
            node.draining = node.draining or fact.drain
        case NodeUncordoned():
            node = _node(state, fact)
            node.cordoned, node.cordon_reason, node.draining = False, "", False
        case NodeRemoved():
            if fact.node in state.held and state.held[fact.node].gangs:
                raise IllegalTransition(f"node {fact.node} still has tasks")
            state.nodes.pop(fact.node, None)
            state.held.pop(fact.node, None)
        case DeviceFailed():
            _node(state, fact).failed[fact.device] = fact.reason
        case DeviceRecovered():
            _node(state, fact).failed.pop(fact.device, None)
        case _:
            return False
    return True


def _forget(held: dict[T, Amount], name: T) -> None:
    if held.get(name) == Amount():
        del held[name]


def _fold_maintenance(state: PoolState, fact: MaintenanceStarted | MaintenanceEnded | MaintenanceSettled) -> None:
    known = state.maintenance
    if isinstance(fact, MaintenanceSettled):
        state.maintenance = None
    elif isinstance(fact, MaintenanceStarted):
        granted_until, granted_s = fact.until, fact.until - fact.at
        if known is not None and known.forgotten_at > fact.at:
            granted_until, granted_s = max(granted_until, known.granted_until), max(granted_s, known.granted_s)
        state.maintenance = Maintenance(
            fact.at, fact.until, fact.by, fact.reason, granted_until=granted_until, granted_s=granted_s
        )
    elif known is not None and known.ended_at is None:
        state.maintenance = replace(known, ended_at=fact.at)


def _fold_admin_event(state: PoolState, fact: Fact) -> None:
    match fact:
        case MaintenanceStarted() | MaintenanceEnded() | MaintenanceSettled():
            _fold_maintenance(state, fact)
        case TenantSet():
            state.tenants[fact.tenant.id] = fact.tenant
        case TenantRemoved():
            state.tenants.pop(fact.tenant, None)
            _forget(state.tenant_held, fact.tenant)
            state.tokens = {i: t for i, t in state.tokens.items() if t.tenant != fact.tenant}
        case QueueSet():
            state.queues[fact.queue.name] = fact.queue
        case QueueRemoved():
            state.queues.pop(fact.queue, None)
            _forget(state.queue_held, fact.queue)
        case TokenIssued():
            state.tokens[fact.token.id] = fact.token
        case TokenRevoked():
            state.tokens.pop(fact.token_id, None)
        case _:
            raise IllegalTransition(f"no rule for {type(fact).__name__}")


def fold(state: PoolState, fact: Fact) -> None:
    """Change the pool by a fact. Raises ``IllegalTransition`` when it does not fit."""
    if isinstance(fact, JobSubmitted):
        _fold_submitted(state, fact)
        if fact.spec.serving is not None:
            follow_job(state.services, fact, fact.spec.serving)
    elif isinstance(fact, JobEvent):
        job = state.jobs.get(fact.job)
        _fold_job_event(state, fact)
        if job is not None and job.spec.serving is not None:
            follow_job(state.services, fact, job.spec.serving, unwanted=job.cancelled_by is not None)
    elif isinstance(fact, ServiceEvent):
        fold_service(state.services, fact)
    elif not _fold_node_event(state, fact):
        _fold_admin_event(state, fact)
    state.at = max(state.at, fact.at)
