"""From the launch to the recorded end, when all is well and when the program cannot run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from corral.agent import processes
from tests.contract.shim.shimworld import ShimWorld, log_of
from tests.waiting import wait_until

REPORT = """
import json, os, resource, signal
print(json.dumps({
    "env": dict(os.environ), "cwd": os.getcwd(), "pid": os.getpid(), "ppid": os.getppid(),
    "sid": os.getsid(0), "pgid": os.getpgrp(), "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd"))[:-1],
    "files": [os.readlink(f"/proc/self/fd/{fd}") for fd in (0, 1, 2)],
    "umask": os.umask(0), "cpus": sorted(os.sched_getaffinity(0)),
    "status": open("/proc/self/status").read(), "oom": int(open("/proc/self/oom_score_adj").read()),
}))
"""


def report(world: ShimWorld, **fields: Any) -> dict[str, Any]:
    handle = world.python(code=REPORT, **fields)
    assert world.end(handle)["exit_code"] == 0
    return json.loads(log_of(handle))


def test_exit_codes_are_recorded(world: ShimWorld) -> None:
    for number, code in enumerate((0, 3, 255)):
        status = world.run(number, script=f"exit {code}")
        assert (status["cause"], status["exit_code"], status["signal"]) == ("exited", code, None)
        assert (status["task"], status["incarnation"], status["degraded"]) == (f"{number}.0.0", 1, [])


def test_the_status_tells_times_and_uses(world: ShimWorld) -> None:
    status = world.end(world.python(code="x = bytearray(60 << 20); sum(range(3_000_000)); print('done')"))
    assert status["started_at"] <= status["ended_at"]
    assert status["ran_s"] > 0
    assert status["cpu_s"] > 0.01
    assert 60 < status["max_rss_mib"] < 200
    assert (status["log_bytes"], status["log_lost_bytes"]) == (5, 0)


def test_a_death_by_signal_is_recorded(world: ShimWorld) -> None:
    status = world.run(script="kill -SEGV $$")
    assert (status["cause"], status["exit_code"], status["signal"]) == ("signal", None, signal.SIGSEGV)
    assert status["message"] == "killed by SIGSEGV"


def test_the_agent_is_told_of_start_and_end(world: ShimWorld) -> None:
    handle = world.launch(script="exit 7")
    started, exited = world.event(), world.event()
    shim = handle.shim()
    assert shim is not None
    assert (started["event"], started["shim_pid"], started["child_pid"]) == ("started", shim["pid"], shim["child_pid"])
    assert exited == {"event": "exited", **(handle.status() or {})}
    assert exited["exit_code"] == 7


def test_a_task_needs_nobody_to_listen(world: ShimWorld) -> None:
    assert world.run(argv=["true"], notify=str(world.directory / "nobody"))["exit_code"] == 0
    assert world.run(1, argv=["true"], notify=None)["exit_code"] == 0


def test_shim_json_names_shim_and_child(world: ShimWorld) -> None:
    handle = world.launch(argv=["sleep", "60"])
    shim = wait_until(handle.shim) or {}
    assert shim["boot_id"] == processes.boot_id()
    assert processes.start_ticks(shim["pid"]) == shim["start_ticks"]
    assert processes.start_ticks(shim["child_pid"]) == shim["child_start_ticks"]
    stat = processes.read_stat(shim["child_pid"])
    assert stat is not None
    assert stat.ppid == shim["pid"]
    assert handle.shim_lives()
    assert handle.was_forked()


def test_the_child_inherits_nothing(world: ShimWorld) -> None:
    seen = report(world, env={"ONLY": "this", "CORRAL_TASK": "forged"})
    directory = str(world.handles[0].directory)
    assert seen["env"] == {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "ONLY": "this",
        "CORRAL_TASK": "0.0.0.1",
        "CORRAL_TASK_DIR": directory,
        # Python's own doing in the C locale (PEP 538).
        "LC_CTYPE": "C.UTF-8",
    }
    assert seen["fds"] == [0, 1, 2]
    assert seen["files"][0] == "/dev/null"
    assert seen["files"][1] == seen["files"][2]
    assert seen["files"][1].startswith("pipe:")
    assert seen["cwd"] == str(world.directory)
    assert seen["sid"] == seen["pgid"] == seen["pid"]
    assert seen["umask"] == 0o022
    assert seen["oom"] == 0


def test_signals_are_as_a_program_expects_them(world: ShimWorld) -> None:
    handle = world.launch(argv=["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"])
    assert world.end(handle)["exit_code"] == 0
    masks = {line.split(b":")[0]: int(line.split(b":")[1], 16) for line in log_of(handle).splitlines()}
    # 32 and 33 are the C library's own (signal(7)): no program can set them.
    of_programs = ~(1 << 31 | 1 << 32)
    assert {name: mask & of_programs for name, mask in masks.items()} == {b"SigBlk": 0, b"SigIgn": 0}


def test_umask_cpus_and_oom_score_are_set(world: ShimWorld) -> None:
    cpu = max(os.sched_getaffinity(0))
    seen = report(world, umask=0o077, cpus=[cpu], oom_score_adj=500)
    assert (seen["umask"], seen["cpus"], seen["oom"]) == (0o077, [cpu], 500)


def test_resource_limits_are_set(world: ShimWorld) -> None:
    handle = world.launch(script="ulimit -Sn; ulimit -Hn; ulimit -c", rlimits={"NOFILE": [77, 88], "CORE": [0, 0]})
    assert world.end(handle)["exit_code"] == 0
    assert log_of(handle) == b"77\n88\n0\n"
    status = world.run(1, argv=["true"], rlimits={"NOFILE": [88, 77]})
    assert (status["cause"], status["exit_code"]) == ("exec-failed", 126)
    assert status["message"].startswith("cannot start: ")


def test_cpus_that_do_not_exist_are_told_not_fatal(world: ShimWorld) -> None:
    status = world.run(argv=["true"], cpus=[4000])
    assert status["exit_code"] == 0
    assert "4000" in status["degraded"][0]


def test_a_script_runs_with_bash_or_sh(world: ShimWorld, tmp_path: Path) -> None:
    handle = world.launch(script='[[ 1 == 1 ]] && echo "bash ${BASH_VERSION:+yes}"')
    assert world.end(handle)["exit_code"] == 0
    assert log_of(handle) == b"bash yes\n"
    (tmp_path / "sh").symlink_to("/bin/sh")
    handle = world.launch(1, script="echo plain", env={"PATH": str(tmp_path)})
    assert world.end(handle)["exit_code"] == 0
    assert log_of(handle) == b"plain\n"


def test_a_script_may_be_longer_than_an_argument(world: ShimWorld) -> None:
    handle = world.launch(script="# " + "x" * 300_000 + "\necho long")
    assert world.end(handle)["exit_code"] == 0
    assert log_of(handle) == b"long\n"


def test_a_missing_command_is_said_clearly(world: ShimWorld) -> None:
    handle = world.launch(argv=["no-such-program", "--flag"])
    status = world.end(handle)
    assert (status["cause"], status["exit_code"], status["signal"]) == ("exec-failed", 127, None)
    assert status["message"] == "command not found: no-such-program"
    assert log_of(handle) == b"corral: command not found: no-such-program\n"
    assert status["started_at"] is None
    assert world.event()["event"] == "exited"


def test_a_missing_directory_is_said_clearly(world: ShimWorld) -> None:
    status = world.run(argv=["true"], cwd="/no/such/place")
    assert (status["cause"], status["exit_code"]) == ("exec-failed", 126)
    assert status["message"] == "the working directory does not exist: /no/such/place"


@pytest.mark.parametrize(
    "content, mode, message",
    [
        (b"#!/bin/sh\n", 0o644, "cannot execute {program}: Permission denied"),
        (b"#!/no/such/interpreter\n", 0o755, "the interpreter that {program} names in its first line does not exist"),
        (b"\x00\x01 nothing", 0o755, "{program} is neither a program nor a script that begins with #!"),
    ],
    ids=["mode", "interpreter", "format"],
)
def test_a_file_that_cannot_run_is_said_clearly(world: ShimWorld, content: bytes, mode: int, message: str) -> None:
    program = world.directory / "program"
    program.write_bytes(content)
    program.chmod(mode)
    status = world.run(argv=[str(program)])
    assert (status["cause"], status["message"]) == ("exec-failed", message.format(program=program))


def test_a_program_is_found_on_the_path_of_the_task(world: ShimWorld) -> None:
    program = world.directory / "mine"
    program.write_text("#!/bin/sh\necho found\n")
    program.chmod(0o755)
    handle = world.launch(argv=["mine"], env={"PATH": f"{world.directory}:/bin"})
    assert world.end(handle)["exit_code"] == 0
    assert log_of(handle) == b"found\n"


def test_status_is_the_last_thing_and_leaves_nothing_half_written(world: ShimWorld) -> None:
    handle = world.launch(script="echo hello")
    world.end(handle)
    wait_until(lambda: not handle.shim_lives())
    assert sorted(path.name for path in handle.directory.iterdir()) == [
        "forked",
        "log",
        "shim.json",
        "spec.json",
        "status.json",
    ]


def test_a_task_directory_that_vanishes_ends_the_shim(world: ShimWorld) -> None:
    handle = world.launch(argv=["sleep", "0.5"])
    shim = wait_until(handle.shim) or {}
    for entry in handle.directory.iterdir():
        entry.unlink()
    handle.directory.rmdir()
    wait_until(lambda: processes.start_ticks(shim["pid"]) != shim["start_ticks"], what="the end of the shim")


def test_nothing_is_imported_after_the_fork(state_dir: Path) -> None:
    program = f"""
