"""Batch scripts: options to jobs, ignored options told, and the shell that scripts find (run by a real bash)."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from pathlib import Path

import pytest

from corral.model.ask import AfterAsk, JobAsk
from corral.model.errors import CorralError, Refusal
from corral.model.job import CheckpointSpec, DependencyKind
from corral.wire.jobfile import load_any
from corral.wire.sbatch import SbatchScript, is_batch_script, parse_sbatch
from corral.wire.slurm_options import FLAGS, IGNORED, OPTIONAL, SHORT, VALUED
from corral.wire.slurm_values import read_time_s
from corral.wire.units import Unreadable


def parse(text: str, environment: dict[str, str] | None = None) -> SbatchScript:
    return parse_sbatch(text.encode(), source="old.sh", name="old.sh", here="/tmp", environment=environment)


def with_options(*lines: str) -> JobAsk:
    return parse("\n".join(["#!/bin/bash", *(f"#SBATCH {line}" for line in lines), "hostname"])).ask


def refusals(text: str) -> list[Refusal]:
    with pytest.raises(CorralError) as caught:
        parse(text)
    return [caught.value.refusal, *caught.value.also]


def test_the_usual_options_make_a_job() -> None:
    ask = with_options(
        '-J "my training"',
        "--nodes=2 --ntasks-per-node 4",
        "--gres=gpu:h100:4,license:1",
        "-c8",
        "--mem=64G",
        "-t 1-12:30",
        "-p gpu,long",
        "-d afterok:12:13,afterany:prepare",
        "--signal=B:USR1@90",
    )
    assert (ask.name, ask.num_nodes, ask.queue, ask.workdir) == ("my-training", 2, "gpu", "/tmp")
    assert (ask.gpu_model, ask.gpu_milli, ask.cpus_milli, ask.memory_mib) == ("h100", 4_000, 32_000, 65_536)
    assert ask.max_duration_s == 86_400 + 12 * 3_600 + 30 * 60
    assert ask.after == (AfterAsk("12"), AfterAsk("13"), AfterAsk("prepare", DependencyKind.ENDED))
    assert ask.checkpoint == CheckpointSpec("USR1", 90.0)


@pytest.mark.parametrize(
    "lines,nodes,gpus,cpus",
    [
        (["-n 8"], 1, 0, 8_000),
        (["-n 8 -N 2"], 2, 0, 4_000),
        (["-n 8 --ntasks-per-node=4"], 2, 0, 4_000),
        (["-N 2-4"], 4, 0, None),
        (["-N 2-4 -G 8"], 2, 4_000, None),
        (["-N 2-4 -n 4"], 2, 0, 2_000),
        (["-N 2 -G 8"], 2, 4_000, None),
        (["--gpus=a100:2"], 1, 2_000, None),
        (["--gpus-per-node=4 -N 3"], 3, 4_000, None),
        (["--gpus-per-task=2 -n 4 -N 2"], 2, 4_000, 2_000),
        (["--gres=gpu"], 1, 1_000, None),
        (["--gres=gpu:2(IDX:0-1)"], 1, 2_000, None),
        (["--gres=license:2"], 1, 0, None),
        (["-N 1", "-N 2"], 2, 0, None),
    ],
)
def test_tasks_nodes_and_devices(lines: list[str], nodes: int, gpus: int, cpus: int | None) -> None:
    ask = with_options(*lines)
    assert (ask.num_nodes, ask.gpu_milli, ask.cpus_milli) == (nodes, gpus, cpus)


@pytest.mark.parametrize(
    "line,sizes,ignored",
    [
        ("-N 2-4", (2, 3, 4), ()),
        ("--nodes=2-2", (), ()),
        ("-N 2-4 --ntasks-per-node=2 --ntasks=8", (2, 3, 4), ()),
        ("-N 2-4 --gpus-per-node=8", (2, 3, 4), ()),
        ("-N 2-4 --gpus=8", (), ("line 2: --nodes=2-4: the job gets exactly 2: --gpus counts for all nodes together",)),
        ("-N 2-4 -n 8", (), ("line 2: --nodes=2-4: the job gets exactly 2: --ntasks counts for all nodes together",)),
        (
            "-N 1-64",  # 63 / 31 is a little more than 2
            (1, *range(4, 65, 3)),
            ("line 2: --nodes=1-64: only 22 of these numbers of nodes are tried, in steps of 3",),
        ),
    ],
)
def test_a_range_of_nodes_is_an_elastic_job(line: str, sizes: tuple[int, ...], ignored: tuple[str, ...]) -> None:
    found = parse(f"#!/bin/bash\n#SBATCH {line}\ntrue\n")
    assert found.ask.node_counts == sizes
    assert found.ask.num_nodes == (sizes[-1] if sizes else 2)
    assert found.ignored == ignored


@pytest.mark.parametrize(
    "lines,mib",
    [
        (["--mem=4000"], 4_000),
        (["--mem=2G"], 2_048),
        (["--mem-per-cpu=1G", "-c 4", "-n 2"], 8_192),
        (["--mem-per-gpu=10G", "--gpus-per-node=2"], 20_480),
        (["--mem=0"], None),
    ],
)
def test_memory_counts_for_a_node(lines: list[str], mib: int | None) -> None:
    assert with_options(*lines).memory_mib == mib


@pytest.mark.parametrize(
    "text,seconds",
    [
        ("90", 5_400),
        ("1:30", 90),
        ("2:00:00", 7_200),
        ("2-12", 216_000),
        ("1-1:1", 90_060),
        ("1-00:00:01", 86_401),
        ("UNLIMITED", None),
        ("0", None),
    ],
)
def test_time_limits_as_sbatch_reads_them(text: str, seconds: float | None) -> None:
    assert read_time_s(text) == seconds


def test_what_is_no_time_limit_is_refused() -> None:
    for text in ("", "soon", "1:2:3:4", "-5", "99999999999"):
        with pytest.raises(Unreadable):
            read_time_s(text)


def test_an_array_keeps_its_indices_and_its_limit_is_told_as_ignored() -> None:
    script = parse("#!/bin/bash\n#SBATCH --array=0,6,16-20:2%4\nhostname\n")
    assert script.ask.indices == (0, 6, 16, 18, 20)
    assert script.ignored == (
        "line 2: --array=0,6,16-20:2%4: the limit %4 has no effect: shares and quotas decide how many run at once",
    )


def test_a_partition_that_is_no_queue_here_has_no_effect() -> None:
    def job(partition: str) -> SbatchScript:
        text = f"#!/bin/bash\n#SBATCH -p {partition}\nhostname\n".encode()
        return parse_sbatch(text, source="x", name="x", here="/tmp", queues=lambda: ["default", "night"])

    assert (job("night").ask.queue, job("night").ignored) == ("night", ())
    assert job("gpu,night").ask.queue == "night"
    assert job("gpu").ask.queue is None
    assert job("gpu").ignored == ("line 2: --partition=gpu: there is no such queue here; the default one is taken",)


def test_options_without_effect_are_told_with_the_reason() -> None:
    script = parse("#!/bin/bash\n#SBATCH -o out.log --mail-type=END\n#SBATCH --exclusive -H --nice=5\nhostname\n")
    assert [line.partition(":")[2].split()[0] for line in script.ignored] == [
        "--output",
        "--mail-type",
        "--exclusive",
        "--hold",
        "--nice",
    ]
    assert script.ignored[0] == "line 2: --output has no effect: corral keeps the log: corral logs JOB"


def test_options_end_at_the_first_command_and_comments_are_none() -> None:
    text = "#!/bin/bash\n\n# a remark\n##SBATCH -N 9\n#SBATCHER\n#SBATCH -J a # the name\nhostname\n#SBATCH -J b\n"
    assert parse(text).ask.name == "a"


@pytest.mark.parametrize(
    "line,code,field,hint",
    [
        ("--nodez=2", "UNKNOWN_FIELD", "--nodez", "--nodes?"),
        ("-Z 2", "UNKNOWN_FIELD", "-Z", None),
        ("hetjob", "UNKNOWN_FIELD", "hetjob", None),
        ("--nodes", "MISSING_FIELD", "--nodes", None),
        ("-J 'open", "INVALID_FIELD", "#SBATCH", None),
        ("--nodes=many", "INVALID_FIELD", "--nodes", None),
        ("--nodes=0", "INVALID_FIELD", "--nodes", None),
        ("--time=soon", "INVALID_FIELD", "--time", "minutes"),
        ("--mem=lots", "INVALID_FIELD", "--mem", "64G"),
        ("--array=9-1", "INVALID_FIELD", "--array", None),
        ("--gres=gpu:x:y", "INVALID_FIELD", "--gres", "H100:8"),
        ("--gpus=3 -N 2", "INVALID_FIELD", "--gpus", None),
        ("--dependency=singleton", "INVALID_FIELD", "--dependency", "afterok"),
        ("--dependency=after:12", "INVALID_FIELD", "--dependency", "afterok"),
        ("--dependency=afterok:1?afterok:2", "INVALID_FIELD", "--dependency", "afterok"),
        ("--signal=USR1@soon", "INVALID_FIELD", "--signal", "USR1@60"),
        ("--signal=KILL@9", "INVALID_FIELD", "--signal", None),
        ("--chdir=/no/such/place", "PATH_NOT_FOUND", "--chdir", None),
        ("--partition='a b'", "INVALID_FIELD", "--partition", None),
    ],
)
def test_a_mistake_has_its_line_and_the_nearest_option(line: str, code: str, field: str, hint: str | None) -> None:
    (refusal,) = refusals(f"#!/bin/bash\n# first\n#SBATCH {line}\nhostname\n")
    assert (refusal.code, refusal.field) == (code, field)
    assert refusal.where is not None
    assert refusal.where.startswith("old.sh:3:")
    assert hint is None or hint in (refusal.hint or "")


def test_a_script_begins_with_its_interpreter() -> None:
    assert is_batch_script(b"#!/bin/sh\n")
    assert not is_batch_script(b"run: x\n")
    assert refusals("hostname\n")[0].code == "JOB_FILE_UNREADABLE"
    (refusal,) = refusals("#!/usr/bin/fortran\nx\n")
    assert (refusal.code, refusal.where) == ("INVALID_FIELD", "old.sh:1:1")


def test_an_unreadable_script_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.sh"
    path.write_bytes(b"#!/bin/sh\n\0\xff")
    with pytest.raises(CorralError) as caught:
        load_any(path)
    assert caught.value.code == "JOB_FILE_UNREADABLE"


def test_names_become_names_of_jobs() -> None:
    assert with_options("-J 12").name == "job-12"
    assert with_options("-J 'été au lait/2'").name == "été-au-lait-2"
    assert with_options("-J '///'").name == "job-"


def test_the_environment_is_inherited_as_export_says() -> None:
    shell = {"A": "1", "B": "2", "SLURM_JOB_ID": "9", "CORRAL_JOB": "9", "BASH_FUNC_x%%": "()", "bad-name": "x"}
    text = "#!/bin/bash\n#SBATCH --export={}\nhostname\n"
    assert parse("#!/bin/bash\nhostname\n", shell).ask.envs == {"A": "1", "B": "2"}
    assert parse("#!/bin/bash\nhostname\n").ask.envs == {}
    assert parse(text.format("NONE"), shell).ask.envs == {}
    assert parse(text.format("A,C=3"), shell).ask.envs == {"A": "1", "C": "3"}
    assert parse(text.format("ALL,A=7"), shell).ask.envs == {"A": "7", "B": "2"}


def test_every_option_is_known_once() -> None:
    assert set(SHORT.values()) <= VALUED | FLAGS | OPTIONAL
    assert set(IGNORED) <= VALUED | FLAGS | OPTIONAL
    assert not VALUED & FLAGS
    assert not VALUED & OPTIONAL


# ---- what a script finds when it runs ------------------------------------------------------------------------------


def run(ask: JobAsk, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run a job's process as the shim does."""
    environment = {"PATH": os.environ["PATH"], "CORRAL_JOB": "77", "CORRAL_JOB_NAME": ask.name or ""}
    environment |= {"NNODES": str(ask.num_nodes), "NODE_RANK": "0", "MASTER_ADDR": "10.0.0.1", "CORRAL_NODE": "n0"}
    argv = list(ask.argv) if ask.script is None else ["bash", "-c", ask.script]
    with tempfile.TemporaryDirectory() as task_dir:
        env = {**environment, "CORRAL_TASK_DIR": task_dir, **extra}
        return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=30, check=False)


