"""The command line against a real pool: simulated devices, real processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.e2e.terminal import CTRL_C, Terminal
from tests.waiting import wait_until


class Ended(NamedTuple):
    """A command that has ended."""

    code: int
    out: str
    err: str
    bytes: bytes


class Corral:
    """The command line on one state directory."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.home = state_dir / "home"
        self.home.mkdir(parents=True, exist_ok=True)
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "CORRAL_STATE_DIR": str(state_dir / "pool"),
        }

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "corral", *arguments]

    def __call__(self, *arguments: str, **environment: str) -> Ended:
        done = subprocess.run(
            self.command(*arguments),
            env=self.environment | environment,
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=False,
        )
        out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        return Ended(done.returncode, out, err, done.stdout)

    def ok(self, *arguments: str) -> str:
        done = self(*arguments)
        assert done.code == 0, done.err
        return done.out

    def json(self, *arguments: str) -> Any:
        cut = arguments.index("--") if "--" in arguments else len(arguments)
        return json.loads(self.ok(*arguments[:cut], "--json", *arguments[cut:]))

    def refused(self, *arguments: str, code: str, exit_code: int, **environment: str) -> str:
        done = self(*arguments, **environment)
        assert done.code == exit_code, done.err
        lines = done.err.splitlines()
        assert len(lines) == 1, done.err
        assert lines[0].startswith(f"error[{code}]: ")
        return lines[0]

    def submit(self, *arguments: str) -> str:
        return self.ok("submit", *arguments).strip()

    def terminal(self, *arguments: str, columns: int = 80) -> Terminal:
        return Terminal(self.command(*arguments), self.environment, columns=columns)

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.command(*arguments),
            env=self.environment,
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def state(self, job: str) -> str:
        rows = self.json("ps", "--all")["jobs"]
        return str(next(row["state"] for row in rows if row["id"] == job))

    def wait_state(self, job: str, *states: str) -> None:
        wait_until(lambda: self.state(job) in states, 30.0, 0.1, what=f"job {job} to be {' or '.join(states)}")


UP = ("up", "--nodes", "2", "--gpus-per-node", "4", "--simulated", "h100", "--port", "0")


def pool_on(directory: Path) -> Iterator[Corral]:
    corral = Corral(directory)
    try:
        started = corral(*UP)
        assert started.code == 0, started.err
        yield corral
    finally:
        corral("down", "--force")
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="module")
def corral() -> Iterator[Corral]:
    """Give one pool of 2 simulated nodes with 4 GPUs each to all tests that leave it as they found it."""
    yield from pool_on(Path(tempfile.mkdtemp(prefix="c", dir="/tmp")))


@pytest.fixture
def own() -> Iterator[Corral]:
    """Give a pool of its own to a test that stops it."""
    yield from pool_on(Path(tempfile.mkdtemp(prefix="c", dir="/tmp")))


# ---- the pool ------------------------------------------------------------------------------------------------------


def test_up_says_what_the_pool_is_and_a_second_up_changes_nothing(own: Corral) -> None:
    before = own.json("status")
    assert (before["nodes_up"], before["devices"], before["simulated_devices"]) == (2, 8, 8)
    said = own.refused(*UP, code="ALREADY_RUNNING", exit_code=6)
    assert str(own.state_dir / "pool") in said
    after = own.json("status")
    assert (after["pid"], after["started_at"], after["url"]) == (before["pid"], before["started_at"], before["url"])
    own.ok("down")
    text = own(*UP).out
    assert "devices  8 x H100, all SIMULATED" in text
    assert f"state    {own.state_dir / 'pool'}" in text
    assert "SIMULATED" in own.ok("status")


def test_a_pool_without_gpus_is_called_a_cpu_pool(state_dir: Path) -> None:
    corral = Corral(state_dir)
    try:
        text = corral.ok("up", "--port", "0")
        if Path("/dev/nvidiactl").exists():
            pytest.skip("this machine has a GPU")
        assert "CPU pool: no GPUs found" in text
        assert "CPU pool: no GPUs found" in corral.ok("status")
    finally:
        corral("down", "--force")


