"""Stopping one of several heads: the pool is not its to stop."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from corral.agent.nodefiles import NodeFiles
from corral.model.errors import DaemonNotRunning, Unavailable
from corral.model.events import GangStopping
from corral.runtime.poolfile import load_pool, save_pool
from corral.runtime.starting import stopping
from corral.runtime.starting.launcher import running_supervisor
from corral.runtime.starting.stopping import stop_pool
from corral.runtime.starting.topology import running_tasks
from tests.unit.runtime.ground import Ground
from tests.waiting import wait_until


def alive(ground: Ground) -> dict[str, Any]:
    """Return what a head says of itself, without being led elsewhere."""
    url = json.loads(ground.paths.daemon.read_text())["url"]
    with urllib.request.urlopen(f"{url}/v1/health", timeout=10) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def known(ground: Ground) -> bool:
    return bool(json.loads(ground.paths.daemon.read_text())["heads"])


@pytest.fixture
def agents(request: pytest.FixtureRequest) -> bool:
    """Whether the machine of the head that leads is a node."""
    return getattr(request, "param", False)


@pytest.fixture
def heads(
    tmp_path_factory: pytest.TempPathFactory, database_url: str, *, agents: bool
) -> Iterator[tuple[Ground, Ground]]:
    """Give a head that leads and one that stands by, and each knows the other."""
    found = (Ground(tmp_path_factory.mktemp("a")), Ground(tmp_path_factory.mktemp("b")))
    try:
        for ground in found:
            ground.write(agents=agents and ground is found[0])
            save_pool(ground.paths.pool, replace(load_pool(ground.paths.pool), store=database_url))
            ground.supervisor()
            ground.announced()
            wait_until(lambda: alive(found[0])["leads"], 30.0, what="the first head to lead")
        for ground in found:
            wait_until(partial(known, ground), 30.0, what="the heads to know each other")
        yield found
    finally:
        for ground in found:
            ground.close()


def test_a_head_that_stands_by_ends_alone(heads: tuple[Ground, Ground]) -> None:
    first, second = heads
    before = alive(first)
    report = stop_pool(second.paths.root, force=False, leave_tasks=False)
    assert (report.tasks_left, report.one_head) == (0, True)
    assert running_supervisor(second.paths) is None
    assert alive(first) == before
    assert running_supervisor(first.paths) is not None


def test_the_head_that_leads_hands_over(heads: tuple[Ground, Ground]) -> None:
    first, second = heads
    assert stop_pool(first.paths.root, force=True, leave_tasks=False).one_head
    wait_until(lambda: alive(second)["leads"], 30.0, what="the other head to lead")
    assert running_supervisor(second.paths) is not None
    # Commands on the machine of the first go on at the second.
    with first.client() as client:
        assert client.status().pid == json.loads(second.paths.daemon.read_text())["pid"]
    with pytest.raises(DaemonNotRunning, match="no pool runs on"):
        stop_pool(first.paths.root)


def test_the_last_head_that_answers_stops_the_pool_and_says_so(heads: tuple[Ground, Ground]) -> None:
    first, second = heads
    report = stop_pool(second.paths.root)
    assert (report.one_head, report.last_head) == (True, False)
    report = stop_pool(first.paths.root)
    assert (report.one_head, report.last_head) == (False, True)
    assert running_supervisor(first.paths) is None


@pytest.mark.parametrize("agents", [True], indirect=True)
def test_the_tasks_of_a_head_that_is_stopped_save_themselves_and_wait_at_the_others(
    heads: tuple[Ground, Ground], tmp_path: Path
) -> None:
    first, second = heads
    saved = tmp_path / "saved"
    with first.client() as client:
        run = f"trap 'echo 7 >{saved}; exit 0' USR1; echo begun; while :; do sleep 0.1; done"
        job = client.submit(run=run, gpus=1, workdir=None, checkpoint={"signal": "USR1", "grace": "30s"})
        wait_until(lambda: b"begun" in b"".join(chunk.data for chunk in job.logs()), 60.0, what="the task to begin")
    report = stop_pool(first.paths.root)
    assert (report.tasks_left, report.tasks_killed, report.one_head) == (0, 0, True)
    assert saved.read_text() == "7\n"
    wait_until(lambda: alive(second)["leads"], 30.0, what="the other head to lead")
    with second.client() as client:
        gang = client.job(job.id).gangs[0]
        facts = [entry.fact for entry in client.history(job.id)]
    assert (gang.state, gang.preemptions, gang.restarts) == ("pending", 1, 0)
    assert [fact.drained for fact in facts if isinstance(fact, GangStopping)] == ["node-1"]


def test_who_cannot_be_asked_to_save_himself_is_not_killed_without_a_word(
    heads: tuple[Ground, Ground], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = heads
    save_pool(first.paths.pool, replace(load_pool(first.paths.pool), agents={"n1": "config"}))
    asked: list[tuple[Path, str]] = []

    def tasks(paths: Any, node: str) -> int:
        asked.append((paths.root, node))
        return 2

    monkeypatch.setattr(stopping, "running_tasks", tasks)
    with pytest.raises(Unavailable, match=r"nobody asks the tasks .* there is no node 'n1'"):
        stop_pool(first.paths.root)
    assert set(asked) == {(first.paths.root, "n1")}
    assert running_supervisor(first.paths) is not None
    assert stop_pool(first.paths.root, leave_tasks=True).tasks_left == 2
    assert running_supervisor(first.paths) is None


@pytest.mark.parametrize("how, killed, left", [("force", 1, 0), ("leave_tasks", 0, 1)])
def test_what_becomes_of_tasks_whose_pool_does_not_answer_is_said(
    tmp_path: Path, how: str, killed: int, left: int
) -> None:
    ground = Ground(tmp_path)
    try:
        ground.write(agents=True)
        ground.supervisor()
        ground.announced()
        with ground.client() as client:
            wait_until(lambda: client.status().nodes_up == 1, 30.0, what="the node to be up")
            job = client.submit(run="echo begun; sleep 600", gpus=1, workdir=None)
            wait_until(lambda: b"begun" in b"".join(c.data for c in job.logs()), 60.0, what="the task to begin")
        # Nobody listens there: as with a head that has lost its database, or its lead, in this moment.
        ground.paths.daemon.write_text(json.dumps({"url": "http://127.0.0.1:9", "pid": 1}))
        report = stop_pool(ground.paths.root, force=how == "force", leave_tasks=how == "leave_tasks")
        assert (report.tasks_killed, report.tasks_left) == (killed, left)
        assert running_tasks(ground.paths, "node-1") == left
        assert running_supervisor(ground.paths) is None
    finally:
        NodeFiles().fence(ground.paths.nodes / "node-1")
        ground.close()