def lines(ask: JobAsk, **extra: str) -> list[str]:
    ended = run(ask, **extra)
    told = [line for line in ended.stderr.splitlines() if not line.startswith("srun: no effect in corral: ")]
    assert (ended.returncode, told) == (0, [])
    return ended.stdout.splitlines()


def test_a_script_finds_slurms_variables() -> None:
    text = """#!/bin/bash
#SBATCH -N 2 --ntasks-per-node=3 -c 2 --gres=gpu:4 -p gpu --array=3,5
set -eu
echo $SLURM_JOB_ID $SLURM_JOB_NAME $SLURM_NNODES $SLURM_NODEID $SLURM_NTASKS $SLURM_PROCID $SLURM_CPUS_PER_TASK
echo $SLURM_ARRAY_JOB_ID $SLURM_ARRAY_TASK_ID $SLURM_ARRAY_TASK_COUNT $SLURM_ARRAY_TASK_MIN $SLURM_ARRAY_TASK_MAX
echo $SLURM_GPUS_ON_NODE $SLURM_JOB_PARTITION $SLURM_SUBMIT_DIR $SLURMD_NODENAME $LINENO
"""
    assert lines(parse(text).ask, NODE_RANK="1", CORRAL_ARRAY_INDEX="5") == [
        "77 old.sh 2 1 6 3 2",
        "77 5 2 3 5",
        "4 gpu /tmp n0 6",
    ]