def test_down_with_running_jobs_needs_a_word_about_them(own: Corral) -> None:
    job = own.submit("--", "sleep", "600")
    own.wait_state(job, "running")
    said = own.refused("down", code="JOBS_RUNNING", exit_code=6)
    assert "--force" in said
    assert "--leave-tasks" in said
    assert own.state(job) == "running"
    with own.terminal("down") as terminal:
        terminal.wait_for(b"[k]eep the pool? ")
        terminal.press(b"k\n")
        assert terminal.wait() == 6
    left = own("down", "--leave-tasks")
    assert left.code == 0, left.err
    assert "go on" in left.err
    assert own(*UP).code == 0
    own.wait_state(job, "running")
    assert own.json("receipt", job)["restarts"] == 0
    with own.terminal("down") as terminal:
        terminal.wait_for(b"[k]eep the pool? ")
        terminal.press(b"s\n")
        assert terminal.wait() == 0


def test_the_doctor_finds_nothing_wrong_with_a_fresh_pool(corral: Corral) -> None:
    found = corral.json("doctor")["findings"]
    assert {one["check"] for one in found} >= {"python", "state directory", "pool"}
    assert [one for one in found if one["ok"] is False] == []
    assert "nothing is wrong" in corral.ok("doctor")


# ---- run -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments,code",
    [
        (["--", "true"], 0),
        (["--", "bash", "-c", "exit 3"], 3),
        (["exit 7; true"], 7),
        (["--", "bash", "-c", "kill -9 $$"], 137),
        (["--", "no-such-command"], 127),
        (["--array", "0-2", "exit $((CORRAL_ARRAY_INDEX == 1 ? 5 : 0))"], 5),
        (["--nodes", "2", "exit $((NODE_RANK == 1 ? 4 : 0))"], 4),
    ],
    ids=["ok", "code", "shell", "signal", "missing", "array", "gang"],
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
            terminal.wait_for(b" waits: ")
            terminal.wait_for(b"place 1")
            corral.ok("cancel", blocker)
            assert terminal.wait() == 0
            assert b"now\r\n" in terminal.shown
    finally:
        corral("cancel", blocker)


# ---- submit, ps, logs ----------------------------------------------------------------------------------------------


def test_submit_prints_one_number_a_line_and_waits_when_asked(corral: Corral) -> None:
    file = corral.home / "two.yaml"
    file.write_text("name: first\nrun: exit 2\n---\nname: second\nrun: 'true'\nafter: [{first: ended}]\n")
    numbers = corral.ok("submit", "two.yaml").split()
    assert len(numbers) == 2
    done = corral("submit", "--wait", "two.yaml")
    assert done.code == 2
    assert "failed" in done.err
    assert len(corral.json("submit", "two.yaml")["jobs"]) == 2


def test_a_batch_script_runs_unchanged(corral: Corral) -> None:
    script = corral.home / "train.sbatch"
    script.write_text(
        "#!/bin/bash\n#SBATCH --job-name=train\n#SBATCH --gres=gpu:h100:2\n#SBATCH --time=10\n"
        "#SBATCH --output=out.txt\necho job $SLURM_JOB_ID\n"
    )
    done = corral("submit", "--wait", "train.sbatch")
    assert done.code == 0, done.err
    job = done.out.strip()
    assert "--output has no effect" in done.err
    assert corral.ok("logs", job) == f"job {job}\n"


def test_ps_lists_running_then_finished_and_collapses_arrays(corral: Corral) -> None:
    ended = corral.submit("--name", "swept", "--array", "0-3", "--", "exit $((CORRAL_ARRAY_INDEX == 0 ? 3 : 0))")
    corral.wait_state(ended, "failed")
    running = corral.submit("--name", "held", "--gpus", "2", "--nodes", "2", "--", "sleep", "600")
    corral.wait_state(running, "running")
    try:
        lines = [line.split() for line in corral.ok("ps").splitlines()]
        assert lines[0] == ["JOB", "NAME", "TENANT", "STATE", "GPUS", "NODES", "WAITED", "RAN", "EXIT"]
        numbers = [line[0] for line in lines[1:]]
        assert numbers.index(running) < numbers.index(ended)
        held = next(line for line in lines if line[0] == running)
        assert held[1:5] == ["held", "default", "running", "2x2"]
        swept = next(line for line in lines if line[0] == ended)
        assert swept[1] == "swept"
        assert swept[-1] == "3"
        assert [row["id"] for row in corral.json("ps", "--state", "running")["jobs"]] == [running]
        wide = corral("ps", COLUMNS="80").out
        assert max(map(len, wide.splitlines())) <= 80
    finally:
        corral.ok("cancel", "--wait", running)


