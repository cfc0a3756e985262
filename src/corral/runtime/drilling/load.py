"""A bounded load on one address: so many GETs a second, whatever becomes of those before. Standard library only."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from typing import Self
from urllib.parse import urlsplit

import msgspec

ANSWER_S = 30.0
"""A request without an answer by then has failed."""

UNDER_WAY_MAX = 1_000
"""Requests at a time. One that would be more counts as failed: a load that cannot be sent says so."""

READ_BYTES = 65_536


class Target(msgspec.Struct, frozen=True):
    """Whom to ask. ``authority`` is a PEM file: the certificate of a front end that speaks TLS."""

    url: str
    service: str
    path: str = "/"
    key: str = ""
    authority: str = ""

    def head(self) -> bytes:
        """Return the request."""
        lines = [f"GET {self.path} HTTP/1.1", f"Host: {self.service}", "Connection: close", "User-Agent: corral-drill"]
        if self.key:
            lines.append(f"Authorization: Bearer {self.key}")
        return "\r\n".join([*lines, "", ""]).encode()


class Answer(msgspec.Struct, frozen=True):
    """One request: when it was sent (monotonic seconds), how long it took; status 0 is none, or not a whole one."""

    at: float
    seconds: float
    status: int

    @property
    def good(self) -> bool:
        """Return whether the service answered: 5xx, 429 and silence are failures, other answers are the program's."""
        return 200 <= self.status < 500 and self.status != 429


class Load:
    """Requests at a steady rate, each on a connection of its own, between ``async with`` and its end."""

    def __init__(self, target: Target, rate: float) -> None:
        self.answers: list[Answer] = []
        self._target = target
        self._rate = rate
        self._head = target.head()
        parts = urlsplit(target.url)
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = _tls(target.authority) if parts.scheme == "https" else None
        self._running: set[asyncio.Task[None]] = set()
        self._sender: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._sender = asyncio.create_task(self._send())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._sender is not None
        self._sender.cancel()
        await asyncio.gather(self._sender, return_exceptions=True)
        await asyncio.gather(*self._running)

    async def _send(self) -> None:
        due = time.monotonic()
        while True:
            if len(self._running) < UNDER_WAY_MAX:
                task = asyncio.create_task(self._ask())
                self._running.add(task)
                task.add_done_callback(self._running.discard)
            else:
                self.answers.append(Answer(time.monotonic(), 0.0, 0))
            due += 1.0 / self._rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _ask(self) -> None:
        began, status = time.monotonic(), 0
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(ANSWER_S):
                reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
                writer.write(self._head)
                status = await _whole(reader)
        except (OSError, ValueError, IndexError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            status = 0
        finally:
            self.answers.append(Answer(began, time.monotonic() - began, status))
            if writer is not None:
                with contextlib.suppress(OSError):
                    writer.close()


async def _whole(reader: asyncio.StreamReader) -> int:
    """Read an answer to its end; return its status. Raises ``IncompleteReadError`` when it was cut, ``ValueError``."""
    status = int((await reader.readline()).split()[1])
    length, chunked = None, False
    while field := (await reader.readline()).strip():
        name, _, value = field.lower().partition(b":")
        if name == b"content-length":
            length = int(value)
        chunked = chunked or (name == b"transfer-encoding" and b"chunked" in value)
    if chunked:
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            await reader.readexactly(size + 2)
    elif length is not None:
        while length > 0:
            length -= len(await reader.readexactly(min(length, READ_BYTES)))
    else:
        while await reader.read(READ_BYTES):
            pass
    return status


def _tls(authority: str) -> ssl.SSLContext:
    """Return what believes this certificate alone, whatever name it bears: it is asked by its address."""
    context = ssl.create_default_context(cafile=authority or None)
    context.check_hostname = False
    return context
