"""Jobs: submit, list, read, cancel, wait, explain."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
from fastapi import APIRouter, Header, Query, Request, Response

from corral.api.asked import AskedNow, answer, body_of, failing
from corral.model.events import FactCodec
from corral.model.ids import TenantId
from corral.model.job import Job as JobModel
from corral.model.tenant import Role
from corral.ports.pool import Submission
from corral.ports.store import JobQuery as StoreQuery
from corral.ports.store import JournalEntry
from corral.wire.request import asks_of_json
from corral.wire.v1.jobs import History, Job, JobRows, JobSummary, Submitted
from corral.wire.v1.reports import Receipt, WhyReport
from corral.wire.v1.requests import JobQuery, JobsQuery, SubmitRequest, WaitQuery

router = APIRouter(tags=["jobs"])
INLINE_BYTES_MAX = 64 * 1024


@router.post(
    "/jobs",
    status_code=201,
    response_model=Submitted,
    responses=failing(400, 403, 409, 413, 415, 422, 429),
    openapi_extra=body_of(SubmitRequest),
)
async def submit(
    request: Request,
    asked: AskedNow,
    idempotency_key: Annotated[
        str | None,
        Header(max_length=255, description="the same key and jobs return the same jobs again, however often"),
    ] = None,
) -> Response:
    """Admit jobs, all or none. They are durable when this answers."""
    body = await request.body()
    # A large body takes long to read: in a thread, so that heartbeats are answered meanwhile.
    asks = asks_of_json(body) if len(body) <= INLINE_BYTES_MAX else await asyncio.to_thread(asks_of_json, body)
    jobs = await asked.pool.submit(asked.who, Submission(asks, idempotency_key))
    return answer(Submitted(jobs=[JobSummary.of(job) for job in jobs]), 201)


@router.get("/jobs", response_model=JobRows, responses=failing(422))
async def list_jobs(asked: AskedNow, query: Annotated[JobsQuery, Query()]) -> Response:
    """List jobs as rows, newest first. A user sees those of the own tenant, and of another one none."""
    if asked.who.role is not Role.ADMIN and query.tenant not in {None, asked.who.tenant}:
        return answer(JobRows(jobs=[], next_before=None, total_live=0))
    wanted = StoreQuery(
        tenant=TenantId(query.tenant) if query.tenant is not None else None,
        name=query.name,
        state=query.state,
        since=query.since,
        before=query.before,
        limit=query.limit,
    )
    page = await asked.pool.jobs(asked.who, wanted, live=query.live, finished=query.finished)
    rows = JobRows.model_construct(
        jobs=[JobSummary.of(job, asked.pool.progress(job)) for job in page.jobs],
        next_before=page.next_before,
        total_live=page.total_live,
    )
    return answer(rows)


@router.get("/jobs/{ref}", response_model=Job, responses=failing(404, 422))
async def read_job(ref: str, asked: AskedNow, query: Annotated[JobQuery, Query()]) -> Response:
    """Read a job with its gangs and tasks. ``ref`` is a number or a name; so it is in all paths below."""
    return answer(Job.of(_part(await asked.pool.job(asked.who, ref), query.gangs_from, query.gangs_max)))


@router.get("/jobs/{ref}/summary", response_model=JobSummary, responses=failing(404))
async def read_summary(ref: str, asked: AskedNow) -> Response:
    """Read a job as one row."""
    job = await asked.pool.job(asked.who, ref)
    return answer(JobSummary.of(job, asked.pool.progress(job)))


@router.delete("/jobs/{ref}", response_model=JobSummary, responses=failing(404, 409))
async def cancel(ref: str, asked: AskedNow) -> Response:
    """Ask for the end of a job. An ended one is a conflict."""
    return answer(JobSummary.of(await asked.pool.cancel(asked.who, ref)))


@router.get("/jobs/{ref}/wait", response_model=JobSummary, responses=failing(404, 422))
async def wait(ref: str, asked: AskedNow, query: Annotated[WaitQuery, Query()]) -> Response:
    """Answer when the job ended, or with how it is after ``timeout_s``."""
    return answer(JobSummary.of(await asked.stopping.unless(asked.pool.wait(asked.who, ref, query.timeout_s))))


@router.get("/jobs/{ref}/why", response_model=WhyReport, responses=failing(404))
async def why(ref: str, asked: AskedNow) -> Response:
    """Explain why a job waits, or where it stands. ``ref`` may be a gang, ``12.3``."""
    return answer(WhyReport.of(await asked.pool.why(asked.who, ref)))


@router.get("/jobs/{ref}/receipt", response_model=Receipt, responses=failing(404))
async def receipt(ref: str, asked: AskedNow) -> Response:
    """Tell what a job cost, so far or in all."""
    return answer(Receipt.of(await asked.pool.receipt(asked.who, ref)))


@router.get("/jobs/{ref}/history", response_model=History, responses=failing(404))
async def history(ref: str, asked: AskedNow) -> Response:
    """Return the journaled facts of a job, oldest first."""
    entries = b",".join(entry_json(entry) for entry in await asked.pool.history(asked.who, ref))
    return Response(b'{"entries":[%s]}' % entries, media_type="application/json")


def entry_json(entry: JournalEntry) -> bytes:
    """Return one journaled fact as JSON: facts are versioned by themselves (fields and kinds are only ever added)."""
    return b'{"seq":%d,"epoch":%d,"fact":%s}' % (entry.seq, entry.epoch, FactCodec.encode(entry.fact))


def _part(job: JobModel, first: int, count: int) -> JobModel:
    """Return a job with ``count`` of its gangs from position ``first`` on."""
    if first == 0 and len(job.gangs) <= count:
        return job
    chosen = sorted(job.gangs)[first : first + count]
    return msgspec.structs.replace(job, gangs={index: job.gangs[index] for index in chosen})
