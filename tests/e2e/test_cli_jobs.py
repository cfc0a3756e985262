"""`submit`, `ps`, `logs`, `why`, `receipt`, `history` against a real pool."""

from __future__ import annotations

import signal

from tests.e2e.command import Corral
from tests.waiting import wait_until


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
        rows = {row["id"]: row for row in corral.json("ps", "--all")["jobs"]}
        assert (rows[ended]["exit_cause"], rows[ended]["exit_code"], rows[running]["exit_cause"]) == ("exited", 3, None)
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


def test_no_job_is_cancelled_when_one_of_them_does_not_exist(corral: Corral) -> None:
    jobs = [corral.submit("--", "sleep", "600") for _ in range(2)]
    corral.refused("cancel", jobs[0], "nope", jobs[1], code="NOT_FOUND", exit_code=5)
    for job in jobs:
        corral.wait_state(job, "running")
    assert [row["state"] for row in corral.json("cancel", "--wait", *jobs)["jobs"]] == ["cancelled", "cancelled"]


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


def test_what_does_not_exist_or_has_ended_has_codes_of_its_own(corral: Corral) -> None:
    corral.refused("why", "999999", code="NOT_FOUND", exit_code=5)
    corral.refused("logs", "no-such-name", code="NOT_FOUND", exit_code=5)
    job = corral.submit("--wait", "--", "true")
    corral.refused("cancel", job, code="CONFLICT", exit_code=6)
    corral.refused("run", "--gpus", "100", "--", "true", code="UNSCHEDULABLE", exit_code=2)


def test_one_job_that_has_ended_does_not_save_the_others_from_being_cancelled(corral: Corral) -> None:
    ended = corral.submit("--wait", "--", "true")
    running = corral.submit("--", "sleep", "600")
    done = corral("cancel", ended, "--wait", running, ended)
    assert done.code == 6
    first, second = done.err.splitlines()
    assert first.startswith(f"job {running} ")
    assert first.endswith(" is cancelled")
    assert second.startswith("error[CONFLICT]: ")
    assert corral.state(running) == "cancelled"


def test_a_name_of_two_unfinished_jobs_cancels_neither(corral: Corral) -> None:
    jobs = [corral.submit("--name", "twin", "--", "sleep", "600") for _ in range(2)]
    other = corral.submit("--", "sleep", "600")
    said = corral.refused("cancel", other, "twin", code="AMBIGUOUS_NAME", exit_code=2)
    assert ", ".join(jobs) in said
    for job in (*jobs, other):
        corral.wait_state(job, "running")
    corral.ok("cancel", "--wait", other, jobs[0])
    corral.ok("cancel", "--wait", "twin")
    assert corral.state(jobs[1]) == "cancelled"


def test_each_attempt_has_a_log_that_can_be_read(corral: Corral) -> None:
    job = corral.submit("--max-restarts", "2", "--", "date +%s%N | tee -a $HOME/tries; exit 1")
    corral.wait_state(job, "failed")
    first, second, third = ((corral.home / "tries").read_text()).splitlines()

    def shown(*arguments: str) -> str:
        return corral.ok("logs", *arguments, job).splitlines()[-1]

    assert [shown("--attempt", str(number)) for number in (1, 2, 3)] == [first, second, third]
    assert (shown(), shown("--previous")) == (third, second)
    assert [task["text"].splitlines()[-1] for task in corral.json("logs", "--attempt", "1", job)["tasks"]] == [first]
    said = corral.refused("logs", "--attempt", "4", job, code="NOT_FOUND", exit_code=5)
    assert "its newest is 3" in said
    once = corral.submit("--wait", "--", "true")
    corral.refused("logs", "--previous", once, code="NOT_FOUND", exit_code=5)


def test_who_waits_for_another_job_is_said_by_ps_and_queue(corral: Corral) -> None:
    first = corral.submit("--", "sleep", "600")
    corral.wait_state(first, "running")
    second = corral.submit("--after", first, "--", "true")
    assert corral.ok("queue") == "nothing waits for room; 1 job waits for other jobs to end\n"
    row = next(line for line in corral.ok("ps").splitlines() if line.split()[0] == second)
    assert f"pending: waits for job {first}" in row
    corral.ok("cancel", second, first)
