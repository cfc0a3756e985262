"""Server-sent events (WHATWG HTML, 9.2): heartbeats, prompt ends, refusals inside the stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from corral.model.errors import CorralError, Unavailable
from corral.wire.v1.problem import Problem

T = TypeVar("T")
HEARTBEAT_S = 15.0
FIRST_S = 0.05
"""How long the answer waits for a first event, so that a refusal becomes a status instead of an event."""


class Stopping:
    """Tells open streams and long waits that the daemon stops. ``begin`` is called in the event loop."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def begin(self) -> None:
        """End all streams and waits now."""
        self._event.set()

    async def wait(self) -> None:
        """Return once the daemon stops."""
        await self._event.wait()

    async def unless(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of ``work``; raise ``Unavailable`` when the daemon stops first."""
        task, stop = asyncio.create_task(work), asyncio.create_task(self.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise Unavailable("the pool stops")
            return task.result()
        finally:
            await _ended(task, stop)


class EventStream(Response):
    """Sends what ``source`` yields (whole events, see :func:`event`) until it ends, the client leaves or we stop.

    A source that ends is followed by ``event: end``; a stream that breaks off without one is to be resumed by
    ``Last-Event-ID``. A refusal after the start is sent as ``event: problem``; ``still`` is asked before each event and
    heartbeat, and refuses once the caller may no longer read.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        source: AsyncGenerator[bytes],
        stopping: Stopping,
        still: Callable[[], object],
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        super().__init__(None, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._source = source
        self._stopping = stopping
        self._still = still
        self._heartbeat_s = heartbeat_s
        self._first: asyncio.Task[bytes] | None = None

    async def opened(self) -> EventStream:
        """Return this stream once its first event is there or is not to be expected soon.

        Raises what the source raises before its first event.
        """
        self._first = asyncio.create_task(_next(self._source))
        await asyncio.wait({self._first}, timeout=FIRST_S)
        if self._first.done() and isinstance(self._first.exception(), CorralError):
            self._first.result()
        return self

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        upcoming = self._first or asyncio.create_task(_next(self._source))
        leaving = asyncio.create_task(_left(receive))
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            while True:
                await asyncio.wait(
                    {upcoming, leaving, stopping}, timeout=self._heartbeat_s, return_when=asyncio.FIRST_COMPLETED
                )
                if leaving.done() or stopping.done():
                    break
                arrived = upcoming.done()
                piece, more = self._piece(upcoming)
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                if not more:
                    break
                # Not whether it is there by now: what came while a heartbeat was sent has yet to be sent.
                if arrived:
                    upcoming = asyncio.create_task(_next(self._source))
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await _ended(upcoming, leaving, stopping)
            await self._source.aclose()

    def _piece(self, upcoming: asyncio.Task[bytes]) -> tuple[bytes, bool]:
        """Return what to send for the next event as it is now, and whether more may follow."""
        try:
            self._still()
            return (upcoming.result() if upcoming.done() else b": heartbeat\n\n"), True
        except StopAsyncIteration:
            return event(b"{}", "end"), False
        except CorralError as error:
            return event(Problem.of_error(error).json_bytes(), "problem"), False


def event(data: bytes, kind: str, id_: str | None = None) -> bytes:
    """Return one event; ``data`` is JSON on one line."""
    id_line = f"id: {id_}\n".encode() if id_ is not None else b""
    return b"event: %s\n%sdata: %s\n\n" % (kind.encode(), id_line, data)


async def closing(source: AsyncIterator[T]) -> AsyncGenerator[T]:
    """Yield what ``source`` yields and close it at once when this generator is closed, not at some collection."""
    try:
        async for item in source:
            yield item
    finally:
        close = getattr(source, "aclose", None)
        if close is not None:
            await close()


async def _next(source: AsyncIterator[bytes]) -> bytes:
    return await anext(source)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _ended(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
