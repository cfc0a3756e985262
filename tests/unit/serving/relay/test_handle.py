from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import pytest

from corral.model.errors import ProxyFault
from corral.model.ids import JobId, TenantId
from corral.model.routes import Backend, Route, RoutingTable
from corral.model.service import Guard, Retry, Scaling, Secrets, Traffic
from corral.serving.relay.handle import RelayProcess
from tests.unit.serving.relay.world import CHAT, Replica, Reply, answers, read_reply

ROUTE = Route(CHAT, TenantId("t"), Traffic(guard=Guard.NONE, stream=True), Scaling(), Secrets("s"))


def table(*replicas: Replica) -> RoutingTable:
    backends = tuple(Backend(one.name, JobId("1"), 1, 1, "127.0.0.1", one.port) for one in replicas)
    return RoutingTable(
        1, str(len(replicas)), (Route(CHAT, TenantId("t"), ROUTE.traffic, ROUTE.scaling, ROUTE.secrets, backends),)
    )


async def call(path: Path) -> Reply:
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nX-Corral-Service: chat\r\n\r\n")
    reply = await read_reply(reader)
    writer.close()
    return reply


@pytest.mark.parametrize(
    "route, passes",
    [
        (Route(CHAT, TenantId("t"), Traffic(), Scaling(), Secrets("s")), False),
        (ROUTE, True),
        (Route(CHAT, TenantId("t"), Traffic(), Scaling(replicas_min=0), Secrets("s")), True),
        (Route(CHAT, TenantId("t"), Traffic(hedge_after_s=0.1), Scaling(), Secrets("s")), True),
        (Route(CHAT, TenantId("t"), Traffic(retry=Retry.BEFORE_FIRST_TOKEN), Scaling(), Secrets("s")), True),
        (Route(CHAT, TenantId("t"), Traffic(), Scaling(), Secrets("s"), model="m"), True),
    ],
)
def test_only_services_that_need_it_pass_the_relay(route: Route, passes: bool) -> None:
    assert route.relayed is passes


def test_a_relay_lives_as_long_as_somebody_needs_it_and_knows_what_was_said(tmp_path: Path) -> None:
    async def run() -> None:
        one, two = Replica("a", answers("a")), Replica("b", answers("b"))
        await one.start()
        await two.start()
        first = RelayProcess(tmp_path, tmp_path / "log")
        await first.apply(RoutingTable(1, "none"))
        await first.start()
        assert await first.loads() == ()
        assert not first.socket.exists()
        await first.apply(table(one, two))
        await first.set_ejected(CHAT, "a", on=True)
        assert (await call(first.socket)).body == b"b"
        (load,) = await first.loads()
        assert (load.service, load.requests) == (CHAT, 1)
        assert first.seen.cpu_s > 0
        # Killed: whoever asks next starts it again, with routes and ejections.
        os.kill(first.seen.pid, signal.SIGKILL)
        with contextlib.suppress(ProxyFault):
            await first.loads()
        (load,) = await first.loads()
        assert {backend.name: backend.ejected for backend in load.backends} == {"a": True, "b": False}
        assert (await call(first.socket)).body == b"b"
        # The next front end takes over the one that is there, which served meanwhile.
        await first.leave()
        assert (await call(first.socket)).body == b"b"
        other = RelayProcess(tmp_path, tmp_path / "log")
        await other.apply(table(one))
        assert (await call(other.socket)).body == b"a"
        (load,) = await other.loads()
        assert other.seen.pid == first.seen.pid
        await other.close()
        await one.end()
        await two.end()

    async def limited() -> None:
        async with asyncio.timeout(60):
            await run()

    asyncio.run(limited())
