from __future__ import annotations

import asyncio
from pathlib import Path

from msgspec.structs import replace

from corral.model.errors import Unavailable
from corral.model.ids import JobId, ServiceName, TenantId
from corral.model.routes import Backend, BackendLoad, FrontEndReport, Route, RoutingTable
from corral.model.service import Balance, Guard, Retry, Scaling, Secrets, Traffic
from corral.serving.frontend import Around, FrontEnd, Identity, load_table, save_table
from corral.serving.haproxy.config import ProxyConfig
from corral.serving.haproxy.driver import Driver
from corral.serving.relay.handle import RelayProcess
from tests.unit.serving.haproxy.world import free_port
from tests.unit.serving.relay.world import Replica, Reply, answers, read_reply, until

SHOP, CHAT = ServiceName("shop"), ServiceName("chat")


class Controller:
    """A controller that says what the test lays down, until it is away."""

    def __init__(self) -> None:
        self.table_now = RoutingTable(1, "empty")
        self.changed = asyncio.Event()
        self.away = False
        self.reports: list[FrontEndReport] = []

    def say(self, table: RoutingTable) -> None:
        self.table_now = table
        self.changed.set()
        self.changed = asyncio.Event()

    async def table(self, after: str | None, timeout_s: float) -> RoutingTable:
        changed = self.changed
        if not self.away and self.table_now.digest == after:
            try:
                async with asyncio.timeout(timeout_s):
                    await changed.wait()
            except TimeoutError:
                pass
        if self.away:
            raise Unavailable("gone")
        return self.table_now

    async def report(self, report: FrontEndReport) -> None:
        if self.away:
            raise Unavailable("gone")
        self.reports.append(report)


def route(name: ServiceName, *replicas: Replica, **traffic: object) -> Route:
    backends = tuple(Backend(one.name, JobId("1"), 1, 1, "127.0.0.1", one.port) for one in replicas)
    said = replace(Traffic(keys=False, guard=Guard.NONE, balance=Balance.ROUND_ROBIN), **traffic)
    return Route(name, TenantId("t"), said, Scaling(), Secrets("s"), backends)


async def call(port: int, host: str, method: str = "GET") -> Reply:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{method} / HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n".encode())
    reply = await read_reply(reader)
    writer.close()
    return reply


def test_a_front_end_follows_watches_and_goes_on_alone(tmp_path: Path) -> None:
    async def run() -> None:
        good, bad = Replica("a", answers("a")), Replica("b", answers("b"))
        await good.start()
        await bad.start()
        port, controller = free_port(), Controller()
        relay = RelayProcess(tmp_path, tmp_path / "relay.log")
        proxy = Driver(ProxyConfig(folder=tmp_path / "proxy", port=port, relay=relay.socket, threads=1))
        well: list[bool] = []
        kept = tmp_path / "routes.json"
        front = FrontEnd(
            Identity("f1", "http://f1"), controller, (relay, proxy), kept, around=Around(on_well=well.append)
        )
        running = asyncio.create_task(front.run())
        try:
            both = (route(SHOP, good, bad), route(CHAT, good, bad, stream=True, retry=Retry.BEFORE_FIRST_TOKEN))
            controller.say(RoutingTable(2, "both", both))
            await until(lambda: any(len(one.loads) == 2 for one in controller.reports))
            for host in ("shop", "chat"):
                bodies: set[bytes] = set()
                while bodies != {b"a", b"b"}:
                    bodies.add((await call(port, host)).body)
            assert load_table(kept).digest == "both"
            # One fails whatever it is asked: it is taken out of both, by the proxy and by the relay.
            bad.serve = answers("no", 500)
            for host in ("shop", "chat"):
                while not any(one.ejected for one in loads(controller, host)):
                    await call(port, host, "POST")
                assert {(await call(port, host, "POST")).body for _ in range(6)} == {b"a"}
            # An older leader is not believed, and nobody is needed.
            controller.say(RoutingTable(1, "old", ()))
            controller.away = True
            assert (await call(port, "shop")).body == b"a"
            assert front.table.digest == "both"
            controller.away = False
            controller.say(RoutingTable(3, "less", both[:1]))
            await until(lambda: controller.reports[-1].digest == "less")
            assert (await call(port, "chat")).status == 404
            assert True in well
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await good.end()
            await bad.end()

    async def limited() -> None:
        async with asyncio.timeout(90):
            await run()

    asyncio.run(limited())


def loads(controller: Controller, service: str) -> list[BackendLoad]:
    return [one for load in controller.reports[-1].loads if load.service == service for one in load.backends]


def test_a_kept_table_survives_and_a_damaged_one_is_none(tmp_path: Path) -> None:
    path = tmp_path / "routes.json"
    assert load_table(path) == RoutingTable(0, "")
    table = RoutingTable(4, "d", (route(SHOP),), {"digest": TenantId("t")})
    save_table(path, table)
    assert load_table(path) == table
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_bytes(b'{"epoch": 4')
    assert load_table(path) == RoutingTable(0, "")
