from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from corral.agent import adoption, taskdir
from corral.agent.inputs import KnownTask
from corral.agent.replicadir import ServingFile
from corral.agent.retention import Kept
from corral.model.ids import ServiceName
from corral.model.job import Cause, TaskExit
from corral.model.messages import TaskPhase
from corral.model.service import Guard, Probes, ServingTask
from tests.unit.agent.words import GPU, OTHER_GPU, exited, key


def leave(tasks: Path, name: str, **files: Any) -> Path:
    directory = tasks / name
    directory.mkdir()
    for file, content in files.items():
        (directory / f"{file}.json").write_text(json.dumps(content))
    return directory


def test_what_is_found_is_known_again(tmp_path: Path) -> None:
    env = {"CORRAL_DEVICES": "GPU-0,GPU-1", "CORRAL_LEASE_S": "90.0"}
    leave(tmp_path, "1.0.0.2", spec={"env": env, "cpus": [2, 3], "grace_s": 7.0, "task": "1.0.0"})
    shim = {"pid": 5, "start_ticks": 9, "boot_id": "b", "started_at": 12.5, "child_pid": 6}
    leave(tmp_path, "2.3.1.1", spec={"env": {"CORRAL_DEVICES": ""}}, shim=shim)
    leave(tmp_path, "3.0.0.1", spec={"env": {}}, shim={**shim, "child_pid": None})
    leave(tmp_path, "4.0.0.1")
    found = adoption.scan(tmp_path, {})
    known = {task.task: task for task in found.known}
    assert known == {
        key(1): KnownTask(key(1), 2, TaskPhase.STARTING, devices=(GPU, OTHER_GPU), lease_s=90.0, grace_s=7.0),
        key(2, 3, 1): KnownTask(key(2, 3, 1), 1, TaskPhase.RUNNING, pid=6, started_at=12.5),
        key(3): KnownTask(key(3), 1, TaskPhase.STARTING),
        key(4): KnownTask(key(4), 1, TaskPhase.STARTING),
    }
    running = {task.marker: task for task in found.running}
    assert set(running) == {"1.0.0.2", "2.3.1.1", "3.0.0.1", "4.0.0.1"}
    assert (running["1.0.0.2"].cpus, running["1.0.0.2"].cpus_milli) == ((2, 3), 2000)
    assert [marker for marker, task in running.items() if task.began] == ["2.3.1.1"]


def test_acknowledged_tasks_are_not_looked_into(tmp_path: Path) -> None:
    (tmp_path / "1.0.0.2").mkdir()
    kept = Kept("1.0.0.2", 5.0)
    found = adoption.scan(tmp_path, {"1.0.0.2": kept, "9.0.0.1": Kept("9.0.0.1", 1.0)})
    assert found.known == [KnownTask(key(1), 2, TaskPhase.ENDED, acknowledged=True)]
    assert (found.running, found.kept) == ([], [kept])


@pytest.mark.parametrize("name", ["lost+found", "1.0.0", "1.0.0.x", "1.x.0.1"])
def test_strange_directories_are_left_alone(tmp_path: Path, name: str) -> None:
    leave(tmp_path, name, spec={})
    assert adoption.scan(tmp_path, {}).known == []


def test_a_damaged_specification_is_left_alone(tmp_path: Path) -> None:
    (leave(tmp_path, "1.0.0.1") / "spec.json").write_text('{"env": 3}')
    assert adoption.scan(tmp_path, {}).known == []


def test_an_end_is_read_as_it_was_recorded(tmp_path: Path) -> None:
    exit_ = TaskExit(Cause.SHIM_LOST, message="gone", started_at=1.5, ended_at=2.5, rss_max_mib=7)
    taskdir.record_end(tmp_path, key(1), 2, exit_)
    status = taskdir.read_status(tmp_path)
    assert status is not None
    assert status.task_exit() == exit_
    content = json.loads((tmp_path / "status.json").read_text())
    assert (content["task"], content["incarnation"]) == ("1.0.0", 2)
    assert taskdir.read_status(tmp_path / "elsewhere") is None
    assert taskdir.read_shim(tmp_path) is None


