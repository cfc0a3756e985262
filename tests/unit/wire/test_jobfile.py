"""Job files: what they say, in all their forms."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from corral.model.ask import AfterAsk, JobAsk
from corral.model.errors import CorralError
from corral.model.job import CheckpointSpec, DependencyKind, Fencing
from corral.wire.jobfile import load_any, parse_job_text
from tests.unit.wire.reading import read, refusals


def test_every_field_is_read(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "data.csv").touch()
    text = """\
name: train
tenant: vision
queue: night
resources:
  accelerators: H100:8
  cpus: 16
  memory: 64GiB
num_nodes: 2
setup: pip install .
run: |
  python train.py
envs: {LR: 0.010, DEBUG: no, MODE: 010, EMPTY: ""}
workdir: src
file_mounts:
  inputs/data.csv: data.csv
array: 0-3
max_duration: 2h30m
grace: 30s
max_restarts: 3
priority: -5
after: {prepare: ended, 12: succeeded}
data: [shard-1, shard-2]
fencing: none
lease: 5m
checkpoint: {signal: SIGUSR1, grace: 2m, path: ck}
"""
    assert read(text, tmp_path) == [
        JobAsk(
            name="train",
            tenant="vision",
            queue="night",
            script="python train.py\n",
            setup="pip install .",
            gpu_milli=8000,
            gpu_model="H100",
            cpus_milli=16_000,
            memory_mib=65_536,
            num_nodes=2,
            envs={"LR": "0.010", "DEBUG": "no", "MODE": "010", "EMPTY": ""},
            workdir=str(tmp_path / "src"),
            file_mounts={"inputs/data.csv": str(tmp_path / "data.csv")},
            indices=(0, 1, 2, 3),
            max_duration_s=9_000.0,
            grace_s=30.0,
            max_restarts=3,
            priority=-5,
            after=(AfterAsk("prepare", DependencyKind.ENDED), AfterAsk("12")),
            data=("shard-1", "shard-2"),
            fencing=Fencing.NONE,
            lease_s=300.0,
            checkpoint=CheckpointSpec("USR1", 120.0, "ck"),
        )
    ]


def test_what_is_not_said_is_left_to_the_pool() -> None:
    assert read("run: [sleep, 10, true]") == [JobAsk(argv=("sleep", "10", "true"))]


def test_a_null_field_is_not_said() -> None:
    assert read("run: 'true'\nname:\nresources:\nafter: ~\n") == [JobAsk(script="true")]


@pytest.mark.parametrize(
    "text,milli,model",
    [
        ("H100:8", 8000, "H100"),
        ("{H100: 8}", 8000, "H100"),
        ("'8'", 8000, None),
        ("8", 8000, None),
        ("H100:0.5", 500, "H100"),
        ("0.25", 250, None),
        ("{A100: 0.5}", 500, "A100"),
        ("H100", 1000, "H100"),
    ],
)
def test_accelerators_in_all_their_forms(text: str, milli: int, model: str | None) -> None:
    (ask,) = read(f"run: x\nresources: {{accelerators: {text}}}")
    assert (ask.gpu_milli, ask.gpu_model) == (milli, model)


@pytest.mark.parametrize(
    "text,indices",
    [
        ("24", tuple(range(24))),
        ("'3'", (0, 1, 2)),
        ("0-3", (0, 1, 2, 3)),
        ("0-23:8", (0, 8, 16)),
        ("[5, 1, 7]", (5, 1, 7)),
        ("1,3", (1, 3)),
    ],
)
def test_arrays_in_all_their_forms(text: str, indices: tuple[int, ...]) -> None:
    assert read(f"run: x\narray: {text}")[0].indices == indices


def test_a_sweep_runs_all_combinations_in_order() -> None:
    (ask,) = read("run: x\nsweep: {C: [0.10, 1], GAMMA: [a, b]}")
    assert ask.points == (
        {"C": "0.10", "GAMMA": "a"},
        {"C": "0.10", "GAMMA": "b"},
        {"C": "1", "GAMMA": "a"},
        {"C": "1", "GAMMA": "b"},
    )
    assert ask.indices == (0, 1, 2, 3)


def test_a_sweep_may_list_its_points_and_name_their_indices() -> None:
    (ask,) = read("run: x\narray: [7, 9]\nsweep: [{C: 1}, {C: 2, D: 3}]")
    assert (ask.indices, ask.points) == ((7, 9), ({"C": "1"}, {"C": "2", "D": "3"}))


@pytest.mark.parametrize(
    "text,expected",
    [
        ("prepare", [AfterAsk("prepare")]),
        ("12", [AfterAsk("12")]),
        ("[a, 12, {b: failed}]", [AfterAsk("a"), AfterAsk("12"), AfterAsk("b", DependencyKind.FAILED)]),
        ("{a: Ended}", [AfterAsk("a", DependencyKind.ENDED)]),
    ],
)
def test_dependencies_in_all_their_forms(text: str, expected: list[AfterAsk]) -> None:
    assert list(read(f"run: x\nafter: {text}")[0].after) == expected


def test_several_documents_are_several_jobs() -> None:
    asks = read("---\nname: a\nrun: x\n---\n# nothing\n---\nname: b\nrun: y\nafter: a\n")
    assert [ask.name for ask in asks] == ["a", "b"]


def test_a_long_chain_of_dependencies_is_no_circle() -> None:
    text = "---\n".join(f"name: j{i}\nrun: x\n" + (f"after: j{i - 1}\n" if i else "") for i in range(900))
    assert len(read(text)) == 900


@pytest.mark.parametrize(
    "data,message",
    [
        (b"run: x\n\0\n", "binary"),
        (bytes(range(256)), "binary"),
        (b"\x89PNG\r\n\x1a\n\xff\xfe", "UTF-8"),
        (b"run: \xff\n", "UTF-8"),
        (b"x" * (1024 * 1024 + 1), "larger than 1 MiB"),
        (b"run: [", "not YAML"),
    ],
)
def test_what_is_no_text_or_too_large_is_unreadable(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(data)
    with pytest.raises(CorralError, match=message) as caught:
        load_any(path)
    assert caught.value.code == "JOB_FILE_UNREADABLE"
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("text", ["", "\n", "# nothing\n", "---\n---\n", "~"])
def test_a_file_without_a_job_says_so(text: str) -> None:
    (refusal,) = refusals(text)
    assert (refusal.code, refusal.message) == ("MISSING_FIELD", "holds no job")


def test_a_file_that_is_not_there_or_a_directory_is_unreadable(tmp_path: Path) -> None:
    for path in (tmp_path / "none.yaml", tmp_path, tmp_path / ("n" * 300)):
        with pytest.raises(CorralError) as caught:
            load_any(path)
        assert caught.value.code == "JOB_FILE_UNREADABLE"
    with pytest.raises(CorralError, match="NUL"):
        load_any("a\0b")


def test_relative_paths_stand_on_the_directory_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jobs" / "src").mkdir(parents=True)
    path = tmp_path / "jobs" / "job.yaml"
    path.write_text("run: x\nworkdir: ./src/..\nfile_mounts: {code: src}\n")
    monkeypatch.chdir(tmp_path)
    ((ask,), _) = load_any("jobs/job.yaml")
    assert (ask.workdir, ask.file_mounts) == (str(path.parent), {"code": str(path.parent / "src")})


def test_a_path_may_begin_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read("run: x\nworkdir: '~'", Path("/"))[0].workdir == str(tmp_path)


def test_without_a_base_relative_paths_are_refused_and_nothing_is_looked_up() -> None:
    (refusal,) = refusals("run: x\nworkdir: src")
    assert (refusal.code, refusal.message) == ("INVALID_FIELD", '"src" must be an absolute path')
    assert parse_job_text("run: x\nworkdir: /no/such/place", check_paths=False)[0].workdir == "/no/such/place"


def test_a_byte_order_mark_is_no_part_of_the_first_field() -> None:
    assert parse_job_text(b"\xef\xbb\xbfrun: x\n") == [JobAsk(script="x")]


def test_any_job_file_is_a_yaml_file_or_a_batch_script(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("run: x\n")
    (tmp_path / "b.sh").write_text("#!/bin/sh\n#SBATCH --mail-type=END\necho hi\n")
    assert load_any(tmp_path / "a.yaml") == ([JobAsk(script="x")], ())
    asks, ignored = load_any(os.fspath(tmp_path / "b.sh"))
    assert [ask.name for ask in asks] == ["b.sh"]
    assert len(ignored) == 1
