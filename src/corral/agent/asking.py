"""Asking a replica over the network: a connection, or a GET. Bounded in time and in what is read."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import ssl

import msgspec

from corral.agent.threads import in_thread
from corral.model.routes import GUARD_HEADER

HEAD_BYTES_MAX = 1 << 16
BODY_BYTES_MAX = 1 << 16
_SHOWN_MAX = 60


class Door(msgspec.Struct, frozen=True):
    """Where a replica listens, and what it knows front ends by: a ``token``, or the certificates in ``tls``."""

    address: str
    port: int
    token: str = ""
    tls: ssl.SSLContext | None = None

    @property
    def authority(self) -> str:
        """Return host and port as a URL has them."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.port}"


def trusting(directory: str) -> ssl.SSLContext:
    """Return how to speak with a replica whose certificates lie in a directory. Raises ``OSError`` (``ssl`` too).

    Its certificate has to be its service's; under which address it is reached does not matter.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(f"{directory}/ca.pem")
    context.load_cert_chain(f"{directory}/cert.pem", f"{directory}/key.pem")
    return context


async def connect(door: Door, timeout_s: float) -> str | None:
    """Connect to a replica; return what was not good about it, ``None`` for nothing."""
    where = f"port {door.authority}"
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await _open(door, plain=True)
            writer.close()
    except TimeoutError:
        return f"{where}: no connection in {timeout_s:g} s"
    except OSError as error:
        return f"{where}: {_words(error)}"
    return None


async def get(door: Door, path: str, timeout_s: float) -> str | None:
    """GET a path of a replica; return what was not good about the answer, ``None`` for nothing (200 to 399)."""
    where = f"GET {'http' if door.tls is None else 'https'}://{door.authority}{path}"
    if not path.startswith("/") or not path.isascii() or any(letter <= " " for letter in path):
        return f"{path!r} is no path that can be asked for"
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await _open(door)
            writer.write(_request(door, path))
            fault = await _status(reader)
    except TimeoutError:
        fault = f"no answer in {timeout_s:g} s"
    except asyncio.LimitOverrunError:
        fault = f"its headers are larger than {HEAD_BYTES_MAX // 1024} KB"
    except asyncio.IncompleteReadError as error:
        fault = f"it closed the connection after {len(error.partial)} bytes"
    except OSError as error:
        fault = _words(error)
    else:
        await _drain(reader, timeout_s)
    finally:
        if writer is not None:
            # Nobody waits for the farewell of a replica that may hang.
            writer.transport.abort()
    return None if fault is None else f"{where}: {fault}"


async def _open(door: Door, *, plain: bool = False) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    address = await _resolve(door.address)
    tls = None if plain else door.tls
    return await asyncio.open_connection(address, door.port, ssl=tls, limit=HEAD_BYTES_MAX)


async def _resolve(address: str) -> str:
    """Return an IP address. A name is looked up aside: a resolver that hangs holds nobody up."""
    try:
        ipaddress.ip_address(address)
    except ValueError:
        found = await in_thread(lambda: socket.getaddrinfo(address, None, type=socket.SOCK_STREAM))
        return str(found[0][4][0])
    return address


def _request(door: Door, path: str) -> bytes:
    lines = [
        f"GET {path} HTTP/1.1",
        f"Host: {door.authority}",
        "User-Agent: corral-probe",
        "Accept: */*",
        "Connection: close",
        *([f"{GUARD_HEADER}: {door.token}"] if door.token else []),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def _status(reader: asyncio.StreamReader) -> str | None:
    """Read heads until a final one; return what is not good about it."""
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        first = head.partition(b"\r\n")[0].decode(errors="replace")
        version, _, rest = first.partition(" ")
        code = rest[:3]
        if not version.startswith("HTTP/1.") or not code.isdecimal() or len(code) != 3:
            return f"the answer is not HTTP: {first[:_SHOWN_MAX]!r}"
        if not 100 <= int(code) < 200:
            return None if 200 <= int(code) < 400 else f"HTTP {rest.strip()[:_SHOWN_MAX]}"


async def _drain(reader: asyncio.StreamReader, timeout_s: float) -> None:
    """Read a little more, so that a server that still writes does not complain of us."""
    left = BODY_BYTES_MAX
    try:
        async with asyncio.timeout(timeout_s):
            while left > 0 and (piece := await reader.read(left)):
                left -= len(piece)
    except (TimeoutError, OSError):
        return


def _words(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not that of its service: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or error}"
    if isinstance(error, socket.gaierror):
        return "the address of the node cannot be found"
    return os.strerror(error.errno).lower() if error.errno else str(error)