def test_ps_limits_and_says_that_there_is_more(corral: Corral) -> None:
    for _ in range(3):
        corral.submit("--", "true")
    text = corral.ok("ps", "--all", "--limit", "2")
    assert len(text.splitlines()) == 4
    assert "--limit shows more" in text
    assert corral.ok("ps", "--tenant", "default", "--limit", "1").splitlines()[1].split()[2] == "default"


def test_logs_of_one_task_of_a_gang_and_of_parts_of_it(corral: Corral) -> None:
    done = corral("run", "--nodes", "2", "for n in 1 2 3; do echo $NODE_RANK $n; done")
    job = done.err.split()[1]
    all_ = [f"{job}.0.{rank} | {rank} {n}" for rank in range(2) for n in (1, 2, 3)]
    assert corral.ok("logs", job).splitlines() == all_
    assert corral.ok("logs", "--rank", "1", job) == "1 1\n1 2\n1 3\n"
    assert corral.ok("logs", f"{job}.0.1") == "1 1\n1 2\n1 3\n"
    assert corral.ok("logs", "--tail", "1", job).splitlines() == [all_[2], all_[5]]
    assert corral.ok("logs", "-f", job).splitlines() == all_
    tasks = corral.json("logs", job)["tasks"]
    assert [task["text"] for task in tasks] == ["0 1\n0 2\n0 3\n", "1 1\n1 2\n1 3\n"]
    corral.refused("logs", f"{job}.9", code="NOT_FOUND", exit_code=5)


def test_following_a_log_begins_at_its_tail_and_ends_with_the_job(corral: Corral) -> None:
    script = 'seq 100; while [ ! -e "$HOME/end" ]; do sleep 0.05; done; echo end'
    job = corral.submit("--", script)
    wait_until(lambda: "100\n" in corral("logs", job).out, 30.0, 0.1, what="the log")
    with corral.start("logs", "--follow", "--tail", "2", job) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"99\n"
        assert process.stdout.readline() == b"100\n"
        (corral.home / "end").touch()
        rest, _ = process.communicate(timeout=30)
        assert rest == b"end\n"
        assert process.returncode == 0


def test_ctrl_c_ends_following_a_log_and_not_the_job(corral: Corral) -> None:
    job = corral.submit("--", "echo begun; sleep 600")
    with corral.start("logs", "-f", job) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
        assert process.returncode == 130
    assert corral.state(job) == "running"
    corral.ok("cancel", job)


# ---- questions -----------------------------------------------------------------------------------------------------


def test_why_names_each_node_the_holders_and_the_shortfall(corral: Corral) -> None:
    holder = corral.submit("--gpus", "3", "--nodes", "2", "--max-duration", "1h", "--", "sleep", "600")
    corral.wait_state(holder, "running")
    waiting = corral.submit("--gpus", "2", "--nodes", "2", "--", "true")
    try:
        text = corral("why", waiting, COLUMNS="80").out
        assert text.startswith(f"job {waiting} pending: ")
        assert max(map(len, text.splitlines())) <= 80
        lines = [" ".join(line.split()) for line in text.splitlines()]
        assert "needs 2 nodes at once, each 2 GPUs, 2 CPUs" in lines or any(
            line.startswith("needs 2 nodes at once, each 2 GPUs") for line in lines
        )
        assert "shortfall 2 of 2 ranks find no place now" in lines
        for node in ("node-1", "node-2"):
            assert any(line.startswith(f"{node} 0 1/4 ") for line in lines)
        assert any(line.startswith(f"{holder} default 6 ") for line in lines)
        assert any(line.startswith("expected start") for line in lines)
        assert any(line.startswith("cheapest change") for line in lines)
        report = corral.json("why", waiting)
        assert report["shortfall"] == 2
        assert {one["node"] for one in report["constraints"]} == {"node-1", "node-2"}
        assert any(line.split()[:2] == ["1", waiting] for line in corral.ok("queue").splitlines())
        assert corral.json("queue")["lines"][0]["key"] == {"job": waiting, "gang": 0}
    finally:
        corral("cancel", waiting, holder)


