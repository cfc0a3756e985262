from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop
from msgspec.structs import replace

from corral.model.ids import ServiceName
from corral.model.routes import RoutingTable
from corral.model.service import Balance, Guard, Retry, Scaling
from corral.serving.relay.http import Request
from tests.unit.serving.relay.world import CHAT, World, answers, closes, hangs, read_reply, streams, until, world

EVENT = 'data: {"n": 1}\n\n'


def in_world(test: Callable[[World], Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
    # Not `functools.wraps`: pytest would take the arguments of what is wrapped for fixtures.
    def run(tmp_path: Path) -> None:
        async def inside() -> None:
            async with asyncio.timeout(30), world(tmp_path) as made:
                await test(made)

        # On the loop that the relay has.
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(inside())

    run.__name__ = test.__name__
    return run


@in_world
async def test_an_answer_is_passed_on_with_the_name_of_who_gave_it(world: World) -> None:
    one = await world.replica("r1", answers("hello"))
    world.tell(one, guard=Guard.TOKEN)
    reply = await world.call("POST", "/a?b=1", {"X-Corral-Tenant": "t", "Accept": "x"}, b"body")
    assert (reply.status, reply.body, reply.headers["x-corral-replica"]) == (200, b"hello", "r1")
    (heard,) = one.heard
    assert (heard.method, heard.target, heard.body) == ("POST", "/a?b=1", b"body")
    assert heard.headers["x-corral-front-end-token"] == "s"
    assert heard.headers["x-corral-tenant"] == "t"
    assert "x-corral-service" not in heard.headers


@in_world
async def test_a_head_and_an_empty_answer_have_no_body(world: World) -> None:
    one = await world.replica("r1", answers("hello"))
    world.tell(one)
    reply = await world.call("HEAD")
    assert (reply.status, reply.headers["content-length"]) == (200, "5")

    async def nothing(heard: object, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")

    two = await world.replica("r2", nothing)
    world.tell(two)
    reply = await world.call("DELETE")
    assert (reply.status, reply.body, reply.cut) == (204, b"", False)
    assert "transfer-encoding" not in reply.headers


@in_world
async def test_an_answer_that_ends_with_its_connection_is_whole(world: World) -> None:
    async def old(heard: object, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nall of it")
        writer.close()

    world.tell(await world.replica("r1", old))
    reply = await world.call("GET")
    assert (reply.body, reply.cut) == (b"all of it", False)


@in_world
async def test_an_interim_answer_is_not_the_answer(world: World) -> None:
    async def slow(heard: object, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    world.tell(await world.replica("r1", slow))
    reply = await world.call("GET")
    assert (reply.status, reply.body) == (200, b"ok")
    assert "link" not in reply.headers


@in_world
async def test_connections_are_used_again(world: World) -> None:
    one = await world.replica("r1", answers("x"))
    world.tell(one)
    for _ in range(5):
        await world.call("GET")
    assert (len(one.heard), one.open) == (5, 1)


@in_world
async def test_a_dead_replica_costs_no_request(world: World) -> None:
    dead = await world.replica("dead", answers("never"))
    dead.stop()
    good = await world.replica("good", answers("ok"))
    world.tell(dead, good, retry=Retry.NEVER, balance=Balance.ROUND_ROBIN)
    replies = [await world.call("POST", body=b"x") for _ in range(4)]
    assert [reply.body for reply in replies] == [b"ok"] * 4
    # Twice it was tried; then it counts as down.
    assert not world.place.replicas["dead"].up


@pytest.mark.parametrize("count", [4])
def test_more_dead_replicas_than_attempts_cost_no_request(tmp_path: Path, count: int) -> None:
    @in_world
    async def run(world: World) -> None:
        dead = [await world.replica(f"dead{number}", answers("never")) for number in range(count)]
        for one in dead:
            one.stop()
        world.tell(*dead, await world.replica("good", answers("ok")), balance=Balance.ROUND_ROBIN)
        assert (await world.call("GET")).body == b"ok"

    run(tmp_path)


@in_world
async def test_what_is_idempotent_is_repeated_and_what_is_not_is_not(world: World) -> None:
    bad, good = await world.replica("a", closes), await world.replica("b", answers("ok"))
    world.tell(bad, good, balance=Balance.CONSISTENT_HASH, hash_header="X-Session")
    key = next(key for key in map(str, range(99)) if chosen(world, key) == "a")
    assert (await world.call("GET", headers={"X-Session": key})).body == b"ok"
    refused = await world.call("POST", headers={"X-Session": key}, body=b"x")
    assert (refused.status, refused.json()["code"]) == (502, "REPLICA_FAILED")
    keyed = {"X-Session": key, "Idempotency-Key": "1"}
    assert (await world.call("POST", headers=keyed, body=b"x")).body == b"ok"
    world.tell(bad, good, retry=Retry.NEVER)
    assert (await world.call("GET", headers={"X-Session": key})).status == 502


def chosen(world: World, key: str) -> str:
    live = world.relay.board.choose(world.place, Request(b"GET", b"/", [(b"x-session", key.encode())]), ())
    assert live is not None
    return live.backend.name


@in_world
async def test_until_the_first_token_every_request_is_repeated(world: World) -> None:
    async def head_only(heard: object, writer: asyncio.StreamWriter) -> None:
        # Status and headers are there, and then it dies: nobody has seen them.
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        await writer.drain()
        writer.close()

    bad, good = await world.replica("a", head_only), await world.replica("b", streams(EVENT))
    world.tell(bad, good, retry=Retry.BEFORE_FIRST_TOKEN, balance=Balance.ROUND_ROBIN)
    prompt = b"p" * 500_000
    replies = [await world.call("POST", body=prompt) for _ in range(4)]
    assert [(reply.status, reply.body) for reply in replies] == [(200, EVENT.encode())] * 4
    assert all(heard.body == prompt for heard in (*bad.heard, *good.heard))
    assert world.place.errors == 0


@in_world
async def test_a_server_error_is_repeated_and_passed_on_when_all_have_it(world: World) -> None:
    bad, good = await world.replica("a", answers("no", 503)), await world.replica("b", answers("ok"))
    world.tell(bad, good, balance=Balance.ROUND_ROBIN)
    assert {(await world.call("GET")).status for _ in range(4)} == {200}
    world.tell(bad)
    reply = await world.call("GET")
    assert (reply.status, reply.body) == (503, b"no")


@in_world
async def test_retries_end_with_their_budget(world: World) -> None:
    bad, good = await world.replica("a", answers("no", 500)), await world.replica("b", answers("ok"))
    world.tell(bad, good, balance=Balance.ROUND_ROBIN)
    world.relay.board.set_retries(CHAT, on=False)
    assert sorted([(await world.call("GET")).status for _ in range(4)]) == [200, 200, 500, 500]
    world.relay.board.set_retries(CHAT, on=True)
    while world.place.budget.spend(asyncio.get_running_loop().time()):
        pass
    assert 500 in {(await world.call("GET")).status for _ in range(2)}


@in_world
async def test_a_broken_stream_ends_with_an_error_event_and_no_half_one(world: World) -> None:
    world.tell(await world.replica("a", streams(EVENT, 'data: {"n"', then="close")))
    reply = await world.call("POST", body=b"{}")
    assert not reply.cut
    first, second, rest = reply.body.split(b"\n\n")
    assert (first + b"\n\n", rest) == (EVENT.encode(), b"")
    kind, _, data = second.partition(b"\n")
    assert kind == b"event: error"
    assert json.loads(data.removeprefix(b"data: "))["error"]["code"] == "REPLICA_LOST"


@in_world
async def test_another_broken_answer_is_cut(world: World) -> None:
    async def half(heard: object, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        await writer.drain()
        writer.close()

    world.tell(await world.replica("a", half))
    reply = await world.call("GET")
    assert reply.cut


@in_world
async def test_a_silent_stream_ends(world: World) -> None:
    world.tell(await world.replica("a", streams(EVENT, then="silence")), idle_s=0.2)
    reply = await world.call("POST", body=b"{}")
    assert reply.body.startswith(EVENT.encode() + b"event: error")


@in_world
async def test_events_are_passed_on_one_by_one(world: World) -> None:
    gate = asyncio.Event()
    world.tell(await world.replica("a", streams(EVENT, EVENT, gate=gate)))
    reader, writer = await world.open("GET", "/")
    await reader.readuntil(b"\r\n\r\n")
    # The second is sent only after the first has arrived here.
    assert EVENT.encode() in await reader.readuntil(b"}\n\n\r\n")
    gate.set()
    assert EVENT.encode() in await reader.readuntil(b"}\n\n\r\n")
    writer.close()


@in_world
async def test_a_replica_hears_that_its_caller_has_gone(world: World) -> None:
    one = await world.replica("a", streams(EVENT, then="silence"))
    world.tell(one)
    reader, writer = await world.open("GET", "/")
    await reader.readuntil(b"}\n\n\r\n")
    assert world.place.replicas["a"].outstanding == 1
    writer.close()
    await until(lambda: not one.open and not world.place.replicas["a"].outstanding)


@in_world
async def test_who_gives_no_answer_in_time_is_passed_over(world: World) -> None:
    slow, good = await world.replica("a", hangs), await world.replica("b", answers("ok"))
    world.tell(slow, good, balance=Balance.ROUND_ROBIN, response_s=0.2)
    assert {(await world.call("GET")).body for _ in range(2)} == {b"ok"}
    world.tell(slow)
    reply = await world.call("POST", body=b"x")
    assert (reply.status, "no answer in 0.2 s" in str(reply.json()["message"])) == (502, True)


@in_world
async def test_a_slow_get_is_hedged(world: World) -> None:
    slow, good = await world.replica("a", hangs), await world.replica("b", answers("ok"))
    world.tell(slow, good, balance=Balance.ROUND_ROBIN, hedge_after_s=0.05)
    assert {(await world.call("GET")).body for _ in range(4)} == {b"ok"}
    assert all(live.outstanding == 0 for live in world.place.replicas.values())
    assert slow.heard


@in_world
async def test_a_request_waits_for_a_start_from_nothing(world: World) -> None:
    world.route = replace(world.route, scaling=Scaling(replicas_min=0, cold_start_s=20.0, cold_requests_max=2))
    world.tell()
    calls = [asyncio.create_task(world.call("POST", body=b"x")) for _ in range(3)]
    done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    (full,) = done
    assert (full.result().status, full.result().json()["code"]) == (503, "TOO_MANY_WAIT")
    assert int(full.result().headers["retry-after"]) > 0
    assert world.relay.board.loads([CHAT])[0].waiting == 2
    world.tell(await world.replica("a", answers("ok")))
    assert [(await call).body for call in calls if call is not full] == [b"ok", b"ok"]
    assert world.relay.board.loads([CHAT])[0].waiting == 0


@in_world
async def test_a_start_that_takes_too_long_is_told(world: World) -> None:
    world.route = replace(world.route, scaling=Scaling(replicas_min=0, cold_start_s=0.1), reason="no GPU is free")
    world.tell()
    reply = await world.call("GET")
    assert (reply.status, "no GPU is free" in str(reply.json()["message"])) == (503, True)
    assert int(reply.headers["retry-after"]) > 0


@in_world
async def test_a_replica_gets_no_more_at_a_time_than_it_takes(world: World) -> None:
    gate = asyncio.Event()
    one = await world.replica("a", streams(EVENT, EVENT, gate=gate))
    world.tell(one, outstanding_max=2, queue_s=20.0)
    calls = [asyncio.create_task(world.call("GET")) for _ in range(5)]
    await until(lambda: world.place.waiting == 3 and len(one.heard) >= 2)
    assert len(one.heard) == 2
    gate.set()
    assert [(await call).status for call in calls] == [200] * 5


@in_world
async def test_who_drains_or_is_ejected_gets_nothing(world: World) -> None:
    one, two = await world.replica("a", answers("a")), await world.replica("b", answers("b"))
    world.tell(one, two, balance=Balance.ROUND_ROBIN)
    world.relay.board.set_ejected(CHAT, "a", on=True)
    assert {(await world.call("GET")).body for _ in range(4)} == {b"b"}
    world.relay.board.set_ejected(CHAT, "a", on=False)
    assert {(await world.call("GET")).body for _ in range(4)} == {b"a", b"b"}
    world.tell(one, two, draining=True)
    reply = await world.call("GET")
    assert (reply.status, reply.json()["code"]) == (503, "NO_REPLICA")
    assert all(load.drained for load in world.relay.board.loads([CHAT])[0].backends)


@in_world
async def test_checks_see_who_is_down_and_who_is_back(world: World) -> None:
    one = await world.replica("a", answers("ok"))
    world.route = replace(world.route, health_path="/health", health_timeout_s=0.3)
    world.tell(one)
    world.checks.follow()
    live = world.place.replicas["a"]
    await until(lambda: bool(one.heard))
    assert (one.heard[0].target, live.up) == ("/health", True)
    one.serve = hangs
    await until(lambda: not live.up)
    one.serve = answers("ok")
    await until(lambda: live.up)


@in_world
async def test_models_are_found_at_any_place_in_the_body(world: World) -> None:
    one = await world.replica("a", answers("ok"))
    world.route = replace(world.route, model="tiny")
    world.tell(one)
    late = json.dumps({"messages": [{"role": "user", "content": "x" * 900_000}], "model": "tiny"}).encode()
    reply = await world.call("POST", "/v1/chat/completions", {"X-Corral-Service": ""}, late)
    assert (reply.status, one.heard[0].body) == (200, late)
    listed = await world.call("GET", "/v1/models", {"X-Corral-Service": ""})
    assert [entry["id"] for entry in listed.json()["data"]] == ["tiny"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "body, status, code",
    [
        (b'{"model": "large"}', 404, "NO_MODEL"),
        (b'{"prompt": "x"}', 400, "NO_MODEL"),
        (b"no json", 400, "INVALID_BODY"),
        (b'{"model": 7}', 400, "INVALID_BODY"),
        (b'{"model": "tiny", "prompt": "' + b"x" * 1_050_000 + b'"}', 413, "BODY_TOO_LARGE"),
    ],
)
def test_a_body_that_names_no_model_is_refused(tmp_path: Path, body: bytes, status: int, code: str) -> None:
    @in_world
    async def run(world: World) -> None:
        world.route = replace(world.route, model="tiny")
        world.tell(await world.replica("a", answers("ok")))
        reply = await world.call("POST", "/v1/completions", {"X-Corral-Service": ""}, body)
        assert (reply.status, reply.json()["error"]["code"]) == (status, code)  # type: ignore[index]

    run(tmp_path)


@in_world
async def test_a_body_beyond_the_services_limit_is_refused(world: World) -> None:
    one = await world.replica("a", answers("ok"))
    world.tell(one, body_max_bytes=10)
    reply = await world.call("POST", body=b"x" * 11)
    assert (reply.status, one.heard) == (413, [])


@in_world
async def test_nobody_is_asked_for_what_is_not_there(world: World) -> None:
    world.relay.board.apply(RoutingTable(1, "d"))
    assert (await world.call("GET")).status == 404
    assert world.relay.board.loads([ServiceName("chat")]) == ()


@in_world
async def test_no_http_is_refused(world: World) -> None:
    reader, writer = await asyncio.open_unix_connection(str(world.path))
    writer.write(b"\x16\x03\x01 hello\r\n\r\n")
    assert (await read_reply(reader)).status == 400
    writer.close()


@in_world
async def test_a_replica_that_speaks_no_http_has_failed(world: World) -> None:
    async def garbage(heard: object, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x00\x01garbage\r\n\r\n")

    bad, good = await world.replica("a", garbage), await world.replica("b", answers("ok"))
    world.tell(bad, good, balance=Balance.ROUND_ROBIN)
    assert {(await world.call("GET")).body for _ in range(3)} == {b"ok"}


@in_world
async def test_a_changed_protocol_passes_both_ways(world: World) -> None:
    async def echo(heard: object, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nhello")

    world.tell(await world.replica("a", echo))
    reader, writer = await world.open("GET", "/ws", {"Connection": "Upgrade", "Upgrade": "websocket"})
    assert b"101" in await reader.readuntil(b"\r\n\r\n")
    assert await reader.readexactly(5) == b"hello"
    assert world.place.replicas["a"].outstanding == 1
    writer.close()
    await until(lambda: not world.place.replicas["a"].outstanding)