def test_a_script_finds_what_a_node_gives_it() -> None:
    text = "#!/bin/bash\n#SBATCH {} --ntasks-per-node=2 -c 3 --mem=2G\n"
    text += "echo $SLURM_MEM_PER_NODE $SLURM_JOB_CPUS_PER_NODE $SLURM_CPUS_ON_NODE\n"
    assert lines(parse(text.format("-N 1")).ask) == ["2048 6 6"]
    assert lines(parse(text.format("-N 2")).ask) == ["2048 6(x2) 6"]
    assert lines(parse("#!/bin/bash\necho ${SLURM_MEM_PER_NODE-none}\n").ask) == ["none"]


def test_a_start_time_is_told_as_having_no_effect() -> None:
    script = parse("#!/bin/bash\n#SBATCH --begin=now+1hour\nhostname\n")
    assert script.ignored == ("line 2: --begin has no effect: the job starts as soon as it can",)


SRUN = """#!/bin/bash
#SBATCH -N 2 --ntasks-per-node=2
srun {} bash -c 'echo $SLURM_PROCID/$SLURM_NTASKS/$SLURM_LOCALID' | sort
"""


@pytest.mark.parametrize(
    "options,first,second",
    [
        ("", ["0/4/0", "1/4/1"], ["2/4/0", "3/4/1"]),
        ("--label -u --", ["0/4/0", "1/4/1"], ["2/4/0", "3/4/1"]),
        ("-n 2", ["0/2/0"], ["1/2/0"]),
        ("-n2 --cpu-bind=none --mpi pmix", ["0/2/0"], ["1/2/0"]),
        ("--ntasks-per-node=1", ["0/2/0"], ["1/2/0"]),
        ("-N 1 -n 1", ["0/1/0"], []),
        ("--nodes=1 --ntasks=2", ["0/2/0", "1/2/1"], []),
    ],
)
def test_srun_starts_the_tasks_of_its_node(options: str, first: list[str], second: list[str]) -> None:
    ask = parse(SRUN.format(options)).ask
    assert lines(ask, NODE_RANK="0") == first
    assert lines(ask, NODE_RANK="1") == second


