from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec

from corral.model.ids import ServiceName
from corral.model.routes import BackendLoad, RouteLoad, RoutingTable
from corral.serving.access.reader import AccessLog
from corral.serving.haproxy.logline import AccessLine

LINE = AccessLine(
    at=1_700_000_000_000, client="127.0.0.1", id="x", service="chat", tenant="t", server="r1", told="-", method="GET",
    path="/", status=200, bytes_in=10, bytes_out=50, total_ms=30, request_ms=1, queue_ms=0, connect_ms=0,
    response_ms=20, retries="+1", ended="--",
)  # fmt: skip


def sample(access: AccessLog, name: str, **labels: str) -> float | None:
    return access.metrics.registry.get_sample_value(name, labels)


def framed(*lines: bytes) -> bytes:
    return b"".join(b"%d %s" % (len(line), line) for line in lines)


def read(tmp_path: Path, *pieces: bytes, count: int, file_max_bytes: int = 1 << 20) -> AccessLog:
    async def run() -> AccessLog:
        access = AccessLog(tmp_path / "a.sock", tmp_path / "access.log", file_max_bytes)
        await access.start()
        async with asyncio.timeout(20):
            _, writer = await asyncio.open_unix_connection(access.socket)
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            while access.lines < count:  # noqa: ASYNC110 - who counts tells nobody
                await asyncio.sleep(0.01)
            writer.close()
            await writer.wait_closed()
        access.close()
        return access

    return asyncio.run(run())


def test_lines_are_kept_and_counted(tmp_path: Path) -> None:
    raw = msgspec.json.encode(LINE)
    sent = framed(raw, raw, b"no json")
    access = read(tmp_path, sent[:1], sent[1:200], sent[200:], count=3)
    assert (access.lines, access.damaged) == (3, 1)
    assert (tmp_path / "access.log").read_bytes() == raw + b"\n" + raw + b"\nno json\n"
    assert not access.socket.exists()
    of_replica = {"service": "chat", "replica": "r1"}
    assert sample(access, "corral_service_requests_total", **of_replica, tenant="t", code="200") == 2
    assert sample(access, "corral_service_request_duration_seconds_sum", service="chat") == 0.06
    # 30 ms is above the bucket of 25 ms and within that of 50 ms.
    assert sample(access, "corral_service_request_duration_seconds_bucket", service="chat", le="0.025") == 0
    assert sample(access, "corral_service_request_duration_seconds_bucket", service="chat", le="0.05") == 2
    assert sample(access, "corral_service_response_start_seconds_sum", **of_replica) == 0.04
    assert sample(access, "corral_service_response_bytes_total", service="chat") == 100
    assert sample(access, "corral_service_retried_requests_total", service="chat") == 2
    assert b"corral_service_requests_total{" in access.metrics.text()
    assert access.latencies(ServiceName("chat")) == (0.03, 0.03)
    assert access.latencies(ServiceName("other")) == (None, None)


def test_the_file_is_rotated(tmp_path: Path) -> None:
    lines = [json.dumps({"n": number}).encode().ljust(600) for number in range(1_000)]
    access = read(
        tmp_path, *(framed(*lines[n : n + 100]) for n in range(0, 1_000, 100)), count=1_000, file_max_bytes=100_000
    )
    assert access.lines == 1_000
    kept = sorted(tmp_path.glob("access.log*"))
    assert [path.name for path in kept] == ["access.log", "access.log.1", "access.log.2", "access.log.3"]
    # A batch is never cut in two: it may go beyond the limit of an empty file.
    assert (tmp_path / "access.log").read_bytes().splitlines()[-1] == lines[-1]


def test_what_is_no_line_ends_the_connection(tmp_path: Path) -> None:
    async def run() -> AccessLog:
        access = AccessLog(tmp_path / "a.sock", tmp_path / "access.log")
        await access.start()
        async with asyncio.timeout(20):
            reader, writer = await asyncio.open_unix_connection(access.socket)
            writer.write(framed(b"{}") + b"GET / HTTP/1.1\r\n\r\n")
            assert await reader.read() == b""
            writer.close()
        access.close()
        return access

    assert asyncio.run(run()).lines == 1


def test_gauges_follow_what_is_there(tmp_path: Path) -> None:
    access = AccessLog(tmp_path / "a.sock", tmp_path / "access.log")
    backends = (BackendLoad("r1", up=True, outstanding=3), BackendLoad("r2", up=False, ejected=True))
    access.note(RouteLoad(ServiceName("chat"), waiting=2, backends=backends))
    assert sample(access, "corral_service_outstanding_requests", service="chat", replica="r1") == 3
    assert sample(access, "corral_service_replica_up", service="chat", replica="r2") == 0
    assert sample(access, "corral_service_replica_ejected", service="chat", replica="r2") == 1
    assert sample(access, "corral_service_waiting_requests", service="chat") == 2
    access.note(RouteLoad(ServiceName("chat"), backends=backends[:1]))
    assert sample(access, "corral_service_replica_up", service="chat", replica="r2") is None
    access.apply(RoutingTable(1, "d"))
    assert sample(access, "corral_service_replica_up", service="chat", replica="r1") is None
    assert sample(access, "corral_service_waiting_requests", service="chat") is None