def test_lost_bytes_of_a_log_are_told() -> None:
    status = taskdir.StatusFile("memory", message="m", log_lost_bytes=12, max_rss_mib=1.6)
    exit_ = status.task_exit()
    assert exit_.message == "m; 12 bytes of the log were lost: the disk was full"
    assert taskdir.StatusFile("exited", exit_code=3, message="exit code 3").task_exit().message == ""
    assert exit_.rss_max_mib == 2
    assert exited().ok


def test_a_cause_of_a_newer_release_is_a_loss() -> None:
    assert taskdir.StatusFile("eaten-by-bear").task_exit().cause is Cause.SHIM_LOST


def test_names_of_directories_come_back() -> None:
    assert taskdir.parse_marker(taskdir.marker(key(12, 3, 4), 5)) == (key(12, 3, 4), 5)


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Return who starts a process of the task with this directory."""
    made: list[subprocess.Popen[bytes]] = []

    def start(directory: str) -> subprocess.Popen[bytes]:
        made.append(subprocess.Popen(["/bin/sleep", "600"], env={"A": "b", "CORRAL_TASK_DIR": directory, "C": "d"}))
        return made[-1]

    yield start
    for process in made:
        process.kill()
        process.wait()


def test_what_runs_without_its_directory_is_killed(
    sleeper: Callable[[str], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    kept, lost = sleeper(f"{tmp_path}/tasks/1.0.0.1"), sleeper(f"{tmp_path}/tasks/1.0.0.2")
    inside, elsewhere = sleeper(f"{tmp_path}/tasks/1.0.0.2/x"), sleeper(f"{tmp_path}/others/1.0.0.2")
    swept = adoption.clear(tmp_path / "tasks", {"1.0.0.1"})
    assert (swept.killed, swept.left) == (frozenset({lost.pid, inside.pid}), frozenset())
    assert (lost.wait(30.0), inside.wait(30.0)) == (-signal.SIGKILL, -signal.SIGKILL)
    assert (kept.poll(), elsewhere.poll()) == (None, None)


def test_what_an_earlier_agent_asked_replicas_by_is_killed_and_not_the_replicas(tmp_path: Path) -> None:
    task = f"{tmp_path}/tasks/1.0.0.1"
    program = subprocess.Popen(["/bin/sleep", "600"], env={"CORRAL_TASK_DIR": task})
    probe = subprocess.Popen(["/bin/sleep", "600"], env={"CORRAL_TASK_DIR": task, "CORRAL_PROBE_OF": task})
    try:
        assert adoption.clear(tmp_path / "tasks", {"1.0.0.1"}).killed == {probe.pid}
        assert probe.wait(30.0) == -signal.SIGKILL
        assert program.poll() is None
    finally:
        for process in (program, probe):
            process.kill()
            process.wait()


def write_replica(directory: Path, serving: bytes) -> None:
    directory.mkdir(parents=True)
    (directory / "spec.json").write_text('{"env": {}}')
    # The shim's child began 250 ticks after the machine, of which a second has 100.
    shim = {"pid": 1, "start_ticks": 1, "boot_id": "b", "child_pid": 2, "child_start_ticks": 250, "started_at": 7.0}
    (directory / "shim.json").write_text(json.dumps(shim))
    (directory / "serving.json").write_bytes(serving)


def test_a_replica_is_known_again_with_what_it_is_asked(tmp_path: Path) -> None:
    serving = ServingTask(ServiceName("chat"), 1, 1, None, Probes(), Guard.NONE, 30.0)
    write_replica(tmp_path / "1.0.0.1", msgspec.json.encode(ServingFile(serving, 20001)))
    (known,) = adoption.scan(tmp_path, {}).known
    assert (known.serving, known.began_boottime_s, known.started_up) == (serving, 2.5, False)
    (tmp_path / "1.0.0.1" / "started-up").touch()
    assert adoption.scan(tmp_path, {}).known[0].started_up


def test_a_replica_whose_file_means_nothing_here_is_known_and_not_asked(tmp_path: Path) -> None:
    write_replica(tmp_path / "1.0.0.1", b'{"serving": {"service": 5}}')
    (known,) = adoption.scan(tmp_path, {}).known
    assert (known.phase, known.serving) == (TaskPhase.RUNNING, None)