def test_srun_tells_the_options_that_it_ignores() -> None:
    script = "#!/bin/bash\nsrun -l -n 1 --cpu-bind=none --mpi pmix -w n1 --label echo done -l\n"
    ended = run(parse(script).ask)
    assert ended.stdout == "done -l\n"
    assert ended.stderr == "srun: no effect in corral: -l --cpu-bind=none --mpi pmix -w n1 --label\n"
    assert run(parse("#!/bin/bash\nsrun -n 1 -N1 --ntasks-per-node=1 true\n").ask).stderr == ""


@pytest.mark.parametrize(
    "text",
    [
        "#!/bin/bash\ntimeout 20 srun -n 2 echo hi\n",
        "#!/bin/bash\nset -eu\nexport X=1\nenv srun -n 2 echo hi\n",
        "#!/usr/bin/env python3\nimport subprocess\nsubprocess.run(['srun', '-n', '2', 'echo', 'hi'], check=True)\n",
    ],
    ids=["timeout", "env", "python"],
)
def test_srun_is_a_program_that_others_can_start(text: str, tmp_path: Path) -> None:
    assert lines(parse(text).ask, CORRAL_TASK_DIR=str(tmp_path)) == ["hi", "hi"]
    assert sorted(path.name for path in (tmp_path / "slurm").iterdir()) == ["scontrol", "srun"]


