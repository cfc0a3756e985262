"""A driver with a real HAProxy, real replicas behind it, and calls through it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from corral.model.ids import JobId, ServiceName, TenantId
from corral.model.routes import Backend, Route, RouteLoad, RoutingTable
from corral.model.service import Guard, Scaling, Secrets, Traffic
from corral.serving.access.reader import AccessLog
from corral.serving.haproxy.config import ProxyConfig
from corral.serving.haproxy.driver import Driver
from corral.serving.haproxy.logline import AccessLine, read_line
from tests.unit.serving.relay.world import Replica, Reply, Serve, read_reply
from tests.waiting import wait_until_async

SHOP = ServiceName("shop")
PLAIN = Traffic(keys=False, guard=Guard.NONE)


def free_port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return int(trial.getsockname()[1])


def route(name: str = SHOP, traffic: Traffic = PLAIN, **more: Any) -> Route:
    return Route(ServiceName(name), TenantId("acme"), traffic, Scaling(), Secrets("s3cret"), **more)


class World:
    """One front end's proxy. ``routes`` are what it was told last."""

    def __init__(self, folder: Path, config: ProxyConfig) -> None:
        self.folder = folder
        self.config = config
        self.driver = Driver(config)
        self.routes: tuple[Route, ...] = ()
        self.keys: dict[str, TenantId] = {}
        self.replicas: list[Replica] = []
        assert config.access_log is not None
        self._log_file = folder / "access.log"
        self.access = AccessLog(config.access_log, self._log_file)

    @property
    def lines(self) -> list[AccessLine]:
        """Return the lines of the access log so far."""
        lines = map(read_line, self._log_file.read_bytes().splitlines())
        return [line for line in lines if line is not None]

    async def start(self) -> None:
        await self.access.start()
        await self.driver.start()

    async def close(self) -> None:
        await self.driver.close()
        self.access.close()
        for replica in self.replicas:
            await replica.end()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def replica(self, name: str, serve: Serve) -> Replica:
        replica = Replica(name, serve)
        await replica.start()
        self.replicas.append(replica)
        return replica

    async def tell(self, *routes: Route) -> None:
        """Route by these from now on."""
        self.routes = routes
        await self.driver.apply(RoutingTable(1, "d", routes, self.keys))

    async def serve(self, *replicas: Replica, traffic: Traffic = PLAIN, **more: Any) -> None:
        """Route one service to these replicas from now on."""
        await self.tell(route(traffic=traffic, backends=tuple(backend(one) for one in replicas), **more))

    async def load(self, name: str = SHOP) -> RouteLoad:
        return next(load for load in await self.driver.loads() if load.service == name)

    async def up(self, *names: str, service: str = SHOP) -> bool:
        """Tell whether exactly these backends are up."""
        load = await self.load(service)
        return {one.name for one in load.backends if one.up} == set(names)

    async def open(
        self, method: str, target: str, headers: dict[str, str] | None = None, body: bytes = b"", port: int = 0
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port or self.config.port)
        said = {"Host": SHOP, **(headers or {})}
        if body:
            said.setdefault("Content-Length", str(len(body)))
        lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in said.items() if value), "", ""]
        writer.write("\r\n".join(lines).encode() + body)
        return reader, writer

    async def call(
        self,
        method: str = "GET",
        target: str = "/",
        headers: dict[str, str] | None = None,
        body: bytes = b"",
        port: int = 0,
    ) -> Reply:
        reader, writer = await self.open(method, target, headers, body, port)
        try:
            return await read_reply(reader, head_only=method == "HEAD")
        finally:
            writer.close()


async def becomes(holds: Callable[[], bool | Awaitable[bool]], what: str) -> None:
    """Wait until something holds."""
    await wait_until_async(holds, what=what)


def backend(replica: Replica, **more: Any) -> Backend:
    return Backend(replica.name, JobId("1"), 1, more.pop("revision", 1), "127.0.0.1", replica.port, **more)


def error_code(reply: Reply) -> object:
    error = reply.json()["error"]
    assert isinstance(error, dict)
    return error["code"]


@contextlib.asynccontextmanager
async def world(*, with_relay: bool = False, **settings: Any) -> AsyncIterator[World]:
    folder = Path(tempfile.mkdtemp(prefix="cp", dir="/tmp"))
    config = ProxyConfig(folder / "p", port=free_port(), access_log=folder / "log.sock", threads=1)
    if with_relay:
        settings["relay"] = folder / "relay.sock"
    made = World(folder, replace(config, **settings))
    try:
        await made.start()
        yield made
    finally:
        await made.close()
        shutil.rmtree(folder)


def in_world(
    **settings: Any,
) -> Callable[[Callable[[World], Coroutine[Any, Any, None]]], Callable[[], None]]:
    """Run a test in a world of its own."""

    def decorate(test: Callable[[World], Coroutine[Any, Any, None]]) -> Callable[[], None]:
        def run() -> None:
            async def inside() -> None:
                async with asyncio.timeout(60), world(**settings) as made:
                    await test(made)

            asyncio.run(inside())

        functools.update_wrapper(run, test)
        # Else pytest would take the arguments of what is wrapped for fixtures.
        del run.__wrapped__  # type: ignore[attr-defined]
        return run

    return decorate
