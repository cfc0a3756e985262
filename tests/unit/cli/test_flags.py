"""Flags become a job through the rules of the job file, and are refused in the words of the flags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from corral.cli.flags import ask_of_flags, with_flags
from corral.model.ask import AfterAsk, JobAsk
from corral.model.errors import CorralError
from corral.model.job import DependencyKind


def ask(*program: str, here: str = "/tmp", environment: dict[str, str] | None = None, **flags: Any) -> JobAsk:
    return ask_of_flags(flags, program, environment or {}, here)


def test_every_flag_reaches_the_job() -> None:
    made = ask(
        "python",
        "train.py",
        "--lr",
        "0.1",
        name="train",
        gpus="2",
        gpu_model="H100",
        cpus="500m",
        memory="32GiB",
        nodes="4",
        tenant="red",
        queue="night",
        priority="-3",
        max_duration="2h30m",
        max_restarts="2",
        setup="pip install .",
        after=["12", "ended:13", "failed:prep"],
        env=["A=1", "B=x=y", "C"],
        environment={"C": "from the shell"},
    )
    assert made == JobAsk(
        name="train",
        argv=("python", "train.py", "--lr", "0.1"),
        gpu_milli=2000,
        gpu_model="H100",
        cpus_milli=500,
        memory_mib=32 * 1024,
        num_nodes=4,
        tenant="red",
        queue="night",
        priority=-3,
        max_duration_s=9000.0,
        max_restarts=2,
        setup="pip install .",
        after=(AfterAsk("12"), AfterAsk("13", DependencyKind.ENDED), AfterAsk("prep", DependencyKind.FAILED)),
        envs={"A": "1", "B": "x=y", "C": "from the shell"},
        workdir="/tmp",
    )


def test_gpus_in_their_three_spellings() -> None:
    assert ask("x", gpus="0.5").gpu_milli == 500
    both = ask("x", accelerators="H100:2")
    assert (both.gpu_model, both.gpu_milli) == ("H100", 2000)
    model = ask("x", gpu_model="A100")
    assert (model.gpu_model, model.gpu_milli) == ("A100", 1000)


def test_sizes_of_an_elastic_job() -> None:
    assert ask("x", gpus="2-4").gpu_counts == (2, 3, 4)
    model = ask("x", gpus="2,4,8", gpu_model="H100")
    assert (model.gpu_model, model.gpu_milli, model.gpu_counts) == ("H100", 8_000, (2, 4, 8))
    wide = ask("x", nodes="1-3", gpus="8")
    assert (wide.num_nodes, wide.node_counts, wide.gpu_counts) == (3, (1, 2, 3), ())


def test_a_flag_makes_an_elastic_job_of_a_file_rigid_and_a_rigid_one_elastic() -> None:
    rigid = with_flags([JobAsk(argv=("x",), gpu_milli=4_000, gpu_counts=(1, 4))], {"gpus": "2"}, {}, "/")[0]
    assert (rigid.gpu_milli, rigid.gpu_counts) == (2_000, ())
    rigid = with_flags([JobAsk(argv=("x",), num_nodes=4, node_counts=(1, 4))], {"nodes": "2"}, {}, "/")[0]
    assert (rigid.num_nodes, rigid.node_counts) == (2, ())
    elastic = with_flags([JobAsk(argv=("x",), num_nodes=4)], {"nodes": "1-2"}, {}, "/")[0]
    assert (elastic.num_nodes, elastic.node_counts) == (2, (1, 2))


def test_arrays_and_sweeps() -> None:
    assert ask("x", array="0-6:3").indices == (0, 3, 6)
    swept = ask("x", sweep=["C=1,10", "K=rbf,poly"])
    assert swept.indices == (0, 1, 2, 3)
    assert swept.points == (
        {"C": "1", "K": "rbf"},
        {"C": "1", "K": "poly"},
        {"C": "10", "K": "rbf"},
        {"C": "10", "K": "poly"},
    )


def test_one_argument_with_a_blank_is_a_line_for_the_shell_unless_it_is_a_file(tmp_path: Path) -> None:
    assert ask("echo a | wc -c").script == "echo a | wc -c"
    assert ask("nvidia-smi").argv == ("nvidia-smi",)
    line = "echo " + "x" * 5_000  # longer than the name of a file may be
    assert ask(line).script == line
    program = tmp_path / "my program"
    program.touch()
    assert ask(str(program)).argv == (str(program),)


def test_relative_directories_stand_on_the_current_one(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    assert ask("x", here=str(tmp_path), workdir="src").workdir == str(tmp_path / "src")


@pytest.mark.parametrize(
    "flags,code,line",
    [
        ({"gpus": "two"}, "INVALID_FIELD", '--gpus: "two" is not a number of devices'),
        ({"gpus": "-1"}, "INVALID_FIELD", "--gpus: "),
        ({"gpus": ""}, "INVALID_FIELD", "--gpus: "),
        ({"gpus": "1.5"}, "INVALID_FIELD", "--gpus: "),
        ({"gpus": "9" * 500}, "INVALID_FIELD", "--gpus: "),
        ({"gpus": "4-2"}, "INVALID_FIELD", '--gpus: "4-2" counts backwards or in steps of 0 (write the smaller size'),
        ({"gpus": "0.5-1"}, "INVALID_FIELD", '--gpus: "0.5-1" has a share among its sizes'),
        ({"gpus": "1-2", "nodes": "1-2"}, "INVALID_FIELD", "--nodes: varies, and so does the number of GPUs per node"),
        ({"nodes": "4-1"}, "INVALID_FIELD", "--nodes: "),
        ({"gpu_model": "H 100"}, "INVALID_FIELD", "--gpus: "),
        ({"accelerators": "H100:x"}, "INVALID_FIELD", "--accelerators: "),
        ({"accelerators": "H100:2", "gpus": "2"}, "USAGE", "--accelerators and --gpus say the same thing twice"),
        ({"cpus": "many"}, "INVALID_FIELD", "--cpus: "),
        ({"memory": "32 parsecs"}, "INVALID_FIELD", "--memory: "),
        ({"nodes": "0"}, "INVALID_FIELD", "--nodes: "),
        ({"nodes": "1e9"}, "INVALID_FIELD", "--nodes: "),
        ({"array": "9-0"}, "INVALID_FIELD", "--array: "),
        ({"array": "0-99999999"}, "INVALID_FIELD", "--array: "),
        ({"sweep": ["C"]}, "USAGE", "--sweep: C is not of the form NAME=A,B,C"),
        ({"sweep": ["C=1", "C=2"]}, "USAGE", "--sweep: C is given twice"),
        ({"sweep": ["A-B=1"]}, "INVALID_FIELD", "--sweep A-B: "),
        ({"env": ["UNSET"]}, "USAGE", "--env: UNSET is not set in this shell"),
        ({"env": ["CORRAL_JOB=1"]}, "INVALID_FIELD", "--env CORRAL_JOB: "),
        ({"env": ["=1"]}, "INVALID_FIELD", "--env"),
        ({"after": ["a b"]}, "INVALID_FIELD", "--after "),
        ({"after": ["12", "12"]}, "DUPLICATE_NAME", "--after "),
        ({"workdir": "/does/not/exist"}, "PATH_NOT_FOUND", "--workdir: "),
        ({"workdir": "a\0b"}, "PATH_UNSAFE", "--workdir: "),
        ({"max_duration": "soon"}, "INVALID_FIELD", "--max-duration: "),
        ({"max_restarts": "-1"}, "INVALID_FIELD", "--max-restarts: "),
        ({"priority": "high"}, "INVALID_FIELD", "--priority: "),
        ({"name": "12"}, "INVALID_FIELD", "--name: "),
        ({"queue": "a b"}, "INVALID_FIELD", "--queue: "),
        ({"tenant": "\x1b[2J"}, "INVALID_FIELD", "--tenant: "),
    ],
)
def test_a_wrong_flag_is_named(flags: dict[str, Any], code: str, line: str) -> None:
    with pytest.raises(CorralError) as caught:
        ask("x", **flags)
    assert caught.value.code == code
    assert caught.value.refusal.line().startswith(line)
    assert "\n" not in caught.value.refusal.line()


@pytest.mark.parametrize("program", [(), ("",)])
def test_a_missing_command_is_told(program: tuple[str, ...]) -> None:
    with pytest.raises(CorralError) as caught:
        ask(*program)
    assert caught.value.code == "MISSING_FIELD"


FILE = (
    JobAsk(name="one", script="a", envs={"A": "1", "B": "2"}, gpu_milli=1000, workdir="/srv", priority=1),
    JobAsk(name="two", script="b", num_nodes=2),
)


def test_flags_beside_a_file_replace_what_it_says_and_nothing_else() -> None:
    first, second = with_flags(FILE, {"gpus": "0.5", "env": ["B=3"], "tenant": "red", "priority": "0"}, {}, "/tmp")
    assert first == JobAsk(
        name="one", script="a", envs={"A": "1", "B": "3"}, gpu_milli=500, workdir="/srv", priority=0, tenant="red"
    )
    assert second == JobAsk(name="two", script="b", num_nodes=2, envs={"B": "3"}, gpu_milli=500, tenant="red")


def test_no_flags_change_nothing() -> None:
    assert with_flags(FILE, {"name": None, "env": None, "sweep": []}, {}, "/tmp") == list(FILE)


def test_a_name_for_two_jobs_is_refused() -> None:
    with pytest.raises(CorralError, match="names one job, but the file holds 2"):
        with_flags(FILE, {"name": "x"}, {}, "/tmp")
    assert with_flags(FILE[:1], {"name": "x"}, {}, "/tmp")[0].name == "x"
