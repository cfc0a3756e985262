"""HTTP/1.1 as the relay writes it (RFC 9112): heads, problems, pieces. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from http import HTTPStatus

import msgspec

from corral.model.routes import GUARD_HEADER, SERVICE_HEADER

Headers = list[tuple[bytes, bytes]]

HOP_BY_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade"}
)
"""Headers of one connection (RFC 9110, 7.6.1): they are not passed on."""

_TAKEN_AWAY = HOP_BY_HOP | {b"expect", b"content-length", SERVICE_HEADER.lower().encode()}

IDEMPOTENT = frozenset({b"GET", b"HEAD", b"OPTIONS", b"TRACE", b"PUT", b"DELETE"})
"""RFC 9110, 9.2.2."""


class Request(msgspec.Struct):
    """A whole request of a caller. Header names are in lower case. After the ``last`` one the caller closes."""

    method: bytes
    target: bytes
    headers: Headers
    body: bytes = b""
    upgrade: bool = False
    last: bool = False

    def header(self, name: bytes) -> bytes:
        """Return a header, empty when it is not there."""
        return next((value for known, value in self.headers if known == name), b"")

    @property
    def idempotent(self) -> bool:
        """Return whether it may be sent twice without being asked twice (a POST: with an ``Idempotency-Key``)."""
        return self.method in IDEMPOTENT or bool(self.header(b"idempotency-key"))

    def sent_to_replica(self, guard_token: str | None) -> bytes:
        """Return it as a replica gets it, over a connection that stays open."""
        lines = [b"%s %s HTTP/1.1\r\n" % (self.method, self.target)]
        lines += [b"%s: %s\r\n" % pair for pair in self.headers if pair[0] not in _TAKEN_AWAY]
        if guard_token:
            lines.append(b"%s: %s\r\n" % (GUARD_HEADER.encode(), guard_token.encode()))
        if self.upgrade:
            lines.append(b"connection: upgrade\r\nupgrade: %s\r\n" % self.header(b"upgrade"))
        if self.body or self.method in (b"POST", b"PUT", b"PATCH"):
            lines.append(b"content-length: %d\r\n" % len(self.body))
        return b"".join((*lines, b"\r\n", self.body))


def head(status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the status line and the headers of an answer."""
    lines = [b"HTTP/1.1 %d %s\r\n" % (status, _phrase(status))]
    lines += [b"%s: %s\r\n" % pair for pair in headers]
    return b"".join((*lines, b"\r\n"))


def _phrase(status: int) -> bytes:
    try:
        return HTTPStatus(status).phrase.encode()
    except ValueError:
        return b"-"


def piece(data: bytes) -> bytes:
    """Return a chunk of an answer of unknown length (RFC 9112, 7.1)."""
    return b"%x\r\n%s\r\n" % (len(data), data)


LAST_PIECE = b"0\r\n\r\n"


class Problem(msgspec.Struct, frozen=True):
    """An answer of the relay itself: why a request was not passed on."""

    status: int
    code: str
    message: str
    retry_after_s: int | None = None

    def answer(self, *, openai: bool = False, head_only: bool = False) -> bytes:
        """Return it as a whole answer: a problem document (RFC 9457), or in the form that OpenAI's clients read."""
        if openai:
            kind = "invalid_request_error" if self.status < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"
            said: dict[str, object] = {"error": {"message": self.message, "type": kind, "code": self.code}}
        else:
            said = {"code": self.code, "message": self.message, "status": self.status}
        body = json.dumps(said).encode()
        media = b"application/json" if openai else b"application/problem+json"
        headers = [(b"content-type", media), (b"content-length", b"%d" % len(body))]
        if self.retry_after_s is not None:
            headers.append((b"retry-after", b"%d" % self.retry_after_s))
        return head(self.status, headers) + (b"" if head_only else body)


def error_event(message: str) -> bytes:
    """Return the event with which a broken stream ends (WHATWG HTML, 9.2, with the body that OpenAI's clients read)."""
    said = {"error": {"message": message, "type": "server_error", "code": "REPLICA_LOST"}}
    return b"event: error\ndata: %s\n\n" % json.dumps(said).encode()


class Events:
    """Passes whole events of a stream on, so that an error event never follows half of another one."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> bytes:
        """Return what is whole by now."""
        data = self._rest + data if self._rest else data
        line, carriage = data.rfind(b"\n\n"), data.rfind(b"\r\n\r\n")
        end = max(line + 2 if line >= 0 else 0, carriage + 4 if carriage >= 0 else 0)
        self._rest = data[end:]
        return data[:end]

    def rest(self) -> bytes:
        """Return what is left at a good end."""
        rest, self._rest = self._rest, b""
        return rest