def test_a_terminated_srun_takes_its_tasks_with_it(tmp_path: Path) -> None:
    task = "trap 'echo end; exit' TERM; echo up; while :; do sleep 0.02; done"
    text = f"#!/bin/bash\n: > log\nsrun -n 2 bash -c {shlex.quote(task)} >> log &\n"
    text += "until [ $(grep -c up log) = 2 ]; do sleep 0.02; done\nkill $!; wait $!; echo $?; grep -c end log\n"
    assert lines(parse(f"{text}".replace("log", str(tmp_path / "log"))).ask) == ["143", "2"]


def test_srun_gives_back_the_code_of_a_task_that_fails() -> None:
    assert run(parse("#!/bin/bash\n#SBATCH -n 3\nsrun bash -c 'exit $SLURM_PROCID'\n").ask).returncode == 2
    assert run(parse("#!/bin/bash\nset -e\nsrun false\necho no\n").ask).stdout == ""
    assert "there is no command" in run(parse("#!/bin/bash\nsrun -n 2\n").ask).stderr


def test_the_usual_ways_to_find_the_first_node_work_on_every_node() -> None:
    text = """#!/bin/bash
#SBATCH -N 2
nodes=( $( scontrol show hostnames $SLURM_JOB_NODELIST ) )
head_node_ip=$(srun --nodes=1 --ntasks=1 -w "${nodes[0]}" hostname --ip-address)
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
echo $head_node_ip $MASTER_ADDR
"""
    for rank in ("0", "1"):
        assert lines(parse(text).ask, NODE_RANK=rank) == ["10.0.0.1 10.0.0.1"]
    ended = run(parse("#!/bin/bash\nscontrol show job 1\n").ask)
    assert (ended.returncode, "corral knows" in ended.stderr) == (1, True)


def test_a_shell_keeps_its_options_and_other_interpreters_get_their_text() -> None:
    assert lines(parse("#!/bin/bash -eu\nfalse || true\necho $-\n").ask)[0].count("u") == 1
    assert run(parse("#!/bin/bash -e\nfalse\necho no\n").ask).stdout == ""
    python = parse(
        "#!/usr/bin/env python3\n#SBATCH -n 2\nimport os, sys\nprint(os.environ['SLURM_NTASKS'])\nsys.exit(4)\n"
    )
    ended = run(python.ask)
    assert (ended.stdout, ended.returncode) == ("2\n", 4)
    failing = run(parse("#!/usr/bin/env -S python3 -u\n\n1/0\n").ask)
    assert "line 3" in failing.stderr
