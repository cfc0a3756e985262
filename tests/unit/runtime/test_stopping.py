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

from corral.model.errors import JobsRunning
from corral.runtime.poolfile import load_pool, save_pool
from corral.runtime.starting import stopping
from corral.runtime.starting.launcher import running_supervisor
from corral.runtime.starting.stopping import stop_pool
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
def heads(tmp_path_factory: pytest.TempPathFactory, database_url: str) -> Iterator[tuple[Ground, Ground]]:
    """Give a head that leads and one that stands by, and each knows the other."""
    found = (Ground(tmp_path_factory.mktemp("a")), Ground(tmp_path_factory.mktemp("b")))
    try:
        for ground in found:
            ground.write()
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


def test_only_tasks_of_its_own_machine_keep_a_head(
    heads: tuple[Ground, Ground], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = heads
    save_pool(first.paths.pool, replace(load_pool(first.paths.pool), agents={"n1": "config"}))
    asked: list[tuple[Path, str]] = []

    def tasks(paths: Any, node: str) -> int:
        asked.append((paths.root, node))
        return 2

    monkeypatch.setattr(stopping, "running_tasks", tasks)
    with pytest.raises(JobsRunning, match="2 tasks run on this head's machine"):
        stop_pool(first.paths.root, force=False, leave_tasks=False)
    assert asked == [(first.paths.root, "n1")]
    assert running_supervisor(first.paths) is not None
    assert stop_pool(first.paths.root, force=False, leave_tasks=True).tasks_left == 2
    assert running_supervisor(first.paths) is None
