"""Commands that ask replicas: what they find around them, and that nothing of them is left."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from corral.agent.probecommand import Place, ProbeCommand
from corral.agent.processes import with_environment
from tests.waiting import wait_until

ENV = {"PATH": "/usr/bin:/bin"}


def run(script: str, directory: Path, *, timeout_s: float = 20.0, **env: str) -> str | None:
    place = Place({**ENV, **env}, str(directory))
    return ProbeCommand(("bash", "-c", script), place, str(directory), timeout_s).run()


def left(directory: Path) -> list[int]:
    return [stat.pid for stat in with_environment({"CORRAL_PROBE_OF": str(directory)})]


def test_exit_code_0_is_good(tmp_path: Path) -> None:
    assert run("exit 0", tmp_path) is None


def test_the_command_stands_where_the_replica_stands(tmp_path: Path) -> None:
    assert run('test "$PORT" = 20001 && test "$PWD" = "$0" || exit 3', tmp_path, PORT="20001") is not None
    assert run(f'test "$PORT" = 20001 && test "$PWD" = "{tmp_path}"', tmp_path, PORT="20001") is None
    # Nothing of the agent's own environment comes along.
    os.environ["SECRET_OF_THE_AGENT"] = "1"
    try:
        assert run('test -z "$SECRET_OF_THE_AGENT"', tmp_path) is None
    finally:
        del os.environ["SECRET_OF_THE_AGENT"]


def test_a_fault_is_told_with_the_last_line_that_was_written(tmp_path: Path) -> None:
    assert run("echo starting; echo 'model is not loaded' >&2; echo; exit 3", tmp_path) == (
        "bash: exit code 3: model is not loaded"
    )
    assert run("kill -9 $$", tmp_path) == "bash: killed by signal 9"


def test_a_command_that_cannot_be_run_is_not_good(tmp_path: Path) -> None:
    fault = ProbeCommand(("no-such-program",), Place(ENV, str(tmp_path)), str(tmp_path), 20.0).run()
    assert fault is not None
    assert fault.startswith("no-such-program: ")
    assert "No such file" in fault


def test_a_command_that_hangs_has_its_time_and_leaves_nothing(tmp_path: Path) -> None:
    assert run("trap '' TERM; sleep 1000 & sleep 1000", tmp_path, timeout_s=0.3) == "bash: it did not end within 0.3 s"
    wait_until(lambda: left(tmp_path) == [], what="the command and its child to be gone")


def test_what_a_command_leaves_behind_goes_with_it(tmp_path: Path) -> None:
    assert run("sleep 1000 & echo ready; exit 0", tmp_path) is None
    wait_until(lambda: left(tmp_path) == [], what="its child to be gone")


def test_a_command_that_never_stops_writing_takes_no_room(tmp_path: Path) -> None:
    assert run("yes", tmp_path, timeout_s=0.3) == "bash: it did not end within 0.3 s"
    assert run("exec >&- 2>&-; sleep 0.1; exit 4", tmp_path) == "bash: exit code 4"


def test_a_command_can_be_ended_by_others(tmp_path: Path) -> None:
    command = ProbeCommand(("sleep", "1000"), Place(ENV, str(tmp_path)), str(tmp_path), 60.0)
    thread = threading.Thread(target=command.run)
    thread.start()
    wait_until(lambda: left(tmp_path), what="the command to run")
    assert not command.over
    command.kill()
    thread.join(20.0)
    assert not thread.is_alive()
    assert command.over
    assert left(tmp_path) == []
