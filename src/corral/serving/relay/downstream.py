"""Connections of the proxy to the relay: requests come in, answers go out."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import cast

import httptools
import msgspec

from corral.model.routes import REPLICA_HEADER, SERVICE_HEADER
from corral.serving.relay.board import Board, Live, Place
from corral.serving.relay.exchange import Attempt, Exchange, Refused, model_of
from corral.serving.relay.http import (
    HOP_BY_HOP,
    LAST_PIECE,
    Events,
    Headers,
    Problem,
    Request,
    error_event,
    head,
    piece,
)
from corral.serving.relay.tunnel import Tunnel
from corral.serving.relay.upstream import Pool

MODEL_PATHS = frozenset({b"/v1/chat/completions", b"/v1/completions", b"/v1/embeddings"})
MODELS_PATH = b"/v1/models"
MODEL_BODY_MAX = 1024 * 1024
BODY_MAX = 64 * 1024 * 1024
EVENTS = b"text/event-stream"
log = logging.getLogger(__name__)


class Counters(msgspec.Struct):
    """What passed since the start. Bytes are those of bodies."""

    requests: int = 0
    chunks: int = 0
    bytes_out: int = 0
    broken: int = 0


class Shared(msgspec.Struct, frozen=True):
    """What all connections share."""

    board: Board
    pool_of: Callable[[Place, Live], Pool]
    counters: Counters


class Caller(asyncio.Protocol):
    """One connection; requests on it are answered one after the other."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._target = b""
        self._headers: Headers = []
        self._body = bytearray()
        self._body_max = BODY_MAX
        self._too_large = False
        self._waiting: deque[Request] = deque()
        self._task: asyncio.Task[None] | None = None
        self._out: Out | None = None
        self._tunnel: Tunnel | None = None
        self._full = False

    # ---- asyncio.Protocol ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        # uvloop's transports are none of asyncio's classes.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Read on."""
        if self._tunnel is not None:
            self._tunnel.from_caller(data)
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            return
        except httptools.HttpParserError as error:
            self._write(Problem(400, "INVALID_REQUEST", f"no HTTP request ({type(error).__name__})").answer())
            self._close()

    def pause_writing(self) -> None:
        """The caller reads slower than the replica writes."""
        self._full = True
        if self._out is not None:
            self._out.hold(on=True)

    def resume_writing(self) -> None:
        """The caller has caught up."""
        self._full = False
        if self._out is not None:
            self._out.hold(on=False)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody waits for the answer any more."""
        if self._tunnel is not None:
            self._tunnel.close()
        if self._task is not None:
            self._task.cancel()

    # ---- httptools -------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._target, self._headers, self._too_large = b"", [], False
        self._body = bytearray()

    def on_url(self, url: bytes) -> None:
        """Keep the target."""
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header."""
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Say that the body may come, if asked; how large it may be follows from whom it is for."""
        self._body_max = MODEL_BODY_MAX if self._path in MODEL_PATHS else BODY_MAX
        place = self._shared.board.of(self._header(SERVICE_HEADER.lower().encode()).decode("latin-1"))
        if place is not None:
            self._body_max = min(self._body_max, place.route.traffic.body_max_bytes)
        length = self._header(b"content-length")
        self._too_large = length.isdigit() and int(length) > self._body_max
        if not self._too_large and self._header(b"expect").lower() == b"100-continue":
            self._write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        """Keep a piece of the body, while it is not too large."""
        if not self._too_large:
            self._body += data
            self._too_large = len(self._body) > self._body_max
            if self._too_large:
                self._body.clear()

    def on_message_complete(self) -> None:
        """The request is whole."""
        request = Request(self._parser.get_method(), self._target, self._headers, bytes(self._body))
        request.upgrade = self._parser.should_upgrade()
        request.last = not request.upgrade and not self._parser.should_keep_alive()
        self._waiting.append(request)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._answer_all())

    @property
    def _path(self) -> bytes:
        return self._target.partition(b"?")[0]

    def _header(self, name: bytes) -> bytes:
        return next((value for known, value in self._headers if known == name), b"")

    # ---- answering -------------------------------------------------------------------------------------------------

    async def _answer_all(self) -> None:
        try:
            while self._waiting and self._transport is not None and not self._transport.is_closing():
                await self._answer(self._waiting.popleft())
        finally:
            self._task = None

    async def _answer(self, request: Request) -> None:
        self._shared.counters.requests += 1
        openai = request.target.partition(b"?")[0].startswith(b"/v1/")
        try:
            await self._dispatch(request)
        except Refused as refused:
            self._write(refused.problem.answer(openai=openai, head_only=request.method == b"HEAD"))
        except Exception:
            log.exception("a request could not be passed on")
            if self._out is None:
                problem = Problem(500, "RELAY_FAULT", "the relay could not pass this on", 1)
                self._write(problem.answer(openai=openai, head_only=request.method == b"HEAD"))
            self._close()
        if self._too_large or request.last:
            self._close()

    async def _dispatch(self, request: Request) -> None:
        if self._too_large:
            words = f"the body is larger than {self._body_max} bytes"
            raise Refused(Problem(413, "BODY_TOO_LARGE", words))
        place = self._place(request)
        if place is None:
            return
        if request.upgrade:
            await self._open_tunnel(place, request)
        else:
            await self._pass_on(place, request)

    def _place(self, request: Request) -> Place | None:
        """Return whom a request is for; ``None`` when it was answered here. Raises ``Refused``."""
        board = self._shared.board
        name = request.header(SERVICE_HEADER.lower().encode()).decode("latin-1")
        path = request.target.partition(b"?")[0]
        if name:
            place = board.of(name)
            if place is None:
                raise Refused(Problem(404, "NO_SERVICE", f"there is no service {name}"))
            return place
        if path == MODELS_PATH and request.method in (b"GET", b"HEAD"):
            self._write(_models(board, head_only=request.method == b"HEAD"))
            return None
        if path not in MODEL_PATHS:
            raise Refused(Problem(404, "NO_SERVICE", "no service is named"))
        model = model_of(request.body)
        place = board.of_model(model) if model is not None else None
        if place is None:
            words = "the body names no model" if model is None else f"there is no model {model}"
            raise Refused(Problem(400 if model is None else 404, "NO_MODEL", words))
        return place

    async def _pass_on(self, place: Place, request: Request) -> None:
        exchange = Exchange(self._shared.board, place, request, self._shared.pool_of)
        try:
            attempt = await exchange.answered()
            assert self._transport is not None, "it is connected"
            self._out = Out(self._transport, attempt, self._shared.counters, place.route.traffic.idle_s)
            if self._full:
                # Its first pieces were more than the caller takes at once.
                self._out.hold(on=True)
            await self._out.done()
            exchange.over(attempt)
        finally:
            self._out = None
            exchange.give_up()

    async def _open_tunnel(self, place: Place, request: Request) -> None:
        live = self._shared.board.choose(place, request, ())
        place.requests += 1
        if live is None or self._transport is None:
            place.errors += 1
            raise Refused(self._shared.board.refusal(place))
        token = place.route.secrets.token if place.route.traffic.guard == "token" else None
        pool = self._shared.pool_of(place, live)
        tunnel = Tunnel(self._transport, live)
        try:
            await tunnel.open(pool, request.sent_to_replica(token), place.route.traffic.connect_s)
        except OSError as error:
            place.errors += 1
            raise Refused(Problem(502, "REPLICA_FAILED", f"{place.route.service}: {error}")) from error
        self._tunnel = tunnel

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class Out:
    """Passes an answer on to the caller as it comes."""

    def __init__(self, transport: asyncio.Transport, attempt: Attempt, counters: Counters, idle_s: float) -> None:
        self._transport = transport
        self._attempt = attempt
        self._counters = counters
        self._idle_s = idle_s
        self._heard_at = time.monotonic()
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        answer = attempt.answer
        self._events = Events() if answer.header(b"content-type").lower().startswith(EVENTS) else None
        headers = [pair for pair in answer.headers if pair[0] not in HOP_BY_HOP]
        sized = any(name == b"content-length" for name, _ in headers) and self._events is None
        bodiless = answer.head_only or answer.status in (204, 304)
        self._chunked = not sized and not bodiless
        if self._chunked:
            headers = [pair for pair in headers if pair[0] != b"content-length"]
            headers.append((b"transfer-encoding", b"chunked"))
        headers.append((REPLICA_HEADER.lower().encode(), attempt.live.backend.name.encode()))
        self._transport.write(head(answer.status, headers))
        answer.give_to(self)

    async def done(self) -> None:
        """Return when all was passed on; raise ``CancelledError`` when the caller goes."""
        while not self._done.done():
            left_s = self._idle_s - (time.monotonic() - self._heard_at)
            if left_s <= 0:
                self._attempt.answer.fail(f"it was silent for {self._idle_s:g} s")
                self._attempt.abandon()
                return
            await asyncio.wait([self._done], timeout=left_s)

    def hold(self, *, on: bool) -> None:
        """Let the replica wait for the caller."""
        if self._attempt.connection is not None and not self._attempt.answer.complete:
            self._attempt.connection.hold(on=on)

    def chunk(self, data: bytes) -> None:
        """Pass a piece on."""
        self._heard_at = time.monotonic()
        if self._events is not None:
            data = self._events.feed(data)
        if data:
            self._counters.chunks += 1
            self._counters.bytes_out += len(data)
            self._transport.write(piece(data) if self._chunked else data)

    def end(self) -> None:
        """Say that it is whole."""
        rest = self._events.rest() if self._events is not None else b""
        if self._chunked:
            self._transport.write((piece(rest) if rest else b"") + LAST_PIECE)
        self._finish()

    def broken(self, reason: str) -> None:
        """Say that the rest will not come: by an event in a stream of events, else by breaking off."""
        self._counters.broken += 1
        if self._events is not None:
            words = f"replica {self._attempt.live.backend.name} was lost: {reason}"
            self._transport.write(piece(error_event(words)) + LAST_PIECE)
        else:
            self._transport.abort()
        self._finish()

    def _finish(self) -> None:
        if not self._done.done():
            self._done.set_result(None)


def _models(board: Board, *, head_only: bool) -> bytes:
    data = [{"id": model, "object": "model", "created": 0, "owned_by": tenant} for model, tenant in board.models()]
    body = msgspec.json.encode({"object": "list", "data": data})
    told = head(200, [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))])
    return told + (b"" if head_only else body)
