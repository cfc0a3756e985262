"""A replica for benchmarks: answers at once, after a while, or by a stream. Standard library only.

    PORT=8000 python -m bench.serving_replica

``GET|POST /work`` after DELAY_S (times SLOW_BY in the replica whose ordinal is SLOW), one at a time where SERIAL is
set; ``GET /events?n=20&every=0.1`` streams events; ``POST /prompt`` keeps the beginnings of prompts, CACHE of them, and
says whether it had this one; ``GET /health``. Answers say when it was found to be well first (``ready_at``).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections import OrderedDict
from urllib.parse import parse_qs, urlsplit

BEGINNING_CHARS = 512


class Replica:
    """One replica."""

    def __init__(self) -> None:
        self.name = os.environ.get("CORRAL_REPLICA", "?")
        slow = os.environ.get("SLOW") == self.name
        self.delay_s = float(os.environ.get("DELAY_S", "0")) * (float(os.environ.get("SLOW_BY", "4")) if slow else 1.0)
        self.turn = asyncio.Lock() if os.environ.get("SERIAL") else contextlib.nullcontext()
        self.cache: OrderedDict[str, None] = OrderedDict()
        self.cache_max = int(os.environ.get("CACHE", "0"))
        self.version = os.environ.get("VERSION", "1")
        self.ready_at: float | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, ValueError):
            while line := await reader.readline():
                method, target, _ = line.decode().split(" ")
                length = 0
                while field := (await reader.readline()).strip():
                    name, _, value = field.partition(b":")
                    if name.lower() == b"content-length":
                        length = int(value)
                body = await reader.readexactly(length)
                await self._answer(method, target, body, writer)
                await writer.drain()
        writer.close()

    async def _answer(self, method: str, target: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        parts = urlsplit(target)
        if parts.path == "/events":
            asked = {name: float(values[0]) for name, values in parse_qs(parts.query).items()}
            await self._stream(int(asked.get("n", 10)), asked.get("every", 0.1), writer)
            return
        if parts.path == "/health" and self.ready_at is None:
            self.ready_at = time.time()
        said: dict[str, object] = {"replica": self.name, "version": self.version, "ready_at": self.ready_at}
        if parts.path == "/prompt":
            said["hit"] = self._had(json.loads(body)["prompt"][:BEGINNING_CHARS])
        elif parts.path == "/work" and self.delay_s:
            async with self.turn:
                await asyncio.sleep(self.delay_s)
        data = json.dumps(said).encode()
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data)
        )

    def _had(self, beginning: str) -> bool:
        had = beginning in self.cache
        self.cache[beginning] = None
        self.cache.move_to_end(beginning)
        while len(self.cache) > self.cache_max:
            self.cache.popitem(last=False)
        return had

    async def _stream(self, count: int, every_s: float, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for number in range(count):
            event = b"data: %d\n\n" % number
            writer.write(b"%x\r\n%s\r\n" % (len(event), event))
            await writer.drain()
            await asyncio.sleep(every_s)
        writer.write(b"0\r\n\r\n")


async def main() -> None:
    """Serve until SIGTERM."""
    replica = Replica()
    server = await asyncio.start_server(replica.serve, "127.0.0.1", int(os.environ["PORT"]), backlog=1024)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()
    server.close()


if __name__ == "__main__":
    asyncio.run(main())
