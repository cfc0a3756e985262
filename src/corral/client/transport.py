"""HTTP/1.1 with kept connections, on the standard library's http.client.

Why not httpx: a command is a process, and each pays for its imports. On the machine where this was measured http.client
loads in 25 ms and httpx in 100 ms; a request on a kept connection costs 0.07 ms of CPU against 0.29 ms, which is the
client's part of a submit. The client needs no more of HTTP than this: one host, JSON, streams, TLS by the system's
certificates. Another transport (proxies, HTTP/2) can be passed to the client: :class:`Transport` is all it needs.
"""

from __future__ import annotations

import http.client
import os
import select
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

import msgspec

from corral.model.errors import UsageError

if TYPE_CHECKING:
    import ssl

CONNECT_TIMEOUT_S = 5.0
CHUNK_BYTES = 1 << 16
KEPT_MAX = 8


class NotSent(ConnectionError):
    """The pool could not be reached: the request never left."""


class Broken(ConnectionError):
    """The connection broke after the request left: it may have been carried out."""


class Reply(msgspec.Struct, frozen=True):
    """A complete answer. ``headers`` have lower-case names."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Stream(Protocol):
    """An answer that is read as it comes."""

    status: int
    headers: Mapping[str, str]

    def read(self) -> bytes:
        """Return the next bytes as soon as there are some, ``b""`` at the end. Raises ``Broken``."""

    def close(self) -> None:
        """End the connection."""


class Transport(Protocol):
    """What the client needs of HTTP. Both calls raise ``NotSent`` or ``Broken``."""

    def request(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, timeout_s: float) -> Reply:
        """Send a request and return the complete answer."""

    def stream(self, url: str, headers: Mapping[str, str], idle_timeout_s: float) -> Stream:
        """Send a GET request and return its answer for reading; ``idle_timeout_s`` limits each wait for bytes."""

    def close(self) -> None:
        """Close the kept connections."""


class PlainTransport:
    """Keeps up to eight idle connections to one origin. Threads may share it.

    ``ca_file`` is what certificates are checked against (``None``: the authorities of the system). ``pinned`` names the
    file of the only certificate that is accepted at an origin, whatever names it bears; ``None`` pins nothing.
    """

    def __init__(
        self,
        ca_file: str | os.PathLike[str] | None = None,
        pinned: Callable[[str], str | None] = lambda _: None,
    ) -> None:
        self._ca_file = ca_file
        self._pinned = pinned
        self._idle: list[tuple[str, http.client.HTTPConnection]] = []

    def request(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, timeout_s: float) -> Reply:
        """Send a request and return the complete answer."""
        origin, target = _split(url)
        connection = self._take(origin, timeout_s)
        try:
            response = _exchange(connection, method, target, headers, body)
            try:
                data = response.read()
            except (OSError, http.client.HTTPException) as error:
                raise Broken(_reason(error)) from error
        except BaseException:
            connection.close()
            raise
        if response.will_close or len(self._idle) >= KEPT_MAX:
            connection.close()
        else:
            self._idle.append((origin, connection))
        return Reply(response.status, {name.lower(): value for name, value in response.getheaders()}, data)

    def stream(self, url: str, headers: Mapping[str, str], idle_timeout_s: float) -> Stream:
        """Send a GET request on a connection of its own."""
        origin, target = _split(url)
        connection = self._connect(origin, idle_timeout_s)
        try:
            return _PlainStream(connection, _exchange(connection, "GET", target, headers, None))
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        """Close the kept connections."""
        while self._idle:
            self._idle.pop()[1].close()

    def _take(self, origin: str, timeout_s: float) -> http.client.HTTPConnection:
        """Return a kept connection that the pool has not closed meanwhile, else a new one."""
        while self._idle:
            try:
                known, connection = self._idle.pop()
            except IndexError:  # another thread took the last one
                break
            if known == origin and connection.sock is not None and not _readable(connection):
                connection.sock.settimeout(timeout_s)
                return connection
            connection.close()
        return self._connect(origin, timeout_s)

    def _connect(self, origin: str, timeout_s: float) -> http.client.HTTPConnection:
        parts = urlsplit(origin)
        host = parts.hostname or ""
        connection: http.client.HTTPConnection
        if parts.scheme == "https":
            context = _trusting(self._ca_file, self._pinned(origin))
            connection = http.client.HTTPSConnection(host, parts.port, timeout=CONNECT_TIMEOUT_S, context=context)
        else:
            connection = http.client.HTTPConnection(host, parts.port, timeout=CONNECT_TIMEOUT_S)
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            if (doubt := getattr(error, "verify_message", None)) is not None:
                raise UsageError(f"the certificate of {origin} is not trusted: {doubt}", hint=hint_for(doubt)) from None
            raise NotSent(_reason(error)) from error
        connection.sock.settimeout(timeout_s)
        return connection


def hint_for(doubt: str) -> str:
    """Return what to do about a certificate, by what is wrong with it."""
    if "mismatch" in doubt:
        return "use an address that the certificate names; `corral head --address` takes one into the head's own"
    return _CA_HINT


class _PlainStream:
    """Reads an answer of http.client as it comes."""

    def __init__(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers: Mapping[str, str] = {name.lower(): value for name, value in response.getheaders()}
        self._connection = connection
        self._response = response

    def read(self) -> bytes:
        """Return the next bytes."""
        try:
            return self._response.read1(CHUNK_BYTES)
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise Broken(_reason(error)) from error

    def close(self) -> None:
        """End the connection."""
        self._response.close()
        self._connection.close()


_CA_HINT = "name the file of its authority in CORRAL_CA_FILE"


def _trusting(ca_file: str | os.PathLike[str] | None, pinned: str | None) -> ssl.SSLContext:
    """Return a context that checks certificates. Raises ``UsageError`` when what they are checked against is no such.

    A pinned certificate is all that is believed: who holds its key is the pool, whatever address it was reached by.
    """
    import ssl

    try:
        if pinned is None:
            return ssl.create_default_context(cafile=ca_file)
        context = ssl.create_default_context(cadata=_first_certificate(Path(pinned).read_text(encoding="ascii")))
    except (OSError, ValueError) as error:
        raise UsageError(f"{pinned or ca_file} holds no certificate: {_reason(error)}", hint=_CA_HINT) from None
    context.check_hostname = False
    # A certificate that was issued by somebody is the end of the chain here, too.
    context.verify_flags = ssl.VERIFY_X509_TRUSTED_FIRST | ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def _first_certificate(text: str) -> str:
    """Return the first certificate of a PEM text: the server's own, whatever chain follows it."""
    _, begin, rest = text.partition("-----BEGIN CERTIFICATE-----")
    body, end, _ = rest.partition("-----END CERTIFICATE-----")
    if not end:
        raise ValueError("there is no PEM block in it")
    return f"{begin}{body}{end}\n"


def _exchange(
    connection: http.client.HTTPConnection, method: str, target: str, headers: Mapping[str, str], body: bytes | None
) -> http.client.HTTPResponse:
    try:
        connection.request(method, target, body, dict(headers))
        return connection.getresponse()
    except (OSError, http.client.HTTPException) as error:
        raise Broken(_reason(error)) from error


def _readable(connection: http.client.HTTPConnection) -> bool:
    """Return whether an idle connection has something to read: its end, or what nobody asked for."""
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))


def _split(url: str) -> tuple[str, str]:
    start = url.index("/", url.index("://") + 3)
    return url[:start], url[start:]


def _reason(error: BaseException) -> str:
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).splitlines()[0]


def blocks(stream: Stream) -> Iterator[list[str]]:
    """Yield the lines of each block of a server-sent event stream (WHATWG HTML, 9.2.6); comments are left out."""
    rest = b""
    lines: list[str] = []
    while data := stream.read():
        *complete, rest = (rest + data).split(b"\n")
        for raw in complete:
            line = raw.rstrip(b"\r").decode(errors="replace")
            if not line and lines:
                yield lines
                lines = []
            elif line and not line.startswith(":"):
                lines.append(line)
