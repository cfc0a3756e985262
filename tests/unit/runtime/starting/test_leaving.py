"""A node that leaves: what it waits for, what it kills, and when it stays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.agent.nodefiles import NodeFiles
from corral.model.errors import DaemonNotRunning, HeadUnreachable, JobsRunning
from corral.runtime.machines.cluster import ClusterFile, Head, save_cluster
from corral.runtime.paths import StatePaths
from corral.runtime.poolfile import PoolFile, save_pool
from corral.runtime.starting import leaving
from corral.runtime.starting.launcher import prepare
from corral.runtime.starting.leaving import leave


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StatePaths:
    """Give a machine that has joined a pool whose only head is away."""
    paths = StatePaths(tmp_path / "s")
    prepare(paths)
    save_pool(paths.pool, PoolFile(host="127.0.0.1", fork_socket=str(paths.fork_socket), agents={}, role="node"))
    save_cluster(paths.cluster, ClusterFile(gcs="", heads=(Head("http://127.0.0.1:1"),), node="n1"))
    paths.node_token.write_text("corral_node_x\n")
    monkeypatch.setattr(leaving, "LOOK_S", 0.0)
    monkeypatch.setattr(leaving, "POLL_S", 0.0)
    return paths


class Account:
    """What is told of a node, look by look: gangs by the heads' account (``None``: none answers), tasks on it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *looks: tuple[int | None, int]) -> None:
        self._looks: Iterator[tuple[int | None, int]] = iter(looks)
        self._running = 0
        self.asked: list[bool] = []
        self.fenced: list[str] = []
        monkeypatch.setattr(leaving, "running_supervisor", lambda _: 1)
        monkeypatch.setattr(leaving, "end_running_supervisor", lambda _: None)
        monkeypatch.setattr(leaving, "_ask_heads", self._ask)
        monkeypatch.setattr(leaving, "running_tasks", lambda *_: self._running)
        monkeypatch.setattr(NodeFiles, "fence", lambda _, place: self._fence(place))

    def _ask(self, *_: object, drain: bool) -> int | None:
        self.asked.append(drain)
        left, self._running = next(self._looks, (0, 0))
        return left

    def _fence(self, place: Path) -> None:
        self.fenced.append(place.name)


def test_it_waits_until_the_heads_know_that_all_is_over(node: StatePaths, monkeypatch: pytest.MonkeyPatch) -> None:
    account = Account(monkeypatch, (2, 2), (1, 1), (None, 0), (1, 0), (0, 0))
    report = leave(node.root)
    assert (report.tasks_left, report.tasks_killed, account.fenced) == (0, 0, [])
    assert account.asked == [True] * 5
    assert not node.node_token.exists()


def test_what_has_not_ended_in_time_is_killed(node: StatePaths, monkeypatch: pytest.MonkeyPatch) -> None:
    account = Account(monkeypatch, (2, 2), (1, 0), (0, 0))
    report = leave(node.root, force=True)
    assert (report.tasks_killed, report.forced, account.fenced) == (2, True, ["n1"])
    assert account.asked == [False] * 3, "nobody is asked to save himself, and the proof is waited for"


def test_where_nobody_can_ask_the_tasks_it_stays(node: StatePaths, monkeypatch: pytest.MonkeyPatch) -> None:
    account = Account(monkeypatch, *[(None, 1)] * 1_000_000)
    with pytest.raises(HeadUnreachable, match="no head answers that would ask the tasks of node n1"):
        leave(node.root, drain_s=0.01)
    assert account.fenced == []
    assert node.node_token.exists()


def test_without_tasks_it_needs_no_head(node: StatePaths, monkeypatch: pytest.MonkeyPatch) -> None:
    Account(monkeypatch, (None, 0))
    leave(node.root)
    assert not node.node_token.exists()


def test_a_machine_that_does_not_run_leaves_too_but_once(node: StatePaths, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as busy:
        busy.setattr(leaving, "running_tasks", lambda *_: 2)
        with pytest.raises(JobsRunning, match="node n1 does not run, but 2 tasks run on it"):
            leave(node.root)
        assert leave(node.root, leave_tasks=True).tasks_left == 2
    with pytest.raises(DaemonNotRunning, match="no node runs"):
        leave(node.root)
