"""One call of the API: authorisation, repetition while the daemon restarts, errors as the classes of the tree."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from typing import TypeVar
from urllib.parse import urlencode

import msgspec

from corral.client.discovery import Address, Discovery, checked_url
from corral.client.transport import Broken, NotSent, Reply, Stream, Transport
from corral.model.errors import CorralError, DaemonNotRunning, Refusal, Unauthenticated, Unavailable

T = TypeVar("T")
BACKOFF_FIRST_S = 0.02
BACKOFF_MAX_S = 1.0
STREAM_IDLE_S = 45.0
"""The pool sends a heartbeat on a quiet stream every 15 s: three missing ones are a dead connection."""

Query = Mapping[str, str | int | float | bool | None]


class Problem(msgspec.Struct, frozen=True):
    """A problem document as the client reads it."""

    code: str
    message: str
    field: str | None = None
    hint: str | None = None
    where: str | None = None
    also: tuple[Problem, ...] = ()

    def refusal(self) -> Refusal:
        """Return it as a refusal."""
        return Refusal(self.code, self.message, self.field, self.hint, self.where)


class Patience:
    """How long a call is repeated: with growing pauses, at most ``limit_s`` in all."""

    def __init__(self, limit_s: float) -> None:
        self._deadline = time.monotonic() + limit_s
        self._pause_s = BACKOFF_FIRST_S

    def pause(self) -> bool:
        """Wait a little; return False instead when the time is over."""
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            return False
        # Half of it at random: many clients of one restarted daemon do not come back at once.
        time.sleep(min(left_s, self._pause_s * random.uniform(0.5, 1.0)))  # noqa: S311
        self._pause_s = min(BACKOFF_MAX_S, self._pause_s * 2)
        return True


class Caller:
    """Makes calls of ``/v1``; ``timeout_s`` limits one answer, ``retry_s`` all repetitions of a call together."""

    def __init__(self, discovery: Discovery, transport: Transport, *, timeout_s: float, retry_s: float) -> None:
        self.discovery = discovery
        self.transport = transport
        self.timeout_s = timeout_s
        self.retry_s = retry_s
        self._origin = ""
        self._headers: dict[str, str] = {}

    def call(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        query: Query | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        repeatable: bool = True,
    ) -> Reply:
        """Make a call and return its answer; raise the error of a problem document.

        A call that is not ``repeatable`` is repeated only while it has surely not reached the pool. Raises
        ``DaemonNotRunning`` when nobody answers and ``Unavailable`` when the connection broke.
        """
        patience = Patience(self.retry_s)
        while True:
            try:
                url, own = self._prepare(path, query)
                all_headers = {**own, **({"Content-Type": "application/json"} if body else {}), **(headers or {})}
                reply = self.transport.request(method, url, all_headers, body, timeout_s or self.timeout_s)
                if reply.status < 400:
                    return reply
                error = error_of(reply.status, reply.headers, reply.body, url)
                if reply.status != 503 or not repeatable or not patience.pause():
                    raise error
            except NotSent:
                self._again(patience)
            except Broken as broken:
                if not repeatable or not patience.pause():
                    doubt = "" if repeatable else "; whether the call was carried out is unknown"
                    raise Unavailable(f"the connection to {self._origin} broke: {broken}{doubt}") from None
                self._origin = ""

    def stream(self, path: str, query: Query | None, headers: Mapping[str, str] | None = None) -> Stream:
        """Open a stream of server-sent events, once; raise ``NotSent`` or ``Broken``, or a problem document's error."""
        url, own = self._prepare(path, query)
        accept = {"Accept": "text/event-stream"}
        stream = self.transport.stream(url, {**own, **accept, **(headers or {})}, STREAM_IDLE_S)
        if stream.status < 400:
            return stream
        body = b""
        try:
            while data := stream.read():
                body += data
        finally:
            stream.close()
        raise error_of(stream.status, stream.headers, body, url)

    def lost(self, patience: Patience) -> None:
        """Note that a stream broke: look for the pool again after a pause, or raise ``DaemonNotRunning``."""
        self._again(patience)

    def _again(self, patience: Patience) -> None:
        origin, self._origin = self._origin, ""
        if not self.discovery.may_return() or not patience.pause():
            raise self.discovery.not_running(origin) from None

    def _address(self) -> Address:
        try:
            return self.discovery.address()
        except DaemonNotRunning as error:
            if self.discovery.may_return():
                raise NotSent(str(error)) from None
            raise

    def _prepare(self, path: str, query: Query | None) -> tuple[str, dict[str, str]]:
        """Return the URL and the headers of a call; look for the pool when it is not known."""
        if not self._origin:
            address = self._address()
            if not address.token.isascii() or not address.token.isprintable() or " " in address.token:
                raise Unauthenticated("the token holds characters that no token has")
            self._origin = checked_url(address.url)
            self._headers = {"Authorization": f"Bearer {address.token}", "Accept": "application/json"}
        said = {name: _written(value) for name, value in (query or {}).items() if value is not None}
        return f"{self._origin}/v1{path}{'?' + urlencode(said) if said else ''}", self._headers


def _written(value: str | float) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def decoded(body: bytes | str, kind: type[T]) -> T:
    """Return the value of an answer. Raises ``DaemonNotRunning`` when what answered does not speak as a pool does."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        reason = str(error).splitlines()[0]
        raise DaemonNotRunning(
            f"what answers is no pool of corral, or one of another version ({reason})", hint="compare corral --version"
        ) from None


def error_of(status: int, headers: Mapping[str, str], body: bytes, url: str) -> CorralError:
    """Return the error of an answer with status 400 or more."""
    try:
        problem = msgspec.json.decode(body, type=Problem)
    except msgspec.DecodeError:  # the root of ValidationError too
        kind = headers.get("content-type", "no content type")
        return DaemonNotRunning(f"what answers at {url} is no pool of corral (HTTP {status}, {kind})")
    error = CorralError.of(problem.refusal())
    error.also = tuple(other.refusal() for other in problem.also)
    return error
