"""Logs and facts, as they are now and as they come."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncGenerator
from typing import Annotated

import msgspec
from fastapi import APIRouter, Header, Query, Request, Response

from corral.api.asked import Asked, AskedNow, failing
from corral.api.routes.jobs import entry_json
from corral.api.streams import EventStream, closing, event
from corral.model.errors import InvalidField
from corral.model.events import JobEnded
from corral.ports.engine import LogChunk
from corral.wire.v1.requests import EventsQuery, LogQuery

router = APIRouter(tags=["streams"])
_STREAM = {"text/event-stream": {"schema": {"type": "string"}}}
_RESUME = Header(max_length=20, description="the id of the last event that was received: the stream goes on after it")
LastEventId = Annotated[str | None, _RESUME]


@router.get(
    "/jobs/{ref}/log",
    response_class=Response,
    responses={
        200: {
            "description": "Bytes as the task wrote them. Corral-Log-Offset is the position of the first, "
            "Corral-Log-Complete whether no more can come. As a stream: events `log` with offset, complete and text "
            "(or base64 where the bytes are not UTF-8); `end` follows the last.",
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}, **_STREAM},
            "headers": {
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

    ``ref`` may be a gang, ``12.3``. Bytes that rotation has removed are skipped.
    """
    if query.follow or "text/event-stream" in request.headers.get("accept", ""):
        await asked.pool.job(asked.who, ref)
        offset = query.offset if last_event_id is None else _number(last_event_id)
        return await EventStream(_log_events(asked, ref, query.rank, offset), asked.stopping).opened()
    start, data, complete = await _page(asked, ref, query)
    headers = {"Corral-Log-Offset": str(start), "Corral-Log-Complete": "true" if complete else "false"}
    return Response(data, headers=headers, media_type="application/octet-stream")


async def _page(asked: Asked, ref: str, query: LogQuery) -> tuple[int, bytes, bool]:
    """Return (position of the first byte, bytes, whether the log ends with them)."""
    source = closing(asked.pool.follow_log(asked.who, ref, rank=query.rank, offset=query.offset, follow=False))
    start, data, complete = query.offset, bytearray(), False
    try:
        async for chunk in source:
            if not data:
                start = chunk.offset
            elif chunk.offset != start + len(data):
                break
            data += chunk.data
            complete = chunk.complete
            if len(data) >= query.limit:
                break
    finally:
        await source.aclose()
    return start, bytes(data[: query.limit]), complete and len(data) <= query.limit


async def _log_events(asked: Asked, ref: str, rank: int | None, offset: int) -> AsyncGenerator[bytes]:
    source = closing(asked.pool.follow_log(asked.who, ref, rank=rank, offset=offset, follow=True))
    try:
        async for chunk in source:
            yield event(_chunk_json(chunk), "log", str(chunk.offset + len(chunk.data)))
    finally:
        await source.aclose()


def _chunk_json(chunk: LogChunk) -> bytes:
    said: dict[str, object] = {"offset": chunk.offset, "complete": chunk.complete}
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
    ended = query.job is not None and (await asked.pool.job(asked.who, query.job)).state.ended
    if ended and after is None:
        return await EventStream(_nothing(), asked.stopping).opened()
    return await EventStream(_facts(asked, query.job, after), asked.stopping).opened()


async def _nothing() -> AsyncGenerator[bytes]:
    return
    yield b""


async def _facts(asked: Asked, job: str | None, after: int | None) -> AsyncGenerator[bytes]:
    source = closing(asked.pool.changes(asked.who, job, after))
    try:
        async for change in source:
            yield event(entry_json(change.entry), "fact", str(change.entry.seq))
            if job is not None and isinstance(change.entry.fact, JobEnded):
                return
    finally:
        await source.aclose()


def _number(last_event_id: str) -> int:
    if not last_event_id.isascii() or not last_event_id.isdigit():
        raise InvalidField("must be the id of an event of this stream", field="Last-Event-ID")
    return int(last_event_id)
