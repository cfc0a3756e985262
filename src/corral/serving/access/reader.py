"""Takes the proxy's lines in, in batches: into a file that is rotated, and into metrics.

The proxy keeps lines in a ring of its own while nobody reads them: a datagram socket would drop them after ten (Linux,
``net.unix.max_dgram_qlen``).
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec

from corral.model.ids import ServiceName
from corral.model.routes import RouteLoad, RoutingTable
from corral.serving.access.metrics import Metrics
from corral.serving.haproxy.logline import AccessLine

LINE_MAX = 65_536
DIGITS_MAX = 6
FILE_MAX_BYTES = 64 * 1024 * 1024
FILES = 4
RECENT = 2_000
RECENT_S = 60.0
log = logging.getLogger(__name__)


class _Lines(asyncio.Protocol):
    """One connection of the proxy: lines with their lengths before them (RFC 6587, 3.4.1)."""

    def __init__(self, take: Callable[[list[bytes]], None]) -> None:
        self._take = take
        self._rest = b""
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Take whole lines; what is no line with a length ends the connection, and the proxy makes a new one."""
        data = self._rest + data
        lines: list[bytes] = []
        at = 0
        while (space := data.find(b" ", at, at + DIGITS_MAX + 1)) > 0:
            if not data[at:space].isdigit():
                self._break()
                break
            end = space + 1 + int(data[at:space])
            if end > len(data):
                break
            lines.append(data[space + 1 : end])
            at = end
        self._rest = data[at:]
        if len(self._rest) > LINE_MAX + DIGITS_MAX:
            self._break()
        if lines:
            self._take(lines)

    def _break(self) -> None:
        self._rest = b""
        if self._transport is not None:
            self._transport.close()


class AccessLog:
    """Reads until closed. ``lines`` counts those that came, ``damaged`` those that could not be read."""

    def __init__(self, socket: Path, file: Path, file_max_bytes: int = FILE_MAX_BYTES) -> None:
        self.socket = socket
        self.metrics = Metrics()
        self.lines = 0
        self.damaged = 0
        self._path = file
        self._max = file_max_bytes
        self._size = 0
        self._file: int | None = None
        self._server: asyncio.Server | None = None
        self._decoder = msgspec.json.Decoder(AccessLine)
        self._recent: dict[ServiceName, deque[tuple[float, float]]] = {}

    async def start(self) -> None:
        """Begin to read. Raises ``OSError``."""
        self.socket.unlink(missing_ok=True)
        mask = os.umask(0o177)
        try:
            self._server = await asyncio.get_running_loop().create_unix_server(lambda: _Lines(self._take), self.socket)
        finally:
            os.umask(mask)
        self._open()

    def close(self) -> None:
        """Stop. Lines that come meanwhile wait in the proxy."""
        if self._server is not None:
            self._server.close()
            self._server = None
            self.socket.unlink(missing_ok=True)
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def apply(self, table: RoutingTable) -> None:
        """Drop the gauges of services that are gone."""
        there = {route.service for route in table.routes}
        for gone in self.metrics.known - there:
            self.metrics.forget(gone)
        self._recent = {name: recent for name, recent in self._recent.items() if name in there}

    def note(self, load: RouteLoad) -> None:
        """Take in how a service stands."""
        self.metrics.load(load)

    def latencies(self, service: ServiceName) -> tuple[float | None, float | None]:
        """Return the median and the 99th percentile of a service's last requests (a minute's at most), in seconds."""
        recent = self._recent.get(service)
        if recent is None:
            return None, None
        _drop_old(recent)
        ordered = sorted(seconds for _, seconds in recent)
        if not ordered:
            return None, None
        return ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]

    def _take(self, lines: list[bytes]) -> None:
        now = time.monotonic()
        for raw in lines:
            self.lines += 1
            try:
                line = self._decoder.decode(raw)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                self.damaged += 1
                continue
            self.metrics.line(line)
            if 0 < line.status < 500:
                self._recent.setdefault(ServiceName(line.service), deque(maxlen=RECENT)).append(
                    (now, line.total_ms / 1000)
                )
        self._write(b"".join(raw if raw.endswith(b"\n") else raw + b"\n" for raw in lines))

    # ---- the file --------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._file).st_size

    def _write(self, data: bytes) -> None:
        try:
            if self._size + len(data) > self._max:
                self._rotate()
            if self._file is not None:
                self._size += os.write(self._file, data)
        except OSError as error:
            # A full disk costs lines, not requests.
            log.warning("the access log cannot be written: %s", error.strerror)

    def _rotate(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
        for number in range(FILES - 1, 0, -1):
            older = self._path if number == 1 else self._path.with_suffix(f".log.{number - 1}")
            if older.exists():
                older.replace(self._path.with_suffix(f".log.{number}"))
        self._open()


def _drop_old(recent: deque[tuple[float, float]]) -> None:
    oldest = time.monotonic() - RECENT_S
    while recent and recent[0][0] < oldest:
        recent.popleft()
