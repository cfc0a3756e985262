"""Replicas that die, hang, stop or talk nonsense, and what callers notice of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from corral.model.ids import JobId
from corral.model.routes import Backend
from corral.model.service import Balance, Guard, Retry
from tests.unit.serving.haproxy.world import PLAIN, World, backend, becomes, error_code, in_world, route
from tests.unit.serving.relay.world import Heard, answers, closes, hangs

ROUND = replace(PLAIN, balance=Balance.ROUND_ROBIN)

PROGRAM = """
import http.server, sys

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


@contextlib.asynccontextmanager
async def started(name: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, Backend]]:
    """Run a replica as a process of its own."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert process.stdout is not None
    port = int(await process.stdout.readline())
    try:
        yield process, Backend(name, JobId("1"), 1, 1, "127.0.0.1", port)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def garbage(heard: Heard, writer: asyncio.StreamWriter) -> None:
    writer.write(b"\x00\xff this is not HTTP at all\r\n\r\n" * 20)
    writer.close()


async def no_room(heard: Heard, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 503 X\r\nContent-Length: 0\r\n\r\n")


@pytest.mark.parametrize("bad", [closes, garbage, hangs, no_room])
def test_what_may_be_repeated_is_answered_by_another_replica(bad: object) -> None:
    @in_world()
    async def test(world: World) -> None:
        one, two = await world.replica("r1", bad), await world.replica("r2", answers("two"))  # type: ignore[arg-type]
        await world.serve(one, two, traffic=replace(ROUND, response_s=0.3))
        for _ in range(4):
            assert (await world.call("GET")).body == b"two"
            assert (await world.call("PUT", body=b"x" * 7_000)).body == b"two"
            assert (await world.call("POST", "/", {"Idempotency-Key": "1"}, b"x" * 7_000)).body == b"two"
        assert one.heard, "the bad one was asked"
        load = await world.load()
        assert load.retries > 0
        assert load.errors == 0
        # Longer ones are repeated by who holds them.
        for _ in range(2):
            assert (await world.call("PUT", body=b"x" * 1_000_000)).body == b"two"
            assert (await world.call("POST", "/", {"Idempotency-Key": "1"}, b"x" * 200_000)).body == b"two"
        assert {len(heard.body) for heard in two.heard} == {0, 7_000, 200_000, 1_000_000}
        assert "x-corral-repeat" not in two.heard[-1].headers

    test()


@pytest.mark.parametrize("bad, status", [(closes, 502), (garbage, 502), (hangs, 504), (no_room, 503)])
def test_what_may_not_be_repeated_is_sent_once(bad: object, status: int) -> None:
    @in_world()
    async def test(world: World) -> None:
        one = await world.replica("r1", bad)  # type: ignore[arg-type]
        two = await world.replica("r2", bad)  # type: ignore[arg-type]
        await world.serve(one, two, traffic=replace(ROUND, response_s=0.3))
        assert (await world.call("POST", body=b"order")).status == status
        assert (await world.call("PATCH", body=b"x" * 100_000)).status == status
        assert sorted(heard.method for heard in one.heard + two.heard) == ["PATCH", "POST"]
        await world.serve(one, two, traffic=replace(ROUND, response_s=0.3, retry=Retry.NEVER))
        assert (await world.call("GET")).status == status
        assert [heard.method for heard in one.heard + two.heard].count("GET") == 1
        assert (await world.load()).errors == 3

    test()


@in_world()
async def test_every_request_may_be_repeated_until_its_answer_begins(world: World) -> None:
    one, two = await world.replica("r1", closes), await world.replica("r2", answers("two"))
    await world.serve(one, two, traffic=replace(ROUND, retry=Retry.BEFORE_FIRST_TOKEN))
    for _ in range(4):
        assert (await world.call("POST", body=b"x" * 500_000)).body == b"two"
    assert one.heard


@in_world()
async def test_a_connection_that_fails_is_tried_elsewhere_by_every_request(world: World) -> None:
    one, two = await world.replica("r1", answers("one")), await world.replica("r2", answers("two"))
    await one.end()
    await world.serve(one, two, traffic=ROUND)
    assert {(await world.call("POST", body=b"order")).body for _ in range(6)} == {b"two"}


@in_world()
async def test_a_killed_replica_fails_nothing_and_is_taken_out(world: World) -> None:
    async with started("r1") as (first, one), started("r2") as (_, two), started("r3") as (_, three):
        await world.tell(route(traffic=ROUND, backends=(one, two, three), health_path="/"))
        for _ in range(6):
            assert (await world.call()).status == 200
        first.kill()
        for _ in range(30):
            assert (await world.call()).status == 200
        await becomes(lambda: world.up("r2", "r3"), "the dead one to be taken out")
        assert (await world.load()).errors == 0
        assert world.driver.problem == ""


@in_world()
async def test_a_replica_that_stands_still_is_taken_out_and_comes_back(world: World) -> None:
    async with started("r1") as (first, one), started("r2") as (_, two):
        await world.tell(route(traffic=ROUND, backends=(one, two), health_path="/"))
        await becomes(lambda: world.up("r1", "r2"), "both to be up")
        os.kill(first.pid, signal.SIGSTOP)
        try:
            await becomes(lambda: world.up("r2"), "the one that stands still to be taken out")
            for _ in range(6):
                assert (await world.call()).status == 200
            await world.tell(*world.routes, route("other"))
            assert await world.up("r2"), "another process does not find it out by requests"
        finally:
            os.kill(first.pid, signal.SIGCONT)
        await becomes(lambda: world.up("r1", "r2"), "it to come back")


@in_world()
async def test_none_that_answers_is_said_and_so_is_when_to_ask_again(world: World) -> None:
    one = await world.replica("r1", answers("one", 500))
    await world.serve(one, health_path="/health")
    await becomes(world.up, "it to be taken out")
    reply = await world.call()
    assert (reply.status, reply.headers["retry-after"], error_code(reply)) == (503, "5", "NO_REPLICA")
    assert "none of them answers" in reply.body.decode()
    assert {heard.target for heard in one.heard} == {"/health"}


@in_world()
async def test_checks_show_that_they_come_from_the_front_end(world: World) -> None:
    one = await world.replica("r1", answers("one"))
    token = replace(PLAIN, guard=Guard.TOKEN)
    await world.tell(route(traffic=token, backends=(backend(one),), health_path="/health?deep=%20"))
    await becomes(lambda: bool(one.heard), "a check")
    assert one.heard[0].target == "/health?deep=%20"
    assert one.heard[0].headers["x-corral-front-end-token"] == "s3cret"
    assert one.heard[0].headers["host"] == "shop"