import os, json, signal, sys
sys.path.insert(0, {str(Path(processes.__file__).parents[2])!r})
from corral.agent import forkserver
from corral.agent.shim import main, signals
before = set(sys.modules)
for number, fields in enumerate((
    dict(argv=["true"]),
    dict(argv=["missing"]),
    dict(script="sleep 5 & exit 1", memory_mib=500, orphan_grace_s=0, notify={str(state_dir / "nobody")!r}),
    dict(script="sleep 5", max_duration_s=0.05, lease=dict(path="/none", checkpoint_before_s=1, freeze_max_s=0)),
    dict(script="exit 0", setup=dict(script="exit 3", marker={str(state_dir / "m")!r})),
    dict(argv=["true"], cgroup=dict(name="x", memory=[1, "/no/such/cgroup"])),
)):
    path = f"{state_dir}/t{{number}}"
    os.mkdir(path)
    with open(path + "/spec.json", "w") as file:
        json.dump(dict(task="1.0.0", incarnation=1, env=dict(PATH="/bin:/usr/bin"), cwd="/", **fields), file)
    if os.fork() == 0:
        directory = os.open(path, os.O_RDONLY)
        signal.pthread_sigmask(signal.SIG_BLOCK, signals.HANDLED)
        main.live(forkserver._read_spec(directory), path, directory, forkserver._claim(directory), "boot")
        with open(path + "/new", "w") as file:
            json.dump(sorted(set(sys.modules) - before), file)
        os._exit(0)
    os.wait()
    print(json.load(open(path + "/status.json"))["cause"], json.load(open(path + "/new")))
"""
    ended = subprocess.run(
        [sys.executable, "-S", "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    causes = ["exited", "exec-failed", "exited", "lease-expired", "setup-failed", "exited"]
    assert ended.stdout.splitlines() == [f"{cause} []" for cause in causes], ended.stderr


def test_a_silent_task_costs_few_files(world: ShimWorld) -> None:
    handle = world.launch(argv=["true"])
    world.end(handle)
    wait_until(lambda: not handle.shim_lives())
    inodes = {path.name: path.stat().st_ino for path in handle.directory.iterdir()}
    assert sorted(inodes) == ["forked", "shim.json", "spec.json", "status.json"]
    assert inodes["forked"] == inodes["shim.json"]


def test_the_fork_server_loads_little(world: ShimWorld) -> None:
    maps = Path(f"/proc/{world.server.pid}/maps").read_text()
    assert "_ssl" not in maps
    assert "_sqlite3" not in maps
    stat = processes.read_stat(world.server.pid)
    assert stat is not None
    assert stat.rss_pages * os.sysconf("SC_PAGE_SIZE") < 32 << 20
