"""What is left of a machine that tried to join."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from corral.model.errors import DaemonStartFailed, HeadUnreachable, Unauthenticated
from corral.ports.membership import HeadPlace, Joined
from corral.runtime.machines.cluster import Head
from corral.runtime.options import JoinOptions
from corral.runtime.paths import StatePaths
from corral.runtime.starting import joining

HEAD = Head("http://10.0.0.1:7420")
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
        state_dir=paths.root, heads=("10.0.0.1",), token=f"corral_join_{'x' * 32}", node="n1", address="10.0.0.2"
    )
    with pytest.raises(expected):
        joining.start_node(options)
    (process,) = started
    assert process.returncode is not None
    assert not paths.node_token.exists()
    assert not paths.ray_token.exists()
    assert not paths.daemon.exists()
