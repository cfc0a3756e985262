"""Logs and facts, as they are now and as they come."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncGenerator, Sequence
from typing import Annotated

import msgspec
from fastapi import APIRouter, Header, Query, Request, Response

from corral.api.asked import Asked, AskedNow, failing
from corral.api.routes.jobs import entry_json
from corral.api.streams import EventStream, closing, event
from corral.model.errors import InvalidField
from corral.model.events import JobEnded
from corral.ports.engine import LogChunk
from corral.ports.store import JournalEntry
from corral.wire.v1.requests import EventsQuery, LogQuery

router = APIRouter(tags=["streams"])
_STREAM = {"text/event-stream": {"schema": {"type": "string"}}}
NUMBER_DIGITS_MAX = 16
_RESUME = Header(max_length=40, description="the id of the last event that was received: the stream goes on after it")
LastEventId = Annotated[str | None, _RESUME]


@router.get(
    "/jobs/{ref}/log",
    response_class=Response,
    responses={
        200: {
            "description": "Bytes as the task wrote them. Corral-Log-Incarnation tells which start of the task wrote "
            "them, Corral-Log-Offset the position of the first, Corral-Log-Complete whether no more can come. As a "
            "stream: events `log` with incarnation, offset, complete and text (or base64 where the bytes are not "
            "UTF-8); `end` follows the last.",
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}, **_STREAM},
            "headers": {
                "Corral-Log-Incarnation": {"schema": {"type": "integer"}, "description": "absent where nothing is"},
                "Corral-Log-Offset": {"schema": {"type": "integer"}, "description": "position of the first byte"},
                "Corral-Log-Complete": {"schema": {"type": "boolean"}, "description": "whether no more can come"},
            },
        },
        **failing(404, 422),
    },
)
async def read_log(
    request: Request,
    ref: str,
    asked: AskedNow,
    query: Annotated[LogQuery, Query()],
    last_event_id: LastEventId = None,
) -> Response:
    """Read a task's log: bytes now, or a stream with ``follow=true`` or ``Accept: text/event-stream``.

    ``ref`` may be a gang, ``12.3``. Bytes that rotation has removed are skipped. Each start of a task, an incarnation,
    has a log of its own: a stream goes on with those that follow.
    """
    if query.follow or "text/event-stream" in request.headers.get("accept", ""):
        await asked.pool.job(asked.who, ref)
        begin = (query.incarnation, query.offset) if last_event_id is None else _place(last_event_id)
        source = _log_events(asked, ref, query.rank, *begin)
        return await EventStream(source, asked.stopping, asked.still).opened()
    page = await _page(asked, ref, query)
    told = {} if page.incarnation is None else {"Corral-Log-Incarnation": str(page.incarnation)}
    told |= {"Corral-Log-Offset": str(page.offset), "Corral-Log-Complete": "true" if page.complete else "false"}
    return Response(page.data, headers=told, media_type="application/octet-stream")


async def _page(asked: Asked, ref: str, query: LogQuery) -> LogChunk:
    """Return what is there now of one incarnation's log, in one piece."""
    source = closing(
        asked.pool.follow_log(
            asked.who, ref, rank=query.rank, offset=query.offset, follow=False, incarnation=query.incarnation
        )
    )
    start, data, complete, incarnation = query.offset, bytearray(), False, query.incarnation
    try:
        async for chunk in source:
            if not data:
                start, incarnation = chunk.offset, chunk.incarnation
            elif chunk.offset != start + len(data):
                break
            data += chunk.data
            complete = chunk.complete
            if len(data) >= query.limit:
                break
    finally:
        await source.aclose()
    return LogChunk(start, bytes(data[: query.limit]), complete and len(data) <= query.limit, incarnation)


async def _log_events(
    asked: Asked, ref: str, rank: int | None, incarnation: int | None, offset: int
) -> AsyncGenerator[bytes]:
    """Yield a log as events; the id of one says after which byte of which incarnation it ends."""
    source = closing(
        asked.pool.follow_log(asked.who, ref, rank=rank, offset=offset, follow=True, incarnation=incarnation)
    )
    try:
        async for chunk in source:
            yield event(_chunk_json(chunk), "log", f"{chunk.incarnation or 0}:{chunk.offset + len(chunk.data)}")
    finally:
        await source.aclose()


def _chunk_json(chunk: LogChunk) -> bytes:
    said: dict[str, object] = {"incarnation": chunk.incarnation, "offset": chunk.offset, "complete": chunk.complete}
    try:
        said["text"] = chunk.data.decode()
    except UnicodeDecodeError:
        said["base64"] = b64encode(chunk.data).decode()
    return msgspec.json.encode(said)


@router.get(
    "/events",
    response_class=Response,
    responses={
        200: {"description": "Events `fact`, each a JournalEntry whose seq is the event's id.", "content": _STREAM},
        **failing(404, 422),
    },
)
async def read_events(
    asked: AskedNow, query: Annotated[EventsQuery, Query()], last_event_id: LastEventId = None
) -> Response:
    """Stream journaled facts, of one job or of all that one may see. ``Last-Event-ID`` resumes without a gap."""
    after = query.after_seq if last_event_id is None else _number(last_event_id)
    past = None if query.job is None else await _past(asked, query.job)
    source = _facts(asked, query.job, after) if past is None else _entries(past, after)
    return await EventStream(source, asked.stopping, asked.still).opened()


async def _past(asked: Asked, job: str) -> list[JournalEntry] | None:
    """Return all facts of a job that has ended (none when they are no longer kept), ``None`` while more may come."""
    if not (await asked.pool.job(asked.who, job)).state.ended:
        return None
    entries = await asked.pool.history(asked.who, job)
    return entries if not entries or any(isinstance(entry.fact, JobEnded) for entry in entries) else None


async def _entries(entries: Sequence[JournalEntry], after: int | None) -> AsyncGenerator[bytes]:
    """Yield facts after a place (``None``: nothing, for the stream begins now)."""
    for entry in entries:
        if after is not None and entry.seq > after:
            yield _fact_event(entry)


async def _facts(asked: Asked, job: str | None, after: int | None) -> AsyncGenerator[bytes]:
    source = closing(asked.pool.changes(asked.who, job, after))
    try:
        async for change in source:
            yield _fact_event(change.entry)
            if job is not None and isinstance(change.entry.fact, JobEnded):
                return
    finally:
        await source.aclose()


def _fact_event(entry: JournalEntry) -> bytes:
    return event(entry_json(entry), "fact", str(entry.seq))


def _number(last_event_id: str) -> int:
    if not last_event_id.isascii() or not last_event_id.isdigit() or len(last_event_id) > NUMBER_DIGITS_MAX:
        raise InvalidField("must be the id of an event of this stream", field="Last-Event-ID")
    return int(last_event_id)


def _place(last_event_id: str) -> tuple[int | None, int]:
    """Return (incarnation, offset) of an event of a log."""
    incarnation, _, offset = last_event_id.partition(":")
    return _number(incarnation) or None, _number(offset)
