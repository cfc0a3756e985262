"""The fence command: only its success proves anything."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from corral.model.errors import EngineFault
from corral.model.ids import NodeId, TaskKey
from corral.model.messages import ControllerSays
from corral.ports.engine import LogChunk, Sink
from corral.runtime.leading.fencing import FenceCommand, with_power_fence
from corral.runtime.settings import Settings
from tests.waiting import wait_until

NODE = NodeId("n-7")


def fence(*arguments: str, timeout_s: float = 20.0) -> bool:
    return asyncio.run(FenceCommand(arguments, timeout_s).fence(NODE))


@pytest.mark.parametrize("code, proven", [(0, True), (1, False), (3, False)])
def test_only_exit_code_0_is_a_proof(code: int, proven: bool) -> None:
    assert fence("sh", "-c", f"exit {code}") is proven


def test_the_node_is_the_last_argument_and_no_shell_sees_it(tmp_path: Path) -> None:
    script = tmp_path / "fence me.sh"
    script.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" > {tmp_path}/said\n")
    script.chmod(0o755)
    assert fence(str(script), "--outlet", "$HOME; true")
    assert (tmp_path / "said").read_text() == "--outlet\n$HOME; true\nn-7\n"


def test_a_command_that_does_not_exist_proves_nothing() -> None:
    assert not fence("/nowhere/fence")


def test_a_command_that_is_killed_by_a_signal_proves_nothing() -> None:
    assert not fence("sh", "-c", "kill -TERM $$")


def test_a_command_that_takes_too_long_is_killed_with_its_children(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    assert not fence("sh", "-c", f"sleep 600 & echo $! > {pid_file}; wait", timeout_s=0.5)
    child = int(pid_file.read_text())

    def gone() -> bool:
        try:
            return Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
        except FileNotFoundError:
            return True

    wait_until(gone, what="the command's child to be killed")


@pytest.mark.parametrize("then, timeout_s, proven", [("exit 0", 20.0, True), ("sleep 600", 0.5, False)])
def test_nobody_waits_for_what_the_command_left_behind(
    tmp_path: Path, then: str, timeout_s: float, proven: bool
) -> None:
    pid_file = tmp_path / "pid"
    # In a session of its own, with the command's output still open.
    left = f"setsid sh -c 'echo $$ > {pid_file}; exec sleep 600' &"
    try:
        assert fence("sh", "-c", f"{left} until [ -s {pid_file} ]; do :; done; {then}", timeout_s=timeout_s) is proven
    finally:
        os.kill(int(pid_file.read_text()), signal.SIGKILL)


def test_the_last_words_of_a_command_are_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    assert not fence("sh", "-c", "head -c 100000 /dev/zero | tr '\\0' x; echo outlet 7 does not answer; exit 1")
    assert "(exit code 1): xxx" in caplog.text
    assert caplog.text.rstrip().endswith("xoutlet 7 does not answer")


class Answers:
    """An engine that only fences."""

    def __init__(self, answer: bool | str | None) -> None:
        self.answer = answer

    async def start(self, sink: Sink) -> None: ...
    async def stop(self) -> None: ...
    def send(self, command: ControllerSays) -> bool:
        return False

    def connected(self) -> frozenset[NodeId]:
        return frozenset({NODE})

    async def read_log(self, node: NodeId, task: TaskKey, incarnation: int, offset: int, limit: int) -> LogChunk:
        raise NotImplementedError

    def follow_log(self, node: NodeId, task: TaskKey, incarnation: int, offset: int) -> AsyncIterator[LogChunk]:
        raise NotImplementedError

    async def fence(self, node: NodeId, machine: str = "") -> bool | None:
        if isinstance(self.answer, str):
            raise EngineFault(self.answer)
        return self.answer


@pytest.mark.parametrize("engine, command, proven, asked", [
    (True, "touch", True, False),
    (False, "touch", True, True),
    ("the machine is not there", "touch", True, True),
    # Its agent lives: nobody switches it off.
    (None, "touch", None, False),
    (False, "false", False, False),
])  # fmt: skip
def test_the_command_is_asked_where_the_engine_has_no_proof(
    engine: bool | str | None,
    command: str,
    proven: bool | None,
    asked: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    fenced = with_power_fence(Answers(engine), Settings(fence_command=command), lambda: True)
    assert asyncio.run(fenced.fence(NODE)) is proven
    assert os.path.exists(NODE) is asked  # noqa: PTH110
    assert fenced.connected() == {NODE}


def test_who_leads_no_more_lets_the_command_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    leads = True

    class Deposes(Answers):
        """The node's machine refuses, and by then another controller leads."""

        async def fence(self, node: NodeId, machine: str = "") -> bool:
            nonlocal leads
            leads = False
            return False

    fenced = with_power_fence(Deposes(False), Settings(fence_command="touch"), lambda: leads)
    assert not asyncio.run(fenced.fence(NODE))
    assert list(tmp_path.iterdir()) == []


def test_without_a_command_the_engine_stays_as_it_is() -> None:
    engine = Answers(False)
    assert with_power_fence(engine, Settings(), lambda: True) is engine
