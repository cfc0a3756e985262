"""Usage by the hour and the row of a finished job."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from corral.model.events import Decision, GangRequeued
from corral.model.ids import QueueName, TenantId
from corral.model.job import Cause, Gang, Job, JobSpec, JobState, StopReason
from corral.model.offer import Proposal
from corral.model.resources import Demand, GangShape, Placement
from corral.ports.store import FinishedJob, UsageRow

HOUR_S = 3600


def hours(begin: float, end: float) -> Iterator[tuple[int, float]]:
    """Yield the hours (epoch seconds of their beginning) that [begin, end) touches, each with its seconds in them."""
    at = begin
    while at < end:
        hour = int(at // HOUR_S) * HOUR_S
        until = min(end, float(hour + HOUR_S))
        yield hour, until - at
        at = until


def usage_rows(tenant: TenantId, placement: Placement, begin: float, end: float) -> Iterator[UsageRow]:
    """Split what a placement used in [begin, end) into rows per hour."""
    for hour, seconds in hours(begin, end):
        yield UsageRow(tenant, hour, placement.gpu_milli * seconds, placement.cpus_milli * seconds)


def with_checkpoint(decision: Decision, job: Job | None, proposal: Proposal | None) -> Decision:
    """Return a decision to requeue a gang with its last known checkpoint of this run, any other as it is.

    A gang that gave way, and saves itself when it is told to, has saved all that it did.
    """
    gang = job.gangs.get(decision.gang) if job is not None and isinstance(decision, GangRequeued) else None
    if not isinstance(decision, GangRequeued) or job is None or gang is None or gang.placed_at is None:
        return decision
    outlook = proposal.outlooks.get(decision.gang) if proposal is not None else None
    saved_at = outlook.saved_at if outlook is not None else None
    if job.spec.checkpoint is not None and gang.stopping is StopReason.PREEMPTED:
        saved_at = decision.at
    known = saved_at is not None and gang.placed_at <= saved_at <= decision.at
    return replace(decision, saved_at=saved_at) if known else decision


def lost_rows(tenant: TenantId, gang: Gang, requeued: GangRequeued) -> Iterator[UsageRow]:
    """Yield, per hour, the GPU use of a gang since its placement or its last known checkpoint as lost."""
    for task in gang.tasks:
        if task.placement is None or not task.placement.gpu_milli or gang.placed_at is None:
            continue
        since = gang.placed_at if requeued.saved_at is None else max(gang.placed_at, requeued.saved_at)
        for hour, seconds in hours(since, task.ended_at if task.ended_at is not None else requeued.at):
            yield UsageRow(tenant, hour, 0.0, 0.0, task.placement.gpu_milli * seconds)


def finished_row(job: Job, idle_share: float | None) -> FinishedJob:
    """Return the row that a finished job leaves behind."""
    gangs = job.gangs.values()
    size = job.size
    return FinishedJob(
        id=job.id,
        number=int(job.id),
        tenant=job.spec.tenant,
        queue=job.spec.queue,
        name=job.spec.name,
        user=job.user,
        state=job.state,
        submitted_at=job.submitted_at,
        started_at=job.started_at,
        ended_at=job.ended_at if job.ended_at is not None else job.submitted_at,
        gangs=len(job.gangs),
        restarts=sum(g.restarts for g in gangs),
        moves=sum(g.moves for g in gangs),
        used_gpu_milli_s=sum(g.used_gpu_milli_s for g in gangs),
        lost_gpu_milli_s=sum(g.lost_gpu_milli_s for g in gangs),
        idle_share=idle_share,
        idempotency_key=job.idempotency_key,
        request_digest=job.request_digest,
        document=msgspec.json.encode(job),
        ranks=size.ranks,
        gpu_milli=size.demand.gpu_milli,
        gpu_model=job.spec.shape.demand.gpu_model,
        is_array=job.spec.is_array,
        exit_code=job.exit_code,
        exit_cause=job.exit_cause.value if job.exit_cause is not None else None,
        message=job.message,
    )


def listed_job(row: FinishedJob) -> Job:
    """Return a listing's view of a finished job: its row, without gangs."""
    demand = Demand(gpu_milli=row.gpu_milli, gpu_model=row.gpu_model)
    spec = JobSpec(
        name=row.name,
        tenant=row.tenant,
        shape=GangShape(row.ranks, demand),
        queue=QueueName(row.queue),
        indices=tuple(range(row.gangs)),
        is_array=row.is_array,
    )
    return Job(
        id=row.id,
        spec=spec,
        submitted_at=row.submitted_at,
        gangs={},
        state=JobState(row.state),
        started_at=row.started_at,
        ended_at=row.ended_at,
        message=row.message,
        user=row.user,
        exit_code=row.exit_code,
        exit_cause=Cause(row.exit_cause) if row.exit_cause is not None else None,
    )
