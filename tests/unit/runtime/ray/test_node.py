"""What Ray's processes are started with."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.model.errors import CorralError, HeadUnreachable, Unauthenticated
from corral.runtime.machines.cluster import ClusterFile, Head, load_cluster, save_cluster
from corral.runtime.paths import SOCKET_PATH_BYTES_MAX, StatePaths
from corral.runtime.poolfile import PoolFile, save_pool
from corral.runtime.ray import node as module
from corral.runtime.ray.environment import ray_environment
from corral.runtime.ray.node import PORTS, RayProcess, answers, gcs_command, ports, raylet_command

POOL = PoolFile(host="10.0.0.1", fork_socket="/f", agents={}, role="head", address="10.0.0.1", gcs_port=7421)


def test_the_gcs_and_the_raylet_offer_no_cpus_and_live_in_folders_of_their_own(tmp_path: Path) -> None:
    paths = StatePaths(tmp_path)
    gcs = gcs_command(POOL, paths)
    raylet = raylet_command(POOL, paths, "10.0.0.9:7421", "n1")
    for command in (gcs, raylet):
        assert {"--num-cpus=0", "--num-gpus=0", "--node-ip-address=10.0.0.1", "--block"} <= set(command)
    assert {"--head", "--port=7421", "--include-dashboard=false"} <= set(gcs)
    assert {"--address=10.0.0.9:7421", "--labels=corral/node=n1"} <= set(raylet)
    assert paths.gcs_temp != paths.ray_temp
    assert f"--temp-dir={paths.gcs_temp}" in gcs
    assert f"--temp-dir={paths.ray_temp}" in raylet


def test_a_head_that_runs_no_jobs_is_no_node(tmp_path: Path) -> None:
    assert not [word for word in raylet_command(POOL, StatePaths(tmp_path), "h:1", "") if word.startswith("--labels")]


def test_fixed_ports_are_one_range() -> None:
    assert ports(None) == []
    numbers = [int(word.rpartition("=")[2]) for word in ports(7430)]
    # Four of the raylet itself, then the first and the last of its workers.
    assert numbers == [7430, 7431, 7432, 7433, 7434, 7430 + PORTS - 1]


def test_secrets_are_named_by_path_alone(tmp_path: Path) -> None:
    paths = StatePaths(tmp_path)
    inherited = {
        "PATH": "/bin",
        "PYTHONPATH": "/mine",
        "RAY_ADDRESS": "other:1",
        "RAY_AUTH_TOKEN": "secret-1",
        "CORRAL_JOIN_TOKEN": "secret-2",
        "CORRAL_TOKEN": "secret-3",
    }
    env = ray_environment(paths, inherited)
    assert not [value for value in env.values() if value.startswith("secret-")]
    assert "RAY_ADDRESS" not in env
    assert (env["PATH"], env["RAY_AUTH_TOKEN_PATH"]) == ("/bin", str(paths.ray_token))
    assert env["PYTHONPATH"].split(os.pathsep)[-1] == "/mine"


def test_ray_can_be_loaded_where_the_library_of_amd_is_missing(tmp_path: Path) -> None:
    env = ray_environment(StatePaths(tmp_path))
    probe = "import amdsmi, sys; sys.exit(hasattr(amdsmi, 'amdsmi_init'))"
    assert subprocess.run([sys.executable, "-P", "-c", probe], env=env, check=False).returncode == 0


def test_long_state_directories_get_short_folders_for_ray(state_dir: Path) -> None:
    short, deep = StatePaths(state_dir), StatePaths(state_dir / ("x" * 60))
    assert short.ray_temp.parent == short.run
    longest = "session_2026-12-31_23-59-59_999999_9999999/sockets/plasma_store.99"
    for place in (deep.ray_temp, deep.gcs_temp):
        assert len(os.fsencode(place / longest)) <= SOCKET_PATH_BYTES_MAX


def test_somebody_answers_at_an_address_or_not() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{listener.getsockname()[1]}"
        assert not answers(place)
        listener.listen()
        assert answers(place)
    assert not answers("")
    assert not answers("nowhere")


def test_the_cluster_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    cluster = ClusterFile(gcs="[fd00::1]:7421", heads=(Head("https://a:1", "PEM"), Head("http://b:2")), node="n1")
    save_cluster(tmp_path / "c.json", cluster)
    assert load_cluster(tmp_path / "c.json") == cluster


class Heads:
    """What asking the heads comes to, one answer after another; with the last one this process is told to end."""

    def __init__(self, *answers: Exception | None) -> None:
        self.answers = list(answers)

    def __call__(self, paths: StatePaths) -> None:
        answer = self.answers.pop(0)
        if not self.answers:
            os.kill(os.getpid(), signal.SIGTERM)
        if answer is not None:
            raise answer


@pytest.fixture
def node(tmp_path: Path) -> Iterator[StatePaths]:
    """Return a node's files, with a GCS that accepts connections."""
    paths = StatePaths(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as gcs:
        save_cluster(paths.cluster, ClusterFile(gcs=f"127.0.0.1:{gcs.getsockname()[1]}", node="n1"))
        save_pool(paths.pool, PoolFile(host="127.0.0.1", fork_socket="/f", agents={}, role="node"))
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        yield paths
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_machine_that_is_no_node_any_more_gets_no_raylet(node: StatePaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REFUSED_S", 0.0)
    heads = Heads(Unauthenticated("unknown token"), Unauthenticated("unknown token"))
    monkeypatch.setattr(module, "rejoin", heads)
    assert RayProcess(node)._reachable_gcs() is None
    assert heads.answers == []


@pytest.mark.parametrize(
    "error", [None, HeadUnreachable("silent"), CorralError("something"), OSError(28, "No space left on device")]
)
def test_a_node_gets_its_raylet_where_no_head_says_no(
    node: StatePaths, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    monkeypatch.setattr(module, "rejoin", Heads(error))
    assert RayProcess(node)._reachable_gcs() == load_cluster(node.cluster).gcs


def test_a_full_disk_does_not_end_a_raylet(node: StatePaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "rejoin", Heads(OSError(28, "No space left on device")))
    monkeypatch.setattr(module, "REFRESH_S", -1.0)
    assert not RayProcess(node)._moved(load_cluster(node.cluster).gcs)


def test_what_a_raylet_that_died_leaves_of_its_session_is_ended(tmp_path: Path) -> None:
    child = "import subprocess, sys; print(subprocess.Popen(['sleep', '600'], process_group=0).pid)"
    program = f"import os; print(os.getpid(), flush=True); {child}"
    with (tmp_path / "out").open("w") as out:
        subprocess.run([sys.executable, "-c", program], start_new_session=True, stdout=out, check=True)
    session, left = map(int, (tmp_path / "out").read_text().split())
    assert module.session_of(Path(f"/proc/{left}")) == session
    held = os.pidfd_open(left)
    try:
        module.end_session(session)
        assert select.select([held], [], [], 20.0)[0], "it lives"
    finally:
        os.close(held)
    assert module.session_of(Path("/proc/self")) == os.getsid(0)


def test_the_short_folder_of_ray_goes_with_its_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corral.runtime.paths.SHORT", tmp_path)
    paths = StatePaths(tmp_path / ("long" * 30))
    assert paths.ray_temp.is_relative_to(tmp_path)
    assert not paths.ray_temp.is_relative_to(paths.root)
    (paths.ray_temp / "session_1").mkdir(parents=True)
    paths.clear_short()
    assert not any(tmp_path.iterdir())
    paths.clear_short()
