"""An open-loop load on a service: so many requests a second, whatever becomes of those before. Bounded."""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from collections.abc import Sequence
from typing import Self

import msgspec

LIMIT_S = 30.0


class Outcome(msgspec.Struct, frozen=True):
    """One request: when it was sent (monotonic seconds), how long it took, and what came back (status 0: nothing).

    ``ready_at`` is when the replica that answered was found to be well first (seconds since the epoch).
    """

    at: float
    method: str
    seconds: float
    status: int
    replica: str = ""
    ready_at: float = 0.0
    hit: bool = False
    cut: bool = False

    @property
    def good(self) -> bool:
        """Return whether it was answered well and whole."""
        return 200 <= self.status < 400 and not self.cut


class Target(msgspec.Struct, frozen=True):
    """Where and whom to ask."""

    port: int
    host: str
    address: str = "127.0.0.1"
    key: str = ""


async def ask(target: Target, method: str = "GET", path: str = "/work", body: bytes = b"") -> Outcome:
    """Make one request on a connection of its own."""
    began = time.monotonic()
    status, cut = 0, False
    said: dict[str, object] = {}
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(LIMIT_S):
            reader, writer = await asyncio.open_connection(target.address, target.port)
            lines = [f"{method} {path} HTTP/1.1", f"Host: {target.host}", "Connection: close"]
            if target.key:
                lines.append(f"Authorization: Bearer {target.key}")
            if body or method == "POST":
                lines.append(f"Content-Length: {len(body)}")
            writer.write("\r\n".join([*lines, "", ""]).encode() + body)
            status, said, cut = await _answer(reader)
    except (OSError, ValueError, IndexError, asyncio.IncompleteReadError):
        cut = True
    finally:
        if writer is not None:
            writer.close()
    replica, ready_at, hit = str(said.get("replica", "")), said.get("ready_at"), bool(said.get("hit"))
    known_at = ready_at if isinstance(ready_at, float) else 0.0
    return Outcome(began, method, time.monotonic() - began, status, replica, known_at, hit, cut)


async def _answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, object], bool]:
    status = int((await reader.readline()).split()[1])
    headers: dict[bytes, bytes] = {}
    while field := (await reader.readline()).strip():
        name, _, value = field.partition(b":")
        headers[name.lower()] = value.strip()
    if headers.get(b"transfer-encoding") == b"chunked":
        try:
            while size := int(await reader.readuntil(b"\r\n"), 16):
                piece = await reader.readexactly(size + 2)
                if piece.startswith(b"event: error"):
                    return status, {}, True
        except (asyncio.IncompleteReadError, ConnectionError):
            return status, {}, True
        return status, {}, False
    body = await reader.readexactly(int(headers.get(b"content-length", b"0")))
    try:
        said = json.loads(body)
    except ValueError:
        said = {}
    return status, said if isinstance(said, dict) else {}, False


class Load:
    """Sends until stopped; ``outcomes`` are of requests that have ended. ``posts`` is the part of POSTs."""

    def __init__(
        self, target: Target, rate: float, *, posts: float = 0.0, path: str = "/work", poisson: bool = False
    ) -> None:
        self._target = target
        self._rate = rate
        self._posts = posts
        self._path = path
        self._poisson = poisson
        self._running: set[asyncio.Task[Outcome]] = set()
        self._sender: asyncio.Task[None] | None = None
        self.outcomes: list[Outcome] = []

    async def __aenter__(self) -> Self:
        self._sender = asyncio.create_task(self._send())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._sender is not None
        self._sender.cancel()
        await asyncio.gather(self._sender, return_exceptions=True)
        await asyncio.gather(*self._running)

    async def _send(self) -> None:
        draw = random.Random(7)
        due = time.monotonic()
        while True:
            method = "POST" if draw.random() < self._posts else "GET"
            task = asyncio.create_task(ask(self._target, method, self._path, b"x" if method == "POST" else b""))
            self._running.add(task)
            task.add_done_callback(self._done)
            due += draw.expovariate(self._rate) if self._poisson else 1.0 / self._rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    def _done(self, task: asyncio.Task[Outcome]) -> None:
        self._running.discard(task)
        self.outcomes.append(task.result())


def failed(outcomes: Sequence[Outcome], *methods: str) -> int:
    """Return how many did not go well, of these methods (of all without one)."""
    return sum(not one.good for one in outcomes if not methods or one.method in methods)


def quantile(outcomes: Sequence[Outcome], share: float) -> float:
    """Return a quantile of the times of those that went well, in seconds."""
    times = sorted(one.seconds for one in outcomes if one.good)
    return times[min(len(times) - 1, int(share * len(times)))] if times else float("inf")


def mean(outcomes: Sequence[Outcome]) -> float:
    """Return the mean time of those that went well, in seconds."""
    return statistics.fmean(one.seconds for one in outcomes if one.good)
