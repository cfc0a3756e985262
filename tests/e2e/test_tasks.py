"""What tasks do that they should not, and what they are given: each as a real process on a real pool."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from corral.model.ask import JobAsk
from corral.model.errors import PathNotFound
from corral.model.job import Cause, JobState
from tests.e2e.livepool import LivePool, alive, resident_mib
from tests.waiting import wait_until

LOG_BYTES = 100 << 20
DOCUMENTED = {
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "NNODES", "NPROC_PER_NODE",
    "CORRAL_JOB", "CORRAL_JOB_NAME", "CORRAL_TENANT", "CORRAL_NODE", "CORRAL_GANG", "CORRAL_RANK", "CORRAL_TASK",
    "CORRAL_INCARNATION", "CORRAL_RESTARTS", "CORRAL_CHECKPOINT_DIR", "CORRAL_OUTPUT_DIR", "CORRAL_DATA_DIR",
    "CORRAL_TASK_DIR", "CORRAL_DEVICES", "CORRAL_GPU_MILLI", "CORRAL_SIMULATED", "PATH",
    "WORLD_SIZE", "CORRAL_NUM_NODES", "CORRAL_NUM_GPUS",
}  # fmt: skip


def test_a_missing_command_fails_at_once_and_is_named(shared: LivePool) -> None:
    job = shared.submit(["/no/such/program", "--flag"], max_restarts=3)
    found = shared.result(job)
    assert (found.state, found.exit_cause, found.restarts) == (JobState.FAILED, Cause.EXEC_FAILED, 0)
    assert "command not found: /no/such/program" in found.message
    job = shared.submit("no-such-command --flag")
    found = shared.result(job)
    assert (found.state, found.exit_code) == (JobState.FAILED, 127)
    assert b"no-such-command" in shared.log(job)


def test_a_missing_working_directory_is_refused_or_fails_at_once(shared: LivePool, tmp_path: Path) -> None:
    missing = tmp_path / "gone"
    with pytest.raises(PathNotFound, match=r"workdir: .* does not exist"):
        shared.submit(["true"], workdir=missing)
    # It may vanish later: then nobody could have refused it.
    job = shared.client.submit(JobAsk(argv=("true",), workdir=str(missing), max_restarts=3))
    found = shared.result(job)
    assert (found.state, found.restarts) == (JobState.FAILED, 0)
    assert str(missing) in found.message


def test_a_task_that_ignores_sigterm_is_killed_after_its_grace(shared: LivePool) -> None:
    deaf = shared.submit("trap '' TERM; echo ready; while :; do sleep 0.05; done", grace="1s")
    tidy = shared.submit("trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.05; done", grace="60s")
    pids = [shared.shim(job)["child_pid"] for job in (deaf, tidy)]
    for job in (deaf, tidy):
        shared.said(job, b"ready")
        job.cancel()
    for job, signal in ((tidy, None), (deaf, 9)):
        assert shared.result(job).state is JobState.CANCELLED
        exit_ = job.details().gangs[0].tasks[0].exit
        assert exit_ is not None
        assert (exit_.cause, exit_.signal) == (Cause.CANCELLED, signal)
    assert shared.log(tidy).startswith(b"ready\n")
    assert b"bye\n" in shared.log(tidy)
    assert not any(map(alive, pids))


def test_children_that_a_task_daemonises_do_not_survive_it(shared: LivePool) -> None:
    job = shared.submit(
        "(setsid sleep 600 & echo $!); (env -i nohup setsid sleep 600 > /dev/null & echo $!)\n"
        "(trap '' TERM HUP; while :; do sleep 1; done) & echo $!; disown -a"
    )
    found = shared.result(job)
    assert (found.state, found.exit_code) == (JobState.SUCCEEDED, 0)
    pids = [int(word) for word in shared.log(job).splitlines()[:3]]
    assert len(set(pids)) == 3
    assert not any(map(alive, pids))
    # `setsid` forks where it leads its group: whatever else came of it is found by what it says.
    assert not [pid for pid in shared.processes() if f"CORRAL_JOB={job.id}\0".encode() in _environment(pid)]


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def test_a_hundred_megabytes_of_log_fill_no_memory_and_keep_their_end(shared: LivePool) -> None:
    daemon = shared.daemon()
    watched = {pid: resident_mib(pid) for pid in (daemon, shared.agent("node-1"), shared.agent("node-2"))}
    job = shared.submit(f"yes 0123456789abcdef | head -c {LOG_BYTES}; echo; echo end of log")
    peak = dict(watched)

    def look() -> bool:
        peak.update({pid: max(seen, resident_mib(pid)) for pid, seen in peak.items()})
        return job.status().state.ended

    wait_until(look, 60.0, what="the log to be written")
    assert shared.result(job).exit_code == 0
    read, tail = 0, b""
    for chunk in job.logs():
        assert chunk.offset == read
        read += len(chunk.data)
        tail = (tail + chunk.data)[-100:]
        look()
    assert read == LOG_BYTES + len("\nend of log\n")
    assert tail.endswith(b"0123456789abcdef\n01\nend of log\n")
    grown = {pid: peak[pid] - before for pid, before in watched.items()}
    assert all(mib < 32.0 for mib in grown.values()), grown


def test_any_bytes_pass_through_the_log_unchanged(shared: LivePool, tmp_path: Path) -> None:
    words = "żółw 🐢 \r\n\u2028 日本語\x00\x1b[31m".encode()
    payload = bytes(range(256)) * 300 + words + b"\xff\xfe\xc3\n" + b"no newline"
    (tmp_path / "payload").write_bytes(payload)
    job = shared.submit(["cat", str(tmp_path / "payload")])
    followed = b"".join(chunk.data for chunk in job.logs(follow=True))
    assert shared.result(job).exit_code == 0
    assert shared.log(job) == payload
    assert followed == payload
    middle = b"".join(chunk.data for chunk in shared.client.logs(job.id, offset=1_001))
    assert middle == payload[1_001:]


def test_a_task_gets_exactly_the_documented_environment(shared: LivePool) -> None:
    fields = {"gpus": 2, "name": "env", "envs": {"LR": "0.1", "EMPTY": "", "WORDS": "a b\nc"}}
    text = shared.output(["env", "-0"], **fields)
    env = dict(entry.split("=", 1) for entry in text.split("\0")[:-1])
    inherited = {name for name in ("HOME", "USER", "LANG", "TZ") if name in os.environ}
    assert env.keys() == DOCUMENTED | inherited | {"LR", "EMPTY", "WORDS"}
    assert (env["LR"], env["EMPTY"], env["WORDS"]) == ("0.1", "", "a b\nc")
    job = env["CORRAL_JOB"]
    assert env["CORRAL_TASK"] == f"{job}.0.0.1"
    given = {name: env[f"CORRAL_{name}"] for name in ("JOB_NAME", "TENANT", "GANG", "RANK", "INCARNATION", "RESTARTS")}
    assert list(given.values()) == ["env", "default", "0", "0", "1", "0"]
    assert env["CORRAL_GPU_MILLI"] == "2000"
    devices = env["CUDA_VISIBLE_DEVICES"].split(",")
    assert env["CORRAL_DEVICES"].split(",") == devices
    assert len(set(devices)) == 2
    assert all(uuid.startswith(f"SIM-H100-{env['CORRAL_NODE']}-") for uuid in devices)
    assert (env["CUDA_DEVICE_ORDER"], env["CORRAL_SIMULATED"]) == ("PCI_BUS_ID", "1")
    assert (env["NODE_RANK"], env["NNODES"], env["NPROC_PER_NODE"]) == ("0", "1", "2")
    assert (env["CORRAL_NUM_NODES"], env["CORRAL_NUM_GPUS"], env["WORLD_SIZE"]) == ("1", "2", "2")
    assert env["MASTER_ADDR"] == "127.0.0.1"
    assert 20_000 <= int(env["MASTER_PORT"]) <= 29_999
    home = shared.state_dir / "jobs" / job
    assert env["CORRAL_OUTPUT_DIR"] == str(home / "output")
    assert env["CORRAL_CHECKPOINT_DIR"] == str(home / "checkpoint" / "0")


def test_a_task_that_overruns_its_max_duration_is_stopped(shared: LivePool) -> None:
    job = shared.submit("echo begun; sleep 600", max_duration=1, grace="1s", max_restarts=3)
    found = shared.result(job)
    assert (found.state, found.exit_cause, found.restarts) == (JobState.FAILED, Cause.MAX_DURATION, 0)
    assert "max_duration" in found.message
    assert shared.log(job).startswith(b"begun\n")


@pytest.mark.parametrize("allowed,state,code,runs", [(2, JobState.SUCCEEDED, 0, 3), (1, JobState.FAILED, 5, 2)])
def test_a_failing_task_runs_again_as_often_as_allowed(
    shared: LivePool, allowed: int, state: JobState, code: int, runs: int
) -> None:
    script = (
        'cd "$CORRAL_OUTPUT_DIR"; echo "$CORRAL_INCARNATION $CORRAL_RESTARTS" >> runs\n'
        'echo "$CORRAL_INCARNATION" > "$CORRAL_CHECKPOINT_DIR/step"; [ "$(wc -l < runs)" = 3 ] || exit 5'
    )
    job = shared.submit(script, max_restarts=allowed)
    found = shared.result(job)
    assert (found.state, found.exit_code, found.restarts, found.moves) == (state, code, runs - 1, 0)
    home = shared.state_dir / "jobs" / job.id
    assert (home / "output" / "runs").read_text().splitlines() == [f"{n + 1} {n}" for n in range(runs)]
    assert (home / "checkpoint" / "0" / "step").read_text() == f"{runs}\n"


def test_setup_runs_once_on_each_node_before_all_tasks(shared: LivePool, tmp_path: Path) -> None:
    setup = f'sleep 0.2; echo "$CORRAL_TASK" >> {tmp_path}/$CORRAL_NODE'
    job = shared.submit(f'test -s {tmp_path}/"$CORRAL_NODE"', setup=setup, array="0-5", gpus=1)
    assert shared.result(job).state is JobState.SUCCEEDED
    nodes = {task.placement.node for gang in job.details().gangs.values() for task in gang.tasks if task.placement}
    assert {path.name: len(path.read_text().splitlines()) for path in tmp_path.iterdir()} == dict.fromkeys(nodes, 1)


def test_a_setup_that_fails_fails_the_task_before_it_runs(shared: LivePool) -> None:
    job = shared.submit("echo never", setup="echo preparing; exit 9")
    found = shared.result(job)
    assert (found.state, found.exit_cause) == (JobState.FAILED, Cause.SETUP_FAILED)
    assert b"never" not in shared.log(job)
    assert b"preparing\n" in shared.log(job)


def test_mounted_files_and_directories_stand_where_they_were_asked_for(shared: LivePool, tmp_path: Path) -> None:
    work, data = tmp_path / "work", tmp_path / "data"
    work.mkdir()
    data.mkdir()
    (work / "train.py").write_text("code")
    (work / "data").mkdir()
    (work / "data" / "own").write_text("own")
    (data / "one").write_text("one")
    (tmp_path / "conf").write_text("conf")
    text = shared.output(
        "cat train.py data/own data/images/one conf/settings; echo new > made; ls",
        workdir=work,
        file_mounts={"data/images": data, "conf/settings": tmp_path / "conf"},
    )
    assert text == "codeownoneconfconf\ndata\nmade\ntrain.py\n"
    assert sorted(path.name for path in work.iterdir()) == ["data", "train.py"]
