"""Which service a request is for, who may call it, and what its replica gets to see."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from corral.model.ids import TenantId
from corral.model.routes import RoutingTable
from corral.model.service import Balance, Guard
from corral.serving.affinity.router import AffinityRouter, write_hook
from tests.unit.serving.haproxy.world import PLAIN, World, backend, becomes, error_code, free_port, in_world, route
from tests.unit.serving.relay.world import Reply, answers

LISTEN = free_port()


@in_world()
async def test_a_service_is_found_by_host_port_and_path(world: World) -> None:
    one = await world.replica("r1", answers("one"))
    two = await world.replica("r2", answers("two"))
    await world.tell(
        route("shop", replace(PLAIN, hosts=("Shop.Example.org",)), backends=(backend(one),)),
        route("till", replace(PLAIN, listen=LISTEN), backends=(backend(two),)),
    )
    for host, path, port, expected in [
        ("shop", "/a?b=1", 0, "one"),
        ("shop:7480", "/", 0, "one"),
        ("SHOP.anything.example", "/", 0, "one"),
        ("shop.example.ORG", "/", 0, "one"),
        ("till", "/", 0, "two"),
        ("127.0.0.1", "/till/x/y", 0, "two"),
        ("127.0.0.1", "/till", 0, "two"),
        ("shop", "/", LISTEN, "two"),
    ]:
        reply = await world.call("GET", path, {"Host": host}, port=port)
        assert (reply.status, reply.body.decode()) == (200, expected), (host, path)
    assert [heard.target for heard in two.heard] == ["/", "/x/y", "/", "/"]
    assert two.heard[1].headers["x-forwarded-prefix"] == "/till"
    assert one.heard[0].target == "/a?b=1"
    for host, path in [("127.0.0.1", "/"), ("nobody", "/none/x"), ("x.shop", "/")]:
        reply = await world.call("GET", path, {"Host": host})
        assert (reply.status, error_code(reply)) == (404, "NOT_FOUND")


@in_world()
async def test_a_key_names_the_tenant_and_stays_in_the_front_end(world: World) -> None:
    one = await world.replica("r1", answers("one"))
    world.keys = {hashlib.sha256(b"key-of-a").hexdigest(): TenantId("a")}
    await world.serve(one, traffic=replace(PLAIN, keys=True, guard=Guard.TOKEN))
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"X-Api-Key": "wrong"}, {"Authorization": "Basic key-of-a"}):
        reply = await world.call(headers=headers)
        assert (reply.status, error_code(reply)) == (401, "KEY_NEEDED")
        assert reply.headers["www-authenticate"] == "Bearer"
    assert one.heard == []
    forged = {"X-Corral-Tenant": "root", "X-Corral-Front-End-Token": "x", "X-Forwarded-Prefix": "/evil"}
    for headers in ({"Authorization": "bearer key-of-a"}, {"X-Api-Key": "key-of-a"}):
        assert (await world.call(headers=headers | forged)).status == 200
    for heard in one.heard:
        assert heard.headers["x-corral-tenant"] == "a"
        assert heard.headers["x-corral-front-end-token"] == "s3cret"
        assert heard.headers["x-forwarded-for"] == "127.0.0.1"
        assert heard.headers["x-forwarded-proto"] == "http"
        assert not {"authorization", "x-api-key", "x-forwarded-prefix"} & heard.headers.keys()
    world.keys = {hashlib.sha256(b"key-of-b").hexdigest(): TenantId("b")}
    await world.tell(*world.routes)
    assert (await world.call(headers={"X-Api-Key": "key-of-a"})).status == 401
    assert (await world.call(headers={"X-Api-Key": "key-of-b"})).status == 200
    assert world.driver.problem == ""


@in_world()
async def test_a_service_that_asks_for_no_key_may_have_its_own(world: World) -> None:
    one = await world.replica("r1", answers("one"))
    await world.serve(one)
    assert (await world.call(headers={"Authorization": "Bearer its-own", "X-Api-Key": "its-own"})).status == 200
    assert one.heard[0].headers["authorization"] == "Bearer its-own"
    assert one.heard[0].headers["x-api-key"] == "its-own"
    assert "x-corral-tenant" not in one.heard[0].headers


@in_world()
async def test_a_tenant_may_ask_so_often(world: World) -> None:
    one = await world.replica("r1", answers("one"))
    world.keys = {hashlib.sha256(name.encode()).hexdigest(): TenantId(name) for name in "ab"}
    await world.serve(one, traffic=replace(PLAIN, keys=True, requests_s_max=0.5))
    replies = [await world.call(headers={"X-Api-Key": "a"}) for _ in range(12)]
    # Half a request a second is ten in twenty seconds.
    assert [reply.status for reply in replies] == [200] * 10 + [429] * 2
    assert error_code(replies[-1]) == "TOO_MANY_REQUESTS"
    assert replies[-1].headers["retry-after"] == "20"
    assert (await world.call(headers={"X-Api-Key": "b"})).status == 200


def chat(model: str, size: int = 0, *, first: bool = False) -> bytes:
    rest = {"messages": [{"role": "user", "content": "x" * size, "model": "decoy"}], "stream": False}
    document = {"model": model, **rest} if first else {**rest, "model": model}
    return json.dumps(document).encode()


@in_world()
async def test_openai_requests_go_where_the_model_is(world: World) -> None:
    one = await world.replica("r1", answers("one"))
    two = await world.replica("r2", answers("two"))
    await world.tell(
        route("small", backends=(backend(one),), model="org/small-1:q4"),
        route("large", backends=(backend(two),), model="large"),
    )

    async def ask(path: str, body: bytes, method: str = "POST") -> Reply:
        return await world.call(method, path, {"Host": "127.0.0.1"}, body)

    for size in (0, 20_000, 500_000, 1_000_000):
        for first in (True, False):
            assert (await ask("/v1/chat/completions", chat("org/small-1:q4", size, first=first))).body == b"one"
            assert (await ask("/v1/embeddings", chat("large", size, first=first))).body == b"two"
    assert (await ask("/v1/completions", chat("large"))).body == b"two"
    assert two.heard[-1].target == "/v1/completions"
    for body in (chat("unknown"), b"{}", b"[1]", b"not json", b'{"model": 7}'):
        reply = await ask("/v1/completions", body)
        assert (reply.status, error_code(reply)) == (404, "MODEL_NOT_FOUND")
    reply = await ask("/v1/completions", chat("large", 1_048_576))
    assert (reply.status, error_code(reply)) == (413, "BODY_TOO_LARGE")
    listed = (await ask("/v1/models", b"", "GET")).json()
    assert listed["object"] == "list"
    models = msgspec.convert(listed["data"], list[dict[str, object]])
    assert [model["id"] for model in models] == ["large", "org/small-1:q4"]


@in_world()
async def test_models_are_listed_to_who_may_call_them(world: World) -> None:
    one = await world.replica("r1", answers("one"))
    world.keys = {hashlib.sha256(b"k").hexdigest(): TenantId("a")}
    await world.serve(one, traffic=replace(PLAIN, keys=True), model="m")
    assert (await world.call("GET", "/v1/models", {"Host": "front"})).status == 401
    reply = await world.call("GET", "/v1/models", {"Host": "front", "X-Api-Key": "k"})
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")


@in_world()
async def test_every_request_is_in_the_log(world: World) -> None:
    one = await world.replica("r1", answers("one"))
    world.keys = {hashlib.sha256(b"k").hexdigest(): TenantId("a")}
    await world.serve(one)
    await world.call("POST", '/x"y\\?secret=1', {"X-Api-Key": "k", "X-Request-Id": 'i"1'}, b"12345")
    await world.call("GET", "/", {"Host": "nobody"})
    await becomes(lambda: len(world.lines) == 2, "two lines")
    line, lost = world.lines
    assert (line.service, line.tenant, line.replica, line.status) == ("shop", "a", "r1", 200)
    assert (line.method, line.path, line.id, line.ended) == ("POST", '/x"y\\', 'i"1', "--")
    assert 0 <= line.response_ms <= line.total_ms
    assert (line.retried, line.client) == (0, "127.0.0.1")
    assert abs(line.at / 1000 - 1.7e9) < 5e8
    assert (lost.service, lost.tenant, lost.replica, lost.status) == ("-", "-", "-", 404)


@pytest.mark.parametrize("balance", list(Balance))
def test_every_way_to_balance_reaches_every_replica(balance: Balance) -> None:
    @in_world()
    async def test(world: World) -> None:
        replicas = [await world.replica(f"r{number}", answers(str(number))) for number in range(4)]
        await world.serve(*replicas[:2], traffic=replace(PLAIN, balance=balance, hash_header="X-Session"))
        # Two more are added to the running proxy.
        await world.serve(*replicas, traffic=replace(PLAIN, balance=balance, hash_header="X-Session"))
        answered = {}
        for number in range(120):
            answered[number] = (await world.call(headers={"X-Session": f"s{number}"})).body
        assert set(answered.values()) == {b"0", b"1", b"2", b"3"}
        assert world.driver.problem == ""
        if balance is Balance.CONSISTENT_HASH:
            again = {n: (await world.call(headers={"X-Session": f"s{n}"})).body for n in range(120)}
            assert again == answered
            await world.serve(*replicas[:3], traffic=replace(PLAIN, balance=balance, hash_header="X-Session"))
            fewer = {n: (await world.call(headers={"X-Session": f"s{n}"})).body for n in range(120)}
            assert all(fewer[n] == answered[n] for n in range(120) if answered[n] != b"3")

    test()


def test_prompts_that_begin_alike_go_to_one_replica(tmp_path: Path) -> None:
    router = AffinityRouter(tmp_path / "r.sock")

    @in_world(affinity=write_hook(tmp_path, router.socket))
    async def test(world: World) -> None:
        await router.start()
        try:
            replicas = [await world.replica(f"r{number}", answers(str(number))) for number in range(3)]
            await world.serve(*replicas, traffic=replace(PLAIN, balance=Balance.PREFIX_AFFINITY))
            router.apply(RoutingTable(1, "d", world.routes))
            # Short, and long enough to be held: the beginning of a body is all that is looked at.
            for size in (3_000, 200_000):
                bodies = [b'{"prompt": "%s' % (b"x" * size) + b'%d"}' % number for number in range(5)]
                router.note(await world.load())
                assert len({(await world.call("POST", "/", {}, body)).body for body in bodies}) == 1
            assert (await world.call()).status == 200
        finally:
            router.close()
        assert (await world.call("POST", "/", {}, b"x")).status == 200

    test()
