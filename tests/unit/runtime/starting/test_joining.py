"""Which head lets a machine in, and what is left of one that could not join."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from corral.agent.claim import only_agent
from corral.agent.config import load
from corral.model.errors import (
    DaemonStartFailed,
    HeadUnreachable,
    InvalidField,
    MachineCloned,
    MissingField,
    NotLeader,
    Unauthenticated,
    Unavailable,
)
from corral.model.ids import NodeId
from corral.ports.membership import HeadPlace, JoinAsk, Joined, Versions
from corral.runtime.machines.cluster import ClusterFile, Head, save_cluster
from corral.runtime.machines.jointoken import JoinToken
from corral.runtime.options import JoinOptions
from corral.runtime.paths import StatePaths
from corral.runtime.poolfile import PoolFile, load_pool, save_pool
from corral.runtime.settings import Settings
from corral.runtime.starting import joining, leaving
from corral.runtime.starting.configuring import agent_config, write_agents
from corral.runtime.starting.launcher import prepare

HEAD = Head("http://127.0.0.1:7420")
TOKEN = f"corral_join_{'x' * 32}"
JOINED = Joined(
    gcs="10.0.0.1:7421",
    ray_token="of ray",
    heads=(HeadPlace(HEAD.url, ""),),
    node_token="of the node",
    connected=False,
    clock=0.0,
)


@pytest.mark.parametrize(
    "told,expected",
    [
        (HeadUnreachable("silent"), DaemonStartFailed),
        (Unauthenticated("another machine has the name"), Unauthenticated),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_a_machine_that_could_not_join_runs_nothing_and_keeps_no_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: BaseException, expected: type[BaseException]
) -> None:
    paths = StatePaths(tmp_path / "state")
    started: list[subprocess.Popen[bytes]] = []

    def spawn(_: StatePaths) -> subprocess.Popen[bytes]:
        assert paths.node_token.read_text() == "of the node\n"
        # As long as the machine waits to be heard; one that is told nothing by its head ends by itself.
        ends_at_once = isinstance(told, HeadUnreachable)
        code = "" if ends_at_once else "import time; time.sleep(600)"
        started.append(subprocess.Popen([sys.executable, "-c", code]))
        return started[-1]

    def rejoin(_: StatePaths) -> Joined:
        raise told

    monkeypatch.setattr(joining, "_first_that_answers", lambda *_: (HEAD, JOINED))
    monkeypatch.setattr(joining, "spawn_supervisor", spawn)
    monkeypatch.setattr(joining, "rejoin", rejoin)
    monkeypatch.setattr(joining, "own_versions", lambda: None)
    options = JoinOptions(
        state_dir=paths.root, heads=("10.0.0.1",), token=TOKEN, node="n1", address="127.0.0.2", insecure=True
    )
    with pytest.raises(expected):
        joining.start_node(options)
    (process,) = started
    assert process.returncode is not None
    assert not paths.node_token.exists()
    assert not paths.ray_token.exists()
    assert not paths.daemon.exists()


def test_a_token_that_names_no_certificate_goes_nowhere_unless_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "_first_that_answers", lambda *_: pytest.fail("somebody was asked"))
    options = JoinOptions(state_dir=tmp_path / "state", heads=("10.0.0.1",), token=TOKEN, node="n1")
    with pytest.raises(InvalidField, match="names no certificate"):
        joining.start_node(options)
    assert not (tmp_path / "state").exists()


def test_a_machine_that_has_joined_is_started_again_from_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = StatePaths(tmp_path / "state")
    with pytest.raises(MissingField, match="no node of a pool"):
        joining.start_node_again(paths.root)
    prepare(paths)
    config = replace(agent_config(paths, NodeId("n1"), Settings(), pretence=None), supervisor_start="0")
    pool = PoolFile(host="127.0.0.1", fork_socket="", agents=write_agents([config]), role="node")
    save_pool(paths.pool, pool)
    with pytest.raises(MissingField, match="no node of a pool"):
        joining.start_node_again(paths.root)
    paths.node_token.write_text("of the node\n")
    save_cluster(paths.cluster, ClusterFile(gcs="10.0.0.1:7421", heads=(HEAD,), node="n1"))
    started: list[subprocess.Popen[bytes]] = []

    def spawn(_: StatePaths) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]))
        return started[-1]

    monkeypatch.setattr(joining, "spawn_supervisor", spawn)
    monkeypatch.setattr(joining, "own_versions", lambda: None)
    monkeypatch.setattr(joining, "rejoin", lambda _: replace(JOINED, connected=True))
    info = joining.start_node_again(paths.root)
    started[0].kill()
    started[0].wait()
    assert (info.node, info.url, info.address) == ("n1", HEAD.url, "127.0.0.1")
    assert load(Path(pool.agents["n1"])).supervisor_start != "0"
    # At another address.
    info = joining.start_node_again(paths.root, "127.0.0.3")
    started[1].kill()
    started[1].wait()
    assert (info.address, load(Path(pool.agents["n1"])).address) == ("127.0.0.3", "127.0.0.3")
    moved = load_pool(paths.pool)
    assert (moved.host, moved.address, moved.address_given) == ("127.0.0.3", "127.0.0.3", True)
    answers = iter((JOINED, Unauthenticated("another machine has the name")))

    def rejoin(_: StatePaths) -> Joined:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(joining, "rejoin", rejoin)
    with pytest.raises(Unauthenticated):
        joining.start_node_again(paths.root)
    assert started[2].returncode is not None
    assert paths.node_token.exists()


def test_a_copy_of_a_directory_whose_agent_runs_is_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, copy = StatePaths(tmp_path / "first"), StatePaths(tmp_path / "copy")
    for paths in (first, copy):
        prepare(paths)
        (paths.root / "machine-id").write_text(f"of {tmp_path}")
    monkeypatch.setattr(joining, "own_versions", lambda: None)
    monkeypatch.setattr(joining, "_first_that_answers", lambda *_: pytest.fail("somebody was asked"))
    options = JoinOptions(
        state_dir=copy.root, heads=("10.0.0.1",), token=TOKEN, node="n1", address="127.0.0.2", insecure=True
    )
    with only_agent(first.nodes / "n1", first.root), pytest.raises(MachineCloned):
        joining.start_node(options)


def test_a_head_is_told_at_which_address_this_machine_is_and_since_when(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[JoinAsk] = []

    def join_at(_head: Head, _secret: str, ask: JoinAsk) -> Joined:
        asked.append(ask)
        return JOINED

    monkeypatch.setattr(joining, "head_of", lambda place, _: Head(f"http://{place}:7420"))
    monkeypatch.setattr(joining, "join_at", join_at)
    ask = JoinAsk(node=NodeId("n1"), machine="m", versions=Versions("1", "3.11.2", "2.60.0"), clock=0.0)
    joining._first_that_answers(["127.0.0.1"], JoinToken("s", ()), ask)
    joining._first_that_answers(["127.0.0.1"], JoinToken("s", ()), replace(ask, address="127.0.0.9"))
    assert [one.address for one in asked] == ["127.0.0.1", "127.0.0.9"]


def test_the_leader_that_a_head_names_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    leader = Head("https://10.0.0.2:7420", "PEM")
    asked: list[str] = []

    def join_at(head: Head, _secret: str, _ask: JoinAsk) -> Joined:
        asked.append(head.url)
        if head.url != leader.url:
            raise NotLeader.at(leader.url)
        return JOINED

    monkeypatch.setattr(joining, "head_of", lambda place, _: Head(place))
    monkeypatch.setattr(joining, "join_at", join_at)
    ask = JoinAsk(node=NodeId("n1"), machine="m", versions=Versions("1", "3.11.2", "2.60.0"), clock=0.0)
    places = ["https://10.0.0.1:7420", "https://10.0.0.3:7420"]
    head, joined = joining._first_that_answers(places, JoinToken("s", ()), ask)
    assert (head.url, joined) == (leader.url, JOINED)
    assert asked == [*places, leader.url]
    leader = Head("https://10.0.0.9:7420")
    monkeypatch.setattr(joining, "join_at", lambda *_: (_ for _ in ()).throw(NotLeader.at("https://10.0.0.1:7420")))
    with pytest.raises(NotLeader):
        joining._first_that_answers(places, JoinToken("s", ()), ask)


def test_who_stays_with_a_node_tells_one_that_left_from_one_that_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = StatePaths(tmp_path)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    monkeypatch.setattr(leaving, "running_supervisor", lambda _: None)
    monkeypatch.setattr(leaving, "LEFT_S", 0.0)
    try:
        assert leaving.hold(tmp_path, 7) == 0
        paths.node_token.write_text("it had no time to leave")
        with pytest.raises(Unavailable, match="the node has ended"):
            leaving.hold(tmp_path, 7)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
