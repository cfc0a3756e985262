"""Talking to the heads of a pool from another machine: by certificate, not by name."""

from __future__ import annotations

import contextlib
import ssl
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from corral.client.calls import decoded, error_of
from corral.client.transport import Broken, NotSent, PlainTransport, Reply
from corral.model.errors import (
    CertificateMismatch,
    ClockSkew,
    CorralError,
    HeadUnreachable,
    InvalidField,
    NotLeader,
    Unavailable,
)
from corral.model.ids import NodeId
from corral.ports.membership import JoinAsk, Joined
from corral.runtime.machines.cluster import Head
from corral.runtime.machines.tls import fingerprint
from corral.runtime.options import DEFAULT_PORT

TIMEOUT_S = 10.0
TLS_TRIAL_S = 3.0
LOOK_S = 3.0


def head_of(text: str, fingerprints: Sequence[str]) -> Head:
    """Return the head at HOST[:PORT], whose certificate is one of ``fingerprints`` (none: no TLS).

    Raises ``InvalidField`` (also for a head that speaks TLS, without fingerprints), ``HeadUnreachable`` and
    ``CertificateMismatch``.
    """
    url = address_of(text, tls=bool(fingerprints))
    parts = urlsplit(url)
    if not fingerprints:
        if _speaks_tls((parts.hostname or "", parts.port or DEFAULT_PORT)):
            raise InvalidField(
                f"the head at {url.partition('://')[2]} speaks TLS: no token goes there in clear",
                field="--insecure",
                hint="leave it out, and take the whole token that `corral token join` prints on the head",
            )
        return Head(url)
    try:
        pem = ssl.get_server_certificate((parts.hostname or "", parts.port or DEFAULT_PORT), timeout=TIMEOUT_S)
    except ssl.SSLError:
        raise HeadUnreachable(f"what answers at {url} does not speak TLS", hint="is that the port of a head?") from None
    except OSError as error:
        raise unreachable(url, error.strerror or str(error)) from None
    if fingerprint(pem) not in fingerprints:
        raise CertificateMismatch(
            f"the certificate of {url} is not the one that the join token names",
            hint="get the token from this very head (`corral token join`); if it is, somebody stands between",
        )
    return Head(url, pem)


def _speaks_tls(place: tuple[str, int]) -> bool:
    """Return whether a TLS server answers. It is told nothing, and nothing of it is believed."""
    try:
        ssl.get_server_certificate(place, timeout=TLS_TRIAL_S)
    except (OSError, ValueError):
        # It says something else, or nothing; who asks it next learns which.
        return False
    return True


def address_of(text: str, *, tls: bool) -> str:
    """Return the URL of HOST[:PORT]. Raises ``InvalidField``."""
    scheme = "https" if tls else "http"
    bare = text.removeprefix("https://").removeprefix("http://").rstrip("/")
    host, port, whole = "", 0, ""
    with contextlib.suppress(ValueError):
        parts = urlsplit(f"{scheme}://{bare}")
        host, port, whole = parts.hostname or "", parts.port or DEFAULT_PORT, parts.netloc
    if not host or bare != whole or "@" in bare or " " in bare:
        raise InvalidField(f"{text!r} is no HOST or HOST:PORT", field="HEAD", hint="write it like 10.0.0.1:7420")
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def unreachable(url: str, reason: str) -> HeadUnreachable:
    """Return the error for a head that does not answer."""
    return HeadUnreachable(f"no head answers at {url}: {reason.lower()}", hint="is it up, and is the port open?")


def join_at(head: Head, secret: str, ask: JoinAsk) -> Joined:
    """Ask a head to let this machine in. Raises what it answers, and what speaks against its certificate.

    The clock that it is told is that of now: another head may have been waited for in vain since ``ask`` was made.
    """
    body = msgspec.json.encode(replace(ask, clock=time.time()))
    return decoded(_post(head, secret, "/v1/join", body).body, Joined)


def leave_at(head: Head, secret: str, node: NodeId, *, drain: bool = False) -> int:
    """Tell a head that a node leaves, and is to be emptied if ``drain``; return how many gangs it has by its account.

    Raises what the head answers, ``HeadUnreachable`` and ``CertificateMismatch``.
    """
    body = msgspec.json.encode({"drain": drain})
    return decoded(_post(head, secret, f"/v1/nodes/{node}/leave", body).body, _Leaving).tasks


def is_there(head: Head) -> bool:
    """Return whether a head answers, as the leader or as one that stands by."""
    try:
        _exchange(head, "GET", "/v1/health", {}, None, LOOK_S)
    except CorralError:
        return False
    return True


class _Leaving(msgspec.Struct, frozen=True):
    tasks: int


def _post(head: Head, secret: str, path: str, body: bytes) -> Reply:
    headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
    return _exchange(head, "POST", path, headers, body, TIMEOUT_S)


def _exchange(
    head: Head, method: str, path: str, headers: Mapping[str, str], body: bytes | None, timeout_s: float
) -> Reply:
    """Return what a head answers. Raises what it refuses with."""
    with _pinned(head) as file:
        transport = PlainTransport(pinned=lambda _: file)
        url = head.url + path
        try:
            reply = transport.request(method, url, {"Accept": "application/json", **headers}, body, timeout_s)
        except NotSent as error:
            raise unreachable(head.url, str(error)) from None
        except Broken as error:
            raise Unavailable(f"the connection to {head.url} broke: {error}") from None
        except CorralError as error:
            raise _distrust(head, error) from None
        finally:
            transport.close()
    if reply.status >= 300:
        refused = error_of(reply.status, reply.headers, reply.body, url)
        if isinstance(refused, NotLeader):
            refused.leader = reply.headers.get("location", "").removesuffix(path)
        raise refused
    return reply


def _distrust(head: Head, error: CorralError) -> CorralError:
    """Return what is wrong with a certificate that was the head's: it is another one, or its time is not now."""
    doubt = error.refusal.message
    here = f"the clock of this machine says {time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC"
    if "not yet valid" in doubt:
        return ClockSkew(
            f"{here}, when the certificate of {head.url} is not valid yet", hint="set it by NTP, then join again"
        )
    if "has expired" in doubt:
        return CertificateMismatch(
            f"the certificate of {head.url} has expired: {here}",
            hint="set it by NTP if that is wrong; else the head needs another certificate",
        )
    return CertificateMismatch(f"{head.url} has another certificate than before: {doubt}")


@contextlib.contextmanager
def _pinned(head: Head) -> Iterator[str | None]:
    """Lay the certificate of a head down where the transport reads it."""
    if not head.certificate:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="corral-") as folder:
        file = Path(folder) / "head.pem"
        file.write_text(head.certificate)
        yield str(file)
