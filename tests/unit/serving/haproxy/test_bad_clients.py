"""Callers that are slow, large or up to no good; and those that want more of HTTP."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os

from msgspec.structs import replace

from tests.unit.serving.haproxy.world import PLAIN, World, becomes, error_code, in_world
from tests.unit.serving.relay.world import Heard, answers, read_reply, streams

GIB = 1024**3


@in_world(request_within_s=0.3, body_within_s=0.3)
async def test_a_slow_caller_is_let_go_before_a_replica_hears_of_it(world: World) -> None:
    one = await world.replica("r1", answers("one"))
    await world.serve(one)
    for beginning in (
        b"GET / HTTP/1.1\r\nHost: shop\r\nX-Slow: ",
        b"POST / HTTP/1.1\r\nHost: shop\r\nContent-Length: 100\r\n\r\nhalf",
        b"POST / HTTP/1.1\r\nHost: shop\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: front\r\nContent-Length: 100\r\n\r\nhalf",
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", world.config.port)
        writer.write(beginning)
        reply = await read_reply(reader)
        assert reply.status == 408, beginning
        assert await reader.read() == b""
        writer.close()
    assert one.heard == []
    assert (await world.call()).status == 200


@in_world(idle_s=0.3)
async def test_a_caller_who_waits_long_is_not_taken_for_an_idle_one(world: World) -> None:
    gate = asyncio.Event()
    one = await world.replica("r1", streams("data: 1\n\n", "data: 2\n\n", gate=gate))
    await world.serve(one)
    reader, writer = await world.open("GET", "/")
    await reader.readuntil(b"data: 1\n\n")
    # Another one is let go meanwhile, so that surely more time has passed.
    idle, other = await asyncio.open_connection("127.0.0.1", world.config.port)
    await idle.read()
    other.close()
    gate.set()
    await reader.readuntil(b"0\r\n\r\n")
    writer.close()


@in_world()
async def test_a_body_that_is_too_large_is_refused_before_it_is_sent(world: World) -> None:
    one = await world.replica("r1", answers("one"))
    await world.serve(one, traffic=replace(PLAIN, body_max_bytes=3_000_000))
    for length in (GIB, 3_000_001):
        reader, writer = await world.open("POST", "/", {"Content-Length": str(length)})
        writer.write(b"x" * 10_000)
        reply = await read_reply(reader)
        assert (reply.status, error_code(reply)) == (413, "BODY_TOO_LARGE")
        writer.close()
    assert one.heard == []
    for size in (3_000_000, 1_048_576, 1_048_577, 1):
        assert (await world.call("POST", "/", {}, b"x" * size)).status == 200
    assert [len(heard.body) for heard in one.heard] == [3_000_000, 1_048_576, 1_048_577, 1]


@in_world()
async def test_a_body_without_a_length_ends_somewhere(world: World) -> None:
    heard: list[int] = []

    async def takes(request: Heard, writer: asyncio.StreamWriter) -> None:
        size = 0
        while piece := int(await request.reader.readuntil(b"\r\n"), 16):
            size += len(await request.reader.readexactly(piece))
            await request.reader.readuntil(b"\r\n")
        await request.reader.readuntil(b"\r\n")
        heard.append(size)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    one = await world.replica("r1", takes)

    async def send(size: int) -> tuple[int, object]:
        reader, writer = await world.open("POST", "/", {"Transfer-Encoding": "chunked"})
        for begin in range(0, size, 65_536):
            piece = min(65_536, size - begin)
            writer.write(f"{piece:x}\r\n".encode() + b"x" * piece + b"\r\n")
        writer.write(b"0\r\n\r\n")
        reply = await read_reply(reader)
        writer.close()
        return reply.status, error_code(reply) if reply.status != 200 else None

    await world.serve(one, traffic=replace(PLAIN, body_max_bytes=3_000_000))
    assert await send(900_000) == (200, None)
    assert await send(2_000_000) == (413, "LENGTH_NEEDED")
    await world.serve(one, traffic=replace(PLAIN, body_max_bytes=500_000))
    assert await send(400_000) == (200, None)
    assert await send(500_001) == (413, "BODY_TOO_LARGE")
    assert heard == [900_000, 400_000]


@in_world()
async def test_what_is_not_http_is_refused(world: World) -> None:
    one = await world.replica("r1", answers("one"))
    await world.serve(one)
    for nonsense in (
        b"\x16\x03\x01\x00\xa5\x01\x00\x00" + os.urandom(64),
        b"GET / HTTP/1.1\r\nHost: a\r\n bad\x00: x\r\n\r\n",
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", world.config.port)
        writer.write(nonsense)
        answer = await reader.read()
        assert answer == b"" or answer.startswith(b"HTTP/1.1 400")
        writer.close()
    # Two lengths: the way to smuggle a second request (RFC 9112, 6.3).
    reader, writer = await world.open("POST", "/", {"Content-Length": "4", "Transfer-Encoding": "chunked"})
    writer.write(b"0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: shop\r\n\r\n")
    await read_reply(reader)
    writer.close()
    assert "/smuggled" not in [heard.target for heard in one.heard]
    assert (await world.call()).status == 200


@in_world()
async def test_events_pass_as_they_come(world: World) -> None:
    gate = asyncio.Event()
    one = await world.replica("r1", streams("data: 1\n\n", "data: 2\n\n", gate=gate))
    await world.serve(one)
    reader, writer = await world.open("GET", "/", {"Accept": "text/event-stream"})
    # It arrives while the replica holds the rest back.
    await reader.readuntil(b"data: 1\n\n")
    gate.set()
    await reader.readuntil(b"0\r\n\r\n")
    writer.close()


@in_world()
async def test_a_websocket_passes_both_ways(world: World) -> None:
    async def echoes(heard: Heard, writer: asyncio.StreamWriter) -> None:
        # RFC 6455, 4.2.2: the proxy looks whether it is right.
        said = heard.headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accepted = base64.b64encode(hashlib.sha1(said.encode()).digest())
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n")
        writer.write(b"Sec-WebSocket-Accept: %s\r\n\r\n" % accepted)
        while data := await heard.reader.read(100):
            writer.write(data)
            await writer.drain()

    one = await world.replica("r1", echoes)
    await world.serve(one)
    key = base64.b64encode(b"0123456789abcdef").decode()
    reader, writer = await world.open(
        "GET",
        "/ws",
        {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Key": key, "Sec-WebSocket-Version": "13"},
    )
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
    for message in (b"one", b"two"):
        writer.write(message)
        assert await reader.readexactly(3) == message
    assert one.heard[0].headers["upgrade"] == "websocket"
    writer.close()
    await becomes(lambda: one.open == 0, "the other end to close")