def test_receipt_and_history_tell_what_happened(corral: Corral) -> None:
    done = corral("run", "--gpus", "2", "--max-restarts", "1", "exit 1")
    job = done.err.split()[1]
    receipt = corral.json("receipt", job)
    assert (receipt["restarts"], receipt["exit_code"], receipt["simulated"]) == (1, 1, True)
    assert "restarts" in corral.ok("receipt", job)
    told = corral.ok("history", job)
    assert "waits again: " in told
    assert "counted as a restart" in told
    kinds = [entry["fact"]["kind"] for entry in corral.json("history", job)["entries"]]
    assert kinds[0] == "job-submitted"
    assert kinds[-1] == "job-ended"
    assert kinds.count("gang-placed") == 2


def test_nodes_can_be_cordoned_and_are_listed_with_their_devices(corral: Corral) -> None:
    corral.ok("nodes", "cordon", "node-2", "--reason", "bad fan")
    try:
        text = corral.ok("nodes")
        assert "up, cordoned: bad fan" in text
        assert "devices (all SIMULATED)" in text
        assert [node["cordoned"] for node in corral.json("nodes")["nodes"]] == [False, True]
    finally:
        corral.ok("nodes", "uncordon", "node-2")
    assert "cordoned" not in corral.ok("nodes", "--no-devices")
    corral.refused("nodes", "remove", "node-1", code="CONFLICT", exit_code=6)
    corral.refused("nodes", "cordon", "node-9", code="NOT_FOUND", exit_code=5)


def test_tenants_queues_and_tokens_are_administered(corral: Corral) -> None:
    corral.ok("tenant", "add", "red", "--weight", "2", "--limit-gpus", "4")
    corral.ok("tenant", "set", "red", "--weight", "3", "--guaranteed-gpus", "0.5")
    red = next(one["tenant"] for one in corral.json("tenant")["tenants"] if one["tenant"]["id"] == "red")
    assert (red["weight"], red["limit"]["gpu_milli"], red["guaranteed"]["gpu_milli"]) == (3.0, 4000, 500)
    corral.ok("tenant", "set", "red", "--limit-gpus", "none")
    corral.refused("tenant", "add", "red", code="DUPLICATE_NAME", exit_code=2)
    assert "did you mean red?" in corral.refused("tenant", "set", "reed", code="NOT_FOUND", exit_code=5)
    corral.ok("queue", "add", "night", "--priority", "-5")
    corral.ok("queue", "set", "night", "--paused")
    night = next(one for one in corral.json("queue", "list")["queues"] if one["name"] == "night")
    assert (night["priority"], night["paused"]) == (-5, True)
    secret = corral.ok("token", "issue", "red", "--label", "laptop").strip()
    token = next(one for one in corral.json("token")["tokens"] if one["label"] == "laptop")
    assert "digest" not in token
    foreign = corral.submit("--", "sleep", "600")
    try:
        corral.refused("why", foreign, code="NOT_FOUND", exit_code=5, CORRAL_TOKEN=secret)
        corral.refused("tenant", "add", "blue", code="FORBIDDEN", exit_code=4, CORRAL_TOKEN=secret)
    finally:
        corral.ok("cancel", foreign)
    corral.ok("token", "revoke", token["id"])
    corral.refused("ps", code="UNAUTHENTICATED", exit_code=4, CORRAL_TOKEN=secret)
    corral.ok("queue", "remove", "night")
    corral.ok("tenant", "remove", "red")


def test_usage_is_summed_up(corral: Corral) -> None:
    corral.ok("run", "--gpus", "1", "--", "true")
    assert "GPU-HOURS" in corral.ok("usage", "--since", "1d")
    rows = corral.json("usage", "--since", "1d")["rows"]
    assert {row["tenant"] for row in rows} >= {"default"}


def test_what_does_not_exist_or_has_ended_has_codes_of_its_own(corral: Corral) -> None:
    corral.refused("why", "999999", code="NOT_FOUND", exit_code=5)
    corral.refused("logs", "no-such-name", code="NOT_FOUND", exit_code=5)
    job = corral.submit("--wait", "--", "true")
    corral.refused("cancel", job, code="CONFLICT", exit_code=6)
    corral.refused("run", "--gpus", "100", "--", "true", code="UNSCHEDULABLE", exit_code=2)


def test_the_shell_completes_jobs_and_nodes(corral: Corral) -> None:
    job = corral.submit("--name", "completed-name", "--", "true")
    for line, word in ((f"corral why {job[:1]}", job), ("corral nodes cordon no", "node-1")):
        count = str(len(line.split(" ")) - 1)
        told = corral(_CORRAL_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=count)
        assert word in told.out.split(), told.err
