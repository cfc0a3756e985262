"""Front ends on machines of their own: they are told by whoever leads, and go on without anybody."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial

import pytest

from bench.hosts import HostFailed
from bench.machines import Machines
from bench.pool import corral
from corral.client import Client
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.xdist_group("netns")]
LIMIT_S = 90.0
SERVE = "import http.server, os; http.server.test(http.server.SimpleHTTPRequestHandler, port=int(os.environ['PORT']))"


def call(pool: Machines, front: str) -> bool:
    """Call the service from another machine."""
    url = f"http://{pool.hosts[front].address}:7480/pages/"
    ask = f"import urllib.request; urllib.request.urlopen({url!r}, timeout=5).read()"
    try:
        pool.hosts["n3"].run([sys.executable, "-c", ask])
    except HostFailed:
        return False
    return True


@pytest.fixture
def fronts(five: Machines) -> Iterator[list[str]]:
    """Make two nodes front ends as well, in state directories of their own."""
    names = ["n1", "n2"]
    words = five.corral(five.leader()[0], "frontend", "token").split()
    variable, _, secret = words[0].partition("=")
    for name in names:
        environment = {variable: secret, "CORRAL_STATE_DIR": str(five.hosts[name].directory / "f")}
        arguments = ["frontend", "start", words[-1], "--host", five.hosts[name].address]
        five.hosts[name].run([*corral(), *arguments], environment=environment, timeout_s=LIMIT_S)
    yield names
    for name in names:
        environment = {"CORRAL_STATE_DIR": str(five.hosts[name].directory / "f")}
        five.hosts[name].run([*corral(), "frontend", "stop"], environment=environment, timeout_s=LIMIT_S)


def test_front_ends_serve_by_what_they_were_told_last(five: Machines, fronts: list[str]) -> None:
    with five.client() as client:
        traffic: dict[str, str | bool] = {"keys": False, "guard": "none"}
        run = [sys.executable, "-c", SERVE]
        client.serve(name="pages", run=run, workdir=None, replicas=2, readiness="/", traffic=traffic)
        try:
            wait_until(lambda: client.service("pages").ready == 2, LIMIT_S, 0.2, what="two replicas")
            for front in fronts:
                wait_until(partial(call, five, front), LIMIT_S, 0.2, what=f"{front} to serve")
            wait_until(
                lambda: {one.name for one in client.front_ends() if one.current} >= set(fronts),
                LIMIT_S,
                0.2,
                what="the front ends to tell that they have the newest routes",
            )
            for head in five.heads:
                five.hosts[head].cut()
            try:
                assert all(call(five, front) for front in fronts for _ in range(5))
            finally:
                for head in five.heads:
                    five.hosts[head].mend()
            for node in five.nodes:
                wait_until(partial(up, client, node), LIMIT_S, 0.2, what=f"{node} to be up again")
        finally:
            client.remove_service("pages")
            wait_until(lambda: not client.services(), LIMIT_S, 0.2, what="the service to be gone")


def up(client: Client, node: str) -> bool:
    return any(one.spec.id == node and one.state == "up" for one in client.nodes())
