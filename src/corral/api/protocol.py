"""HTTP/1.1 as uvicorn speaks it, with bounds on what comes before anybody knows who is calling.

Neither uvicorn nor httptools limits the bytes of a request's head, or the time that it takes: without a token one
could fill the memory of the daemon or hold all its connections.
"""

from __future__ import annotations

from asyncio import TimerHandle, Transport
from http import HTTPStatus

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from corral.model.errors import UsageError
from corral.wire.v1.problem import MEDIA_TYPE, Problem

HEAD_BYTES_MAX = 64 * 1024
"""Of the request line and the headers together. What one read of the socket brings (256 KiB) may come on top."""
HEAD_S_MAX = 20.0
"""From the first byte, or from the connection on, to the end of the headers."""


class BoundedHttp(HttpToolsProtocol):
    """One connection. A head that is too large (431) or too slow (408), and what is not HTTP (400), ends it."""

    _in_head = True
    _head_bytes = 0
    _heads = 0
    _limit: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Begin to wait for a head."""
        super().connection_made(transport)
        self._limit = self.loop.call_later(HEAD_S_MAX, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read the next bytes, and count them while a head is not complete."""
        before = self._heads
        super().data_received(data)
        # A head that began in these bytes is not counted yet: the body of the request before may stand in them, too.
        if self._in_head and self._heads == before:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                size = f"{HEAD_BYTES_MAX // 1024} KiB"
                self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"the request's head is larger than {size}")

    def on_message_begin(self) -> None:
        """Note that a head begins."""
        super().on_message_begin()
        self._in_head = True
        self._head_bytes = 0
        self._heads += 1
        if self._limit is None:
            self._limit = self.loop.call_later(HEAD_S_MAX, self._too_slow)

    def on_headers_complete(self) -> None:
        """Note that the head is complete: what follows is bounded by the application."""
        self._in_head = False
        self._stop_waiting()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP."""
        self._refuse(HTTPStatus.BAD_REQUEST, msg.removesuffix(".").lower())

    def _stop_waiting(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None

    def _too_slow(self) -> None:
        self._limit = None
        self._refuse(HTTPStatus.REQUEST_TIMEOUT, f"the request's head did not come within {HEAD_S_MAX:g} s")

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        """Answer with a problem document, unless another answer is on its way, and end the connection."""
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:
            problem = Problem.of_error(UsageError(message), status)
            body = problem.json_bytes()
            head = (
                f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {MEDIA_TYPE}\r\n"
                f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()
