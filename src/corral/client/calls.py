"""One call of the API: authorisation, repetition while the daemon restarts, errors as the classes of the tree."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from typing import NamedTuple, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from corral.client.discovery import Address, Discovery, checked_url
from corral.client.transport import Broken, NotSent, Reply, Stream, Transport
from corral.model.errors import (
    CorralError,
    DaemonNotRunning,
    NotLeader,
    Refusal,
    StoreAway,
    Unauthenticated,
    Unavailable,
    UsageError,
)

T = TypeVar("T")
BACKOFF_FIRST_S = 0.02
BACKOFF_MAX_S = 1.0
STREAM_IDLE_S = 45.0
"""The pool sends a heartbeat on a quiet stream every 15 s: three missing ones are a dead connection."""

IN_DOUBT = "it may still be carried out; look, or repeat"

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
        self._sent = False
        self.away: StoreAway | None = None
        """What a pool said whose database does not answer: it tells more than heads that are not there."""

    def told(self, error: StoreAway, *, changes: bool) -> None:
        """Note that the database was away. Of several answers to a change any may be the one that is carried out."""
        self.away = StoreAway(error.refusal.message, hint=IN_DOUBT) if changes and self._sent else error
        self._sent = True

    def broke(self) -> None:
        """Note that a connection broke after something was sent: it may be carried out."""
        self._sent = True
        if self.away is not None:
            self.away = StoreAway(self.away.refusal.message, hint=IN_DOUBT)

    def pause(self) -> bool:
        """Wait a little; return False instead when the time is over."""
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            return False
        # Half of it at random: many clients of one restarted daemon do not come back at once.
        time.sleep(min(left_s, self._pause_s * random.uniform(0.5, 1.0)))  # noqa: S311
        self._pause_s = min(BACKOFF_MAX_S, self._pause_s * 2)
        return True


class Target(NamedTuple):
    """Where the pool was found, and the headers of every call to it."""

    origin: str
    headers: Mapping[str, str]

    def url(self, path: str, query: Query | None) -> str:
        """Return the URL of a path under ``/v1``; what is ``None`` in the query is left out."""
        said = {name: _written(value) for name, value in (query or {}).items() if value is not None}
        return f"{self.origin}/v1{path}{'?' + urlencode(said) if said else ''}"


class Caller:
    """Makes calls of ``/v1``; ``timeout_s`` limits one answer, ``retry_s`` all repetitions of a call together."""

    def __init__(self, discovery: Discovery, transport: Transport, *, timeout_s: float, retry_s: float) -> None:
        self.discovery = discovery
        self.transport = transport
        self.timeout_s = timeout_s
        self.retry_s = retry_s
        self._target: Target | None = None
        self._turn = 0
        self._leader: str | None = None

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
        long_poll: bool = False,
    ) -> Reply:
        """Make a call and return its answer; raise the error of a problem document.

        A call that is not ``repeatable`` is repeated only while it has surely not reached the pool. A ``long_poll``
        that broke after a while was well until then: the time of looking for the pool begins when it is lost. Raises
        ``DaemonNotRunning`` when nobody answers and ``Unavailable`` when the connection broke, ``StoreAway``
        rather than either of them when a head said that meanwhile.
        """
        patience, limit_s, followed = Patience(self.retry_s), timeout_s or self.timeout_s, False
        while True:
            target = None
            begun = time.monotonic()
            try:
                target = self._found()
                url = target.url(path, query)
                typed = {"Content-Type": "application/json"} if body else {}
                all_headers = {**target.headers, **typed, **(headers or {})}
                reply = self.transport.request(method, url, all_headers, body, limit_s)
                if reply.status < 300:
                    return reply
                error = self._refusal(target, reply, url)
                if isinstance(error, NotLeader):
                    # It was not carried out, whatever it is. To a leader that was named it goes at once, but only once.
                    followed = self._follow(target, reply.headers) and not followed
                    if not followed and not patience.pause():
                        raise patience.away or error
                    continue
                if isinstance(error, StoreAway):
                    patience.told(error, changes=method != "GET")
                    error = patience.away or error
                if long_poll and time.monotonic() - begun > BACKOFF_MAX_S:
                    patience = Patience(self.retry_s)
                if reply.status != 503 or not error.retryable or not repeatable or not patience.pause():
                    raise error
            except NotSent:
                self._again(patience, target)
            except Broken as broken:
                # A pool that was silent for the whole time limit was not well.
                if long_poll and BACKOFF_MAX_S < time.monotonic() - begun < limit_s:
                    patience = Patience(self.retry_s)
                self._broke(patience, target, broken, changes=method != "GET", repeatable=repeatable)

    def _broke(
        self, patience: Patience, target: Target | None, broken: Broken, *, changes: bool, repeatable: bool
    ) -> None:
        """Look for the pool again after a pause, or raise what is known of why there is no answer."""
        if changes:
            patience.broke()
        if not repeatable or not patience.pause():
            doubt = "" if repeatable else "; whether the call was carried out is unknown"
            origin = target.origin if target else ""
            raise patience.away or Unavailable(f"the connection to {origin} broke: {broken}{doubt}") from None
        self._forget(target)

    def _refusal(self, target: Target, reply: Reply, url: str) -> CorralError:
        """Return the error of an answer; look for the pool again where another place may answer better."""
        error = error_of(reply.status, reply.headers, reply.body, url)
        # The pool may have been made anew, with a new token; a head may be cut off alone, and another one lead.
        if reply.status == 401 or isinstance(error, StoreAway):
            self._forget(target)
        return error

    def stream(self, path: str, query: Query | None, headers: Mapping[str, str] | None = None) -> Stream:
        """Open a stream of server-sent events, once; raise ``NotSent`` or ``Broken``, or a problem document's error."""
        followed = False
        while True:
            target = self._found()
            url, accept = target.url(path, query), {"Accept": "text/event-stream"}
            stream = self.transport.stream(url, {**target.headers, **accept, **(headers or {})}, STREAM_IDLE_S)
            if stream.status < 300:
                return stream
            body = b""
            try:
                while data := stream.read():
                    body += data
            finally:
                stream.close()
            error = error_of(stream.status, stream.headers, body, url)
            if not isinstance(error, NotLeader):
                raise error
            if not self._follow(target, stream.headers) or followed:
                raise NotSent(str(error))
            followed = True

    def lost(self, patience: Patience) -> None:
        """Note that a stream broke: look for the pool again after a pause, or raise ``DaemonNotRunning``."""
        if self._leader is None or self._target is not None:
            self._again(patience, self._target)
        elif not patience.pause():
            raise self.discovery.not_running(self._leader)

    def _follow(self, target: Target, headers: Mapping[str, str]) -> bool:
        """Turn to the leader that a head named, or, when it knows none, to the next head; return which."""
        leader = headers.get("location")
        self._forget(target)
        if leader is None:
            return False
        parts = urlsplit(leader)
        self._leader = checked_url(f"{parts.scheme}://{parts.netloc}")
        return True

    def _again(self, patience: Patience, target: Target | None) -> None:
        self._forget(target)
        if not self.discovery.may_return() or not patience.pause():
            raise patience.away or self.discovery.not_running(target.origin if target else "") from None

    def _forget(self, target: Target | None) -> None:
        """Look for the pool again at the next call, at its next head; unless another thread has found it meanwhile."""
        if target is not None and self._target is target:
            self._target = self._leader = None
            self._turn += 1

    def _addresses(self) -> tuple[Address, ...]:
        try:
            return self.discovery.addresses()
        except DaemonNotRunning as error:
            if self.discovery.may_return():
                raise NotSent(str(error)) from None
            raise

    def _found(self) -> Target:
        """Return where the pool is, as it is known or looked up now."""
        target = self._target
        if target is None:
            known = self._addresses()
            address = known[self._turn % len(known)]
            if not address.token.isascii() or not address.token.isprintable() or " " in address.token:
                raise Unauthenticated("the token holds characters that no token has")
            headers = {"Authorization": f"Bearer {address.token}", "Accept": "application/json"}
            target = self._target = Target(self._leader or checked_url(address.url), headers)
        return target


def _written(value: str | float) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def segment(text: str) -> str:
    """Return a name as one segment of a path. Raises ``UsageError`` for one that cannot be."""
    if not text or text in {".", ".."} or "/" in text or not text.isprintable():
        raise UsageError(f"{text!r} is neither a number nor a name")
    return quote(text, safe="")


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
