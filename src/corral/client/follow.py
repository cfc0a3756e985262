"""Streams that survive a restart of the daemon: each goes on from the last event it yielded."""

from __future__ import annotations

import time
from base64 import b64decode
from collections.abc import Generator

import msgspec

from corral.client.calls import BACKOFF_MAX_S, Caller, Patience, Problem, Query, decoded
from corral.client.transport import Broken, NotSent, blocks
from corral.model.errors import CorralError, StoreAway, Unavailable
from corral.ports.engine import LogChunk

PAGE_BYTES = 1 << 20


class LogEvent(msgspec.Struct, frozen=True):
    """One event of a log stream: ``text`` when the bytes are UTF-8, else ``base64``."""

    offset: int
    complete: bool
    incarnation: int | None = None
    text: str | None = None
    base64: str | None = None

    def chunk(self) -> LogChunk:
        """Return the piece of the log."""
        data = self.text.encode() if self.text is not None else b64decode(self.base64 or "")
        return LogChunk(self.offset, data, self.complete, self.incarnation)


def events(caller: Caller, path: str, query: Query, last_id: str | None) -> Generator[tuple[str, str, str]]:
    """Yield (id, event, data) from a stream until the pool says ``end``; reconnect when it breaks."""
    patience: Patience | None = None
    while True:
        opened = time.monotonic()
        try:
            stream = caller.stream(path, query, {"Last-Event-ID": last_id} if last_id is not None else None)
            try:
                for lines in blocks(stream):
                    fields = dict(_field(line) for line in lines)
                    kind, data = fields.get("event", "message"), fields.get("data", "")
                    if kind == "end":
                        return
                    if kind == "problem":
                        raise _problem(data)
                    last_id = fields.get("id", last_id)
                    patience = None
                    yield last_id or "", kind, data
            finally:
                stream.close()
        except (NotSent, Broken):
            pass
        except Unavailable as error:
            if type(error) not in (Unavailable, StoreAway):
                raise
        # What was open for a while was well, events or not: the time of looking for the pool begins when it is lost.
        if patience is None or time.monotonic() - opened > BACKOFF_MAX_S:
            patience = Patience(caller.retry_s)
        caller.lost(patience)


def _field(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name, value.removeprefix(" ")


def _problem(data: str) -> CorralError:
    return CorralError.of(decoded(data, Problem).refusal())


def follow_log(caller: Caller, path: str, query: Query) -> Generator[LogChunk]:
    """Yield a log as it is written."""
    for _, _, data in events(caller, path, {**query, "follow": True}, None):
        yield decoded(data, LogEvent).chunk()


def read_log(caller: Caller, path: str, query: Query) -> Generator[LogChunk]:
    """Yield what is in a log now, page by page; all pages are of one incarnation."""
    query = {**query, "limit": PAGE_BYTES}
    while True:
        reply = caller.call("GET", path, query=query)
        if not reply.body:
            return
        told = reply.headers.get("corral-log-incarnation")
        incarnation = int(told) if told is not None else None
        start = int(reply.headers["corral-log-offset"])
        yield LogChunk(start, reply.body, reply.headers.get("corral-log-complete") == "true", incarnation)
        query = {**query, "offset": start + len(reply.body), "incarnation": incarnation}
