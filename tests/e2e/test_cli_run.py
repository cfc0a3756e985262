"""`corral run` against a real pool: exit codes, logs, Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from tests.e2e.command import Corral
from tests.e2e.terminal import CTRL_C
from tests.waiting import wait_until


@pytest.mark.parametrize(
    "arguments,code",
    [
        (["--", "true"], 0),
        (["--", "bash", "-c", "exit 3"], 3),
        (["exit 7; true"], 7),
        (["--", "bash", "-c", "kill -9 $$"], 137),
        (["--", "no-such-command"], 127),
        (["--max-duration", "1s", "trap 'exit 0' TERM; while :; do sleep 0.05; done"], 124),
        (["--max-duration", "1s", "--", "sleep", "600"], 124),
        (["--array", "0-2", "exit $((CORRAL_ARRAY_INDEX == 1 ? 5 : 0))"], 5),
        (["--nodes", "2", "exit $((NODE_RANK == 1 ? 4 : 0))"], 4),
    ],
    ids=["ok", "code", "shell", "signal", "missing", "time over", "stopped", "array", "gang"],
)
def test_run_returns_the_exit_code_of_the_job(corral: Corral, arguments: list[str], code: int) -> None:
    done = corral("run", *arguments)
    assert done.code == code, done.err


def test_run_passes_the_bytes_of_the_log_through_a_pipe(corral: Corral) -> None:
    program = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 300 + 'größe 训练'.encode())"
    done = corral("run", "--", sys.executable, "-c", program)
    assert done.code == 0, done.err
    assert done.bytes == bytes(range(256)) * 300 + "größe 训练".encode()
    first, *_, last = done.err.splitlines()
    assert first.startswith("job ")
    assert "succeeded; waited " in last


def test_run_names_the_tasks_of_an_array_and_a_gang_before_each_line(corral: Corral) -> None:
    done = corral("run", "--array", "3-5", "echo index $CORRAL_ARRAY_INDEX; printf unfinished")
    job = done.err.split()[1]
    assert sorted(done.out.splitlines()) == [
        f"{job}.{gang}.0 | {text}" for gang in range(3) for text in (f"index {gang + 3}", "unfinished")
    ]
    done = corral("run", "--nodes", "2", "--gpus", "2", "echo rank $NODE_RANK of $NNODES with $CORRAL_GPU_MILLI")
    job = done.err.split()[1]
    assert sorted(done.out.splitlines()) == [f"{job}.0.{rank} | rank {rank} of 2 with 2000" for rank in range(2)]


def test_run_passes_environment_directory_and_sweep(corral: Corral) -> None:
    (corral.home / "here").mkdir(exist_ok=True)
    done = corral("run", "--env", "A=1 2", "--env", "B", "--workdir", "here", "echo $A $B; pwd", B="from the shell")
    assert done.out.splitlines() == ["1 2 from the shell", str(corral.home / "here")]
    done = corral("run", "--sweep", "C=1,10", "--sweep", "K=a", "echo $C $K")
    assert sorted(line.partition(" | ")[2] for line in done.out.splitlines()) == ["1 a", "10 a"]


def test_run_detached_prints_the_number_alone(corral: Corral) -> None:
    job = corral.ok("run", "--detach", "--", "true").strip()
    assert job.isdecimal()
    made = corral.json("run", "--detach", "--name", "named", "--", "true")["jobs"]
    assert [one["name"] for one in made] == ["named"]


def test_ctrl_c_at_a_terminal_asks_and_the_job_may_go_on(corral: Corral) -> None:
    with corral.terminal("run", "echo begun; sleep 600") as terminal:
        terminal.wait_for(b"begun")
        job = terminal.shown.split()[1].decode()
        terminal.press(CTRL_C)
        terminal.wait_for(b"(Ctrl-C cancels) ")
        terminal.press(b"d\n")
        assert terminal.wait() == 0
        assert f"job {job} goes on".encode() in terminal.shown
    assert corral.state(job) == "running"
    corral.ok("cancel", "--wait", job)
    assert corral.state(job) == "cancelled"


def test_ctrl_c_again_cancels(corral: Corral) -> None:
    with corral.terminal("run", "echo begun; sleep 600") as terminal:
        terminal.wait_for(b"begun")
        job = terminal.shown.split()[1].decode()
        terminal.press(CTRL_C)
        terminal.wait_for(b"(Ctrl-C cancels) ")
        terminal.press(CTRL_C)
        assert terminal.wait() == 130
    assert corral.state(job) == "cancelled"


def test_going_on_after_ctrl_c_loses_no_line(corral: Corral) -> None:
    script = 'echo begun; while [ ! -e "$HOME/go" ]; do sleep 0.05; done; echo ended'
    with corral.terminal("run", script) as terminal:
        terminal.wait_for(b"begun")
        terminal.press(CTRL_C)
        terminal.wait_for(b"(Ctrl-C cancels) ")
        terminal.press(b"g\n")
        (corral.home / "go").touch()
        assert terminal.wait() == 0
        assert b"ended" in terminal.shown


@pytest.mark.parametrize("number,code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["int", "term"])
def test_a_signal_without_a_terminal_cancels(corral: Corral, number: signal.Signals, code: int) -> None:
    with corral.start("run", "echo begun; sleep 600") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"begun\n"
        job = process.stderr.readline().split()[1].decode()
        process.send_signal(number)
        process.communicate(timeout=30)
        assert process.returncode == code
    assert corral.state(job) == "cancelled"


def test_a_terminal_is_not_harmed_by_a_log(corral: Corral) -> None:
    with corral.terminal("run", r"printf 'a\e[31mred\e[0m\e[2J\e]0;title\ab\n'") as terminal:
        assert terminal.wait() == 0
        assert b"a\x1b[31mred\x1b[0mb\r\n" in terminal.shown
        assert b"\x1b[2J" not in terminal.shown
        assert b"title" not in terminal.shown


def test_while_a_job_waits_the_terminal_says_why(corral: Corral) -> None:
    blocker = corral.submit("--gpus", "4", "--nodes", "2", "--", "sleep", "600")
    corral.wait_state(blocker, "running")
    try:
        with corral.terminal("run", "--gpus", "1", "--", "echo", "now") as terminal:
            terminal.wait_for(b" waits ")
            terminal.wait_for(b"place 1")
            corral.ok("cancel", blocker)
            assert terminal.wait() == 0
            assert b"now\r\n" in terminal.shown
    finally:
        corral("cancel", blocker)


def test_a_reader_that_leaves_ends_the_command_and_not_the_job(corral: Corral) -> None:
    script = 'while [ ! -e "$HOME/enough" ]; do echo again; sleep 0.02; done'
    process = corral.start("run", script)
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"again\n"
        process.stdout.close()
        job = process.stderr.readline().split()[1].decode()
        assert process.wait(30) == 141
        assert process.stderr.read().decode() == f"nobody reads the log any more; job {job} goes on\n"
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()
    assert corral.state(job) == "running"
    (corral.home / "enough").touch()
    corral.wait_state(job, "succeeded")


def test_a_killed_daemon_does_not_end_following(own: Corral) -> None:
    script = 'echo begun; while [ ! -e "$HOME/end" ]; do sleep 0.02; done; echo ended; exit 3'
    with own.start("run", script) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        before = own.json("status")["pid"]
        os.kill(before, signal.SIGKILL)
        wait_until(lambda: own.json("status")["pid"] != before, 30.0, 0.1, what="the daemon to be back")
        (own.home / "end").touch()
        rest, _ = process.communicate(timeout=60)
        assert rest == b"ended\n"
        assert process.returncode == 3
