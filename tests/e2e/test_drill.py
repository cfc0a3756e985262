"""Drills on a real pool: what they kill, what they say, and what they refuse."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from corral.runtime.drilling.load import Load, Target
from corral.runtime.fronting.frontfile import load_ready
from tests.e2e.command import Corral
from tests.e2e.conftest import live_pool
from tests.e2e.livepool import LivePool
from tests.unit.serving.haproxy.world import free_port
from tests.waiting import wait_until

HELLO = Path(__file__).resolve().parents[2] / "examples" / "service" / "hello.py"
READY_S = 60.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("drills")]


@pytest.fixture(scope="module")
def pool() -> Iterator[LivePool]:
    with live_pool() as made:
        made.state_dir.mkdir(parents=True, mode=0o700)
        settings = f"serve_port = {free_port()}\nserve_metrics_port = {free_port()}\n"
        (made.state_dir / "config.toml").write_text(settings)
        made.up(nodes=2, gpus=2)
        made.client.serve(name="hello", run=[sys.executable, str(HELLO)], replicas=2, readiness="/health", workdir=None)
        whole(made)
        yield made


def whole(pool: LivePool) -> None:
    """Wait until two replicas are ready and the front end has them."""

    def look() -> bool:
        report = pool.client.service("hello")
        up = sum(one.up for one in report.load.backends) if report.load is not None else 0
        return report.ready == up == 2

    wait_until(look, READY_S, 0.1, what="two replicas")


def drill(pool: LivePool, kind: str, *more: str) -> dict[str, Any]:
    whole(pool)
    corral = Corral(pool.state_dir.parent)
    words = ("drill", "hello", "--kill", kind, "--rate", "50", "--seconds", "9", "--yes", "--json", *more)
    found: dict[str, Any] = json.loads(corral.ok("--state-dir", str(pool.state_dir), *words))
    assert found["requests"] >= 100
    return found


def test_nobody_notices_a_replica(pool: LivePool) -> None:
    jobs = {one.job for one in pool.client.service("hello").replicas}
    found = drill(pool, "replica")
    assert found["failed"] == 0
    assert found["broken"].startswith("replica ")
    assert found["ejected_s"] is not None
    whole(pool)
    assert len(jobs - {one.job for one in pool.client.service("hello").replicas}) == 1


def test_nobody_notices_a_controller(pool: LivePool) -> None:
    pid = json.loads(pool.paths.daemon.read_text())["pid"]
    found = drill(pool, "controller")
    assert (found["failed"], found["ejected_s"]) == (0, None)
    assert f"(pid {pid})" in found["broken"]
    assert json.loads(pool.paths.daemon.read_text())["pid"] != pid


def test_a_front_end_comes_back(pool: LivePool) -> None:
    before = load_ready(pool.paths)
    assert before is not None
    found = drill(pool, "frontend")
    assert f"(pid {before.pid})" in found["broken"]
    # Its proxy died with it: whoever came in between was not answered.
    assert found["failed"] > 0
    wait_until(lambda: (load_ready(pool.paths) or before).pid != before.pid, READY_S, what="another front end")
    whole(pool)


def test_a_node_is_killed_with_its_replicas(pool: LivePool) -> None:
    whole(pool)
    nodes = {f"node {one.node}" for one in pool.client.service("hello").replicas}
    found = drill(pool, "node")
    assert found["broken"] in nodes
    # What was killed before may have left both on one node: then nobody is there to answer for a while.
    assert found["failed"] == 0 or len(nodes) == 1
    whole(pool)


def test_who_has_live_traffic_is_asked_first(pool: LivePool) -> None:
    whole(pool)
    jobs = {one.job for one in pool.client.service("hello").replicas}
    with called(pool):
        done = Corral(pool.state_dir.parent)(
            "--state-dir", str(pool.state_dir), "drill", "hello", "--kill", "replica", "--seconds", "3"
        )
    assert done.code == 6
    assert "error[CONFLICT]: service hello is being called by others (--yes" in done.err
    assert jobs == {one.job for one in pool.client.service("hello").replicas}


@contextmanager
def called(pool: LivePool) -> Iterator[None]:
    """Call the service meanwhile."""
    over, begun = threading.Event(), threading.Event()
    front = load_ready(pool.paths)
    assert front is not None
    _, key = pool.client.issue_token("default", "caller", "test")

    async def call() -> None:
        load = Load(Target(front.url, "hello", "/", key), 20.0)
        async with load:
            while not over.is_set():
                if any(one.status == 200 for one in load.answers):
                    begun.set()
                await asyncio.sleep(0.02)

    thread = threading.Thread(target=lambda: asyncio.run(call()))
    thread.start()
    try:
        assert begun.wait(READY_S)
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("kind", ["node", "frontend", "controller"])
def test_what_runs_elsewhere_is_not_killed_from_here(pool: LivePool, kind: str, tmp_path: Path) -> None:
    whole(pool)
    url = json.loads(pool.paths.daemon.read_text())["url"]
    token = pool.paths.token.read_text().strip()
    done = Corral(tmp_path)("drill", "hello", "--kill", kind, "--yes", CORRAL_URL=url, CORRAL_TOKEN=token)
    assert done.code == 6
    assert "error[FAULT_ELSEWHERE]: " in done.err
