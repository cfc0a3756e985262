"""Servers come, drain, go and are ejected in a running proxy, and no request notices."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from corral.model.ids import TenantId
from corral.model.routes import BackendLoad
from corral.model.service import Balance
from corral.serving.haproxy.observed import parse_servers
from tests.unit.serving.haproxy.world import PLAIN, SHOP, World, backend, becomes, in_world, route
from tests.unit.serving.relay.world import answers, hangs, read_reply, streams

EVENT = "data: x\n\n"
ROUND = replace(PLAIN, balance=Balance.ROUND_ROBIN)


async def server_names(world: World) -> set[str]:
    """Return the servers that the proxy has now."""
    running = world.driver._running
    [state] = await running._admin.ask(running.worker, ["show servers state"])
    return set(parse_servers(state).get(SHOP, {}))


async def worker(world: World) -> int:
    there = (await world.driver._running._admin.processes()).worker
    assert there is not None
    return there


async def of(world: World, name: str) -> BackendLoad:
    return next(one for one in (await world.load()).backends if one.name == name)


async def answered(world: World, count: int = 8) -> set[bytes]:
    return {(await world.call()).body for _ in range(count)}


@in_world()
async def test_replicas_come_drain_and_go_and_a_stream_ends_well(world: World) -> None:
    gate = asyncio.Event()
    one = await world.replica("r1", streams(EVENT, EVENT, gate=gate))
    await world.serve(one, traffic=ROUND)
    reader, writer = await world.open("GET", "/stream")
    assert (await reader.readuntil(b"data: x\n\n")).startswith(b"HTTP/1.1 200")
    before = await worker(world)
    two = await world.replica("r2", answers("two"))
    await world.tell(route(traffic=ROUND, backends=(backend(one, draining=True), backend(two))))
    assert await answered(world) == {b"two"}
    seen = await of(world, "r1")
    assert (seen.outstanding, seen.drained, seen.up) == (1, False, True)
    # It goes from the table while its stream goes on.
    await world.serve(two, traffic=ROUND)
    assert await answered(world) == {b"two"}
    assert await server_names(world) == {"r1", "r2"}
    gate.set()
    rest = await reader.readuntil(b"0\r\n\r\n")
    assert b"data: x\n\n" in rest
    writer.close()

    async def gone() -> bool:
        return await server_names(world) == {"r2"}

    await becomes(gone, "the server to go")
    assert await worker(world) == before, "nothing of this needs another process"
    assert world.driver.problem == ""


@in_world()
async def test_a_replica_that_drains_is_drained_when_its_last_request_is_over(world: World) -> None:
    gate = asyncio.Event()
    one = await world.replica("r1", streams(EVENT, EVENT, gate=gate))
    two = await world.replica("r2", answers("two"))
    await world.serve(one)
    reader, writer = await world.open("GET", "/stream")
    await reader.readuntil(EVENT.encode())
    await world.tell(route(backends=(backend(one, draining=True), backend(two))))
    first = await worker(world)
    # Another service means another process; the stream stays in the old one, and is seen there.
    await world.tell(*world.routes, route("other"))
    assert await worker(world) != first
    seen = await of(world, "r1")
    assert (seen.outstanding, seen.drained, seen.requests) == (1, False, 1)
    assert await answered(world) == {b"two"}
    gate.set()
    await reader.readuntil(b"0\r\n\r\n")
    writer.close()

    async def drained() -> bool:
        return (await of(world, "r1")).drained

    await becomes(drained, "the replica to be drained")
    load = await world.load()
    assert (load.requests, load.errors, load.outstanding) == (9, 0, 0), "what gone processes counted stays counted"


@in_world()
async def test_an_ejected_replica_gets_nothing_until_it_is_back(world: World) -> None:
    one, two = await world.replica("r1", answers("one")), await world.replica("r2", answers("two"))
    await world.serve(one, two, traffic=ROUND)
    assert await answered(world) == {b"one", b"two"}
    await world.driver.set_ejected(SHOP, "r1", on=True)
    assert await answered(world) == {b"two"}
    assert (await of(world, "r1")).ejected
    await world.tell(*world.routes, route("other"))
    assert await answered(world) == {b"two"}, "another process knows, too"
    await world.driver.set_ejected(SHOP, "r1", on=False)
    assert await answered(world) == {b"one", b"two"}


@in_world()
async def test_a_canary_gets_its_share(world: World) -> None:
    stable = [await world.replica(f"r{number}", answers("stable")) for number in range(3)]
    canary = await world.replica("c", answers("canary"))
    backends = (*(backend(one) for one in stable), backend(canary, revision=2))
    await world.tell(route(backends=backends, shares={1: 90, 2: 10}))
    bodies = [(await world.call()).body for _ in range(200)]
    # Taking turns by weights of 256 and 85: one in ten, and off by one round at most.
    assert abs(bodies.count(b"canary") - 20) <= 2
    await world.tell(route(backends=backends, shares={1: 50, 2: 50}))
    bodies = [(await world.call()).body for _ in range(200)]
    assert abs(bodies.count(b"canary") - 100) <= 4


@in_world()
async def test_a_replica_that_moved_under_its_name_is_found_at_its_new_place(world: World) -> None:
    one = await world.replica("r1", answers("old"))
    await world.serve(one)
    assert await answered(world, 2) == {b"old"}
    moved = await world.replica("r1", answers("new"))
    await world.serve(moved)

    async def new() -> bool:
        return (await world.call()).body == b"new"

    await becomes(new, "the new place")
    assert world.driver.problem == ""


@in_world()
async def test_hosts_are_looked_up_and_one_that_is_unknown_stops_nobody(world: World) -> None:
    one = await world.replica("r1", answers("one"))
    lost = replace(backend(one), name="r2", address="no-such-host.invalid")
    await world.tell(route(backends=(replace(backend(one), address="localhost"), lost)))
    assert await answered(world, 2) == {b"one"}
    assert "no-such-host.invalid" in world.driver.problem


@in_world()
async def test_more_requests_than_replicas_take_wait_in_line(world: World) -> None:
    gate = asyncio.Event()
    one = await world.replica("r1", streams(EVENT, EVENT, gate=gate))
    await world.serve(one, traffic=replace(PLAIN, outstanding_max=1, queue_s=0.2))
    reader, writer = await world.open("GET", "/")
    await reader.readuntil(EVENT.encode())
    refused = await world.call()
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    waits, second = await world.open("GET", "/")
    gate.set()
    await reader.readuntil(b"0\r\n\r\n")
    assert (await read_reply(waits)).status == 200
    writer.close()
    second.close()
    assert [heard.target for heard in one.heard] == ["/", "/"]


@in_world()
async def test_keys_and_reasons_are_told_without_another_process(world: World) -> None:
    await world.tell(route(reason='a "replica"; is\nstarting 50%'))
    before = await worker(world)
    refused = await world.call()
    assert (refused.status, refused.headers["retry-after"]) == (503, "5")
    assert refused.json() == {
        "error": {
            "code": "NO_REPLICA",
            "message": 'no replica of shop is ready: a "replica"; is\nstarting 50%',
            "type": "front_end",
        }
    }
    world.keys = {f"{number:064x}": TenantId("a") for number in range(250)}
    await world.tell(route(reason=""))
    assert "none of them answers" in (await world.call()).body.decode()
    world.keys = {}
    await world.tell(route(reason="at rest"))
    assert "at rest" in (await world.call()).body.decode()
    assert await worker(world) == before
    assert world.driver.problem == ""


@in_world()
async def test_retries_stop_when_they_are_told_to(world: World) -> None:
    async def fails(heard: object, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n")

    bad, good = await world.replica("r1", fails), await world.replica("r2", answers("good"))
    await world.serve(bad, good, traffic=ROUND)
    assert {(await world.call()).status for _ in range(6)} == {200}
    assert (await world.load()).retries > 0
    await world.driver.set_retries(SHOP, on=False)
    assert {(await world.call()).status for _ in range(6)} == {200, 500}
    await world.driver.set_retries(SHOP, on=True)
    assert {(await world.call()).status for _ in range(6)} == {200}


@in_world()
async def test_least_outstanding_leaves_out_who_is_busy(world: World) -> None:
    slow, fast = await world.replica("r1", hangs), await world.replica("r2", answers("fast"))
    await world.serve(slow, fast)
    opened = []
    while not slow.heard:
        opened.append(await world.open("GET", "/"))
        await becomes(lambda: len(slow.heard) + len(fast.heard) == len(opened), "one more to arrive")
    assert await answered(world, 10) == {b"fast"}
    for _, writer in opened:
        writer.close()


@in_world()
async def test_an_address_may_be_written_in_many_ways(world: World) -> None:
    one = await world.replica("r1", answers("one"))
    told = route(backends=(replace(backend(one), address="0:0:0:0:0:FFFF:7F00:0001"),))
    for _ in range(3):
        await world.tell(told)
    assert await answered(world, 3) == {b"one"}
    assert await server_names(world) == {"r1"}
    assert not world.driver._running.leaving
    assert world.driver.problem == ""
