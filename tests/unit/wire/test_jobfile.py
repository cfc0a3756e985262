"""Job files: what they say, and every mistake with its place, code, field and the nearest right name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.model.ask import AfterAsk, JobAsk
from corral.model.errors import CorralError, Refusal, by_code
from corral.model.job import CheckpointSpec, DependencyKind, Fencing
from corral.wire.jobfile import load_any, load_job_file, parse_job_text
from corral.wire.request import FIELDS


def read(text: str, base: Path | None = None) -> list[JobAsk]:
    return parse_job_text(text, source="job.yaml", base=str(base) if base else None)


def refusals(text: str, base: Path | None = None) -> list[Refusal]:
    with pytest.raises(CorralError) as caught:
        read(text, base)
    return [caught.value.refusal, *caught.value.also]


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


@pytest.mark.parametrize(
    "text,code,where,field,hint",
    [
        ("runn: x\nrun: x", "UNKNOWN_FIELD", "1:1", "runn", "did you mean run?"),
        ("run: x\nresources:\n  accelerator: 1", "UNKNOWN_FIELD", "3:3", "resources.accelerator", "accelerators?"),
        ("run: x\ngpus: 1", "UNKNOWN_FIELD", "2:1", "gpus", "resources.accelerators"),
        ("run: x\nMax-Duration: 1", "UNKNOWN_FIELD", "2:1", "Max-Duration", "max_duration"),
        ("run: x\ntimeout: 1", "UNKNOWN_FIELD", "2:1", "timeout", "max_duration"),
        ("run: x\nqwzx: 1", "UNKNOWN_FIELD", "2:1", "qwzx", "known here"),
        ("run: x\n<<: {run: x}", "UNKNOWN_FIELD", "2:1", "<<", "merge keys"),
        ("name: a", "MISSING_FIELD", "1:1", "run", "say what to run"),
        ("run:", "MISSING_FIELD", "1:5", "run", "say what to run"),
        ("run: ''", "MISSING_FIELD", "1:6", "run", "say what to run"),
        ("run: []", "MISSING_FIELD", "1:6", "run", "say what to run"),
        ("run: ['']", "MISSING_FIELD", "1:6", "run", "say what to run"),
        ("run: 5", "INVALID_FIELD", "1:6", "run", "quotes"),
        ("run: {a: b}", "INVALID_FIELD", "1:6", "run", None),
        ("run: [[a]]", "INVALID_FIELD", "1:7", "run[0]", None),
        ("- run: x", "INVALID_FIELD", "1:1", None, None),
        ("just text", "INVALID_FIELD", "1:1", None, None),
        ("run: x\nrun: y", "DUPLICATE_NAME", "2:1", "run", None),
        ("run: x\nenvs: {A: 1, A: 2}", "DUPLICATE_NAME", "2:14", "envs.A", None),
        ("run: x\nname: 12", "INVALID_FIELD", "2:7", "name", "letter"),
        ("run: x\nname: '12.3'", "INVALID_FIELD", "2:7", "name", "letter"),
        ("run: x\nname: a b", "INVALID_FIELD", "2:7", "name", "blanks"),
        ("run: x\nname: a/b", "INVALID_FIELD", "2:7", "name", "blanks"),
        ("run: x\nname: true", "INVALID_FIELD", "2:7", "name", "quotes"),
        ("run: x\ntenant: [a]", "INVALID_FIELD", "2:9", "tenant", None),
        ("run: x\nnum_nodes: 0", "INVALID_FIELD", "2:12", "num_nodes", None),
        ("run: x\nnum_nodes: -3", "INVALID_FIELD", "2:12", "num_nodes", None),
        ("run: x\nnum_nodes: 1.5", "INVALID_FIELD", "2:12", "num_nodes", None),
        ("run: x\nnum_nodes: 99999999999999999999", "INVALID_FIELD", "2:12", "num_nodes", None),
        ("run: x\nnum_nodes: two", "INVALID_FIELD", "2:12", "num_nodes", None),
        ("run: x\nnum_nodes: .nan", "INVALID_FIELD", "2:12", "num_nodes", None),
        ("run: x\nresources: 8", "INVALID_FIELD", "2:12", "resources", None),
        ("run: x\nresources: {accelerators: -1}", "INVALID_FIELD", "2:27", "resources.accelerators", None),
        ("run: x\nresources: {accelerators: 1.5}", "INVALID_FIELD", "2:27", "resources.accelerators", None),
        (
            "run: x\nresources: {accelerators: {A: 1, B: 1}}",
            "INVALID_FIELD",
            "2:27",
            "resources.accelerators",
            "H100: 8",
        ),
        ("run: x\nresources: {accelerators: []}", "INVALID_FIELD", "2:27", "resources.accelerators", None),
        ("run: x\nresources: {cpus: 4+}", "INVALID_FIELD", "2:19", "resources.cpus", "write 4"),
        ("run: x\nresources: {cpus: true}", "INVALID_FIELD", "2:19", "resources.cpus", None),
        ("run: x\nresources: {memory: lots}", "INVALID_FIELD", "2:21", "resources.memory", "32GB"),
        ("run: x\nenvs: [A]", "INVALID_FIELD", "2:7", "envs", None),
        ("run: x\nenvs: {A: }", "INVALID_FIELD", "2:11", "envs.A", 'A: ""'),
        ("run: x\nenvs: {1A: x}", "INVALID_FIELD", "2:8", "envs.1A", None),
        ("run: x\nenvs: {CORRAL_JOB: x}", "INVALID_FIELD", "2:8", "envs.CORRAL_JOB", None),
        ("run: x\nenvs: {A: [1]}", "INVALID_FIELD", "2:11", "envs.A", None),
        ("run: x\nenvs: {[1]: x}", "INVALID_FIELD", "2:8", "envs", None),
        ("run: x\nworkdir: /no/such/place", "PATH_NOT_FOUND", "2:10", "workdir", None),
        ("run: x\nworkdir: /etc/passwd", "PATH_NOT_FOUND", "2:10", "workdir", None),
        ("run: x\nworkdir: s3://bucket", "INVALID_FIELD", "2:10", "workdir", "setup"),
        ('run: x\nworkdir: "a\\0b"', "PATH_UNSAFE", "2:10", "workdir", None),
        ("run: x\nfile_mounts: {a: /no/such/file}", "PATH_NOT_FOUND", "2:18", "file_mounts.a", None),
        ("run: x\nfile_mounts: {/etc/passwd: /tmp}", "PATH_UNSAFE", "2:15", "file_mounts./etc/passwd", None),
        ("run: x\nfile_mounts: {a/../../b: /tmp}", "PATH_UNSAFE", "2:15", "file_mounts.a/../../b", None),
        ("run: x\nfile_mounts: {..: /tmp}", "PATH_UNSAFE", "2:15", "file_mounts...", None),
        ("run: x\nfile_mounts: {.: /tmp}", "PATH_UNSAFE", "2:15", "file_mounts..", None),
        ('run: x\nfile_mounts: {"a\\tb": /tmp}', "PATH_UNSAFE", "2:15", "file_mounts.a\\x09b", None),
        ("run: x\nfile_mounts: {~/a: /tmp}", "PATH_UNSAFE", "2:15", "file_mounts.~/a", None),
        ("run: x\nfile_mounts: {a: /tmp, ./a: /tmp}", "DUPLICATE_NAME", "2:24", "file_mounts../a", None),
        ("run: x\nfile_mounts: {a: /tmp, a/b: /tmp}", "PATH_UNSAFE", "2:14", "file_mounts.a/b", None),
        ("run: x\narray: 5-1", "INVALID_FIELD", "2:8", "array", "smaller"),
        ("run: x\narray: 0-3%2", "INVALID_FIELD", "2:8", "array", "leave out"),
        ("run: x\narray: []", "INVALID_FIELD", "2:8", "array", None),
        ("run: x\narray: [1, 1]", "INVALID_FIELD", "2:8", "array", None),
        ("run: x\narray: [1, b]", "INVALID_FIELD", "2:12", "array[1]", None),
        ("run: x\narray: 0", "INVALID_FIELD", "2:8", "array", None),
        ("run: x\narray: 20000", "INVALID_FIELD", "2:8", "array", None),
        ("run: x\narray: 0-20000", "INVALID_FIELD", "2:8", "array", None),
        ("run: x\nsweep: {A: []}", "INVALID_FIELD", "2:12", "sweep.A", None),
        ("run: x\nsweep: {}", "INVALID_FIELD", "2:8", "sweep", None),
        ("run: x\nsweep: 3", "INVALID_FIELD", "2:8", "sweep", None),
        ("run: x\nsweep: {A: [{b: 1}]}", "INVALID_FIELD", "2:13", "sweep.A[0]", None),
        ("run: x\nsweep: {1: [1]}", "INVALID_FIELD", "2:9", "sweep.1", None),
        ("run: x\narray: 3\nsweep: {A: [1, 2]}", "INVALID_FIELD", "2:8", "array", "leave array out"),
        ("run: x\nenvs: {A: 1}\nsweep: {A: [1, 2]}", "DUPLICATE_NAME", "2:7", "envs.A", None),
        ("run: x\nmax_duration: 1:30", "INVALID_FIELD", "2:15", "max_duration", "1h30m"),
        ("run: x\nmax_duration: soon", "INVALID_FIELD", "2:15", "max_duration", "2h30m"),
        ("run: x\nmax_duration: 0", "INVALID_FIELD", "2:15", "max_duration", None),
        ("run: x\nmax_duration: -5", "INVALID_FIELD", "2:15", "max_duration", None),
        ("run: x\nmax_duration: .inf", "INVALID_FIELD", "2:15", "max_duration", None),
        ("run: x\ngrace: 2d", "INVALID_FIELD", "2:8", "grace", None),
        ("run: x\nmax_restarts: -1", "INVALID_FIELD", "2:15", "max_restarts", None),
        ("run: x\npriority: high", "INVALID_FIELD", "2:11", "priority", None),
        ("run: x\nafter: [a, a]", "DUPLICATE_NAME", "2:12", "after[1]", None),
        ("run: x\nafter: {a: done}", "INVALID_FIELD", "2:12", "after.a", None),
        ("run: x\nafter: {a: suceeded}", "INVALID_FIELD", "2:12", "after.a", "succeeded?"),
        ("run: x\nafter: -3", "INVALID_FIELD", "2:8", "after", None),
        ("run: x\nafter: a b", "INVALID_FIELD", "2:8", "after", None),
        ("run: x\nname: a\nafter: a", "DEPENDENCY_CYCLE", "3:8", "after", None),
        ("run: x\nfencing: exclusiv", "INVALID_FIELD", "2:10", "fencing", "exclusive?"),
        ("run: x\nlease: 1s", "INVALID_FIELD", "2:8", "lease", None),
        ("run: x\ncheckpoint: USR1", "INVALID_FIELD", "2:13", "checkpoint", None),
        ("run: x\ncheckpoint: {signal: KILL}", "INVALID_FIELD", "2:22", "checkpoint.signal", None),
        ("run: x\ncheckpoint: {signal: USR3}", "INVALID_FIELD", "2:22", "checkpoint.signal", "USR"),
        ("run: x\ncheckpoint: {gracee: 1}", "UNKNOWN_FIELD", "2:14", "checkpoint.gracee", "grace?"),
        ("run: !!python/object:os.system x", "INVALID_FIELD", "1:6", None, "leave it out"),
    ],
)
def test_a_mistake_has_code_place_field_and_a_way_out(
    text: str, code: str, where: str, field: str | None, hint: str | None
) -> None:
    (refusal,) = refusals(text)
    assert (refusal.code, refusal.where, refusal.field) == (code, f"job.yaml:{where}", field)
    assert hint is None or (refusal.hint is not None and hint in refusal.hint)
    assert refusal.message
    assert "\n" not in refusal.line()
    assert refusal.code in by_code()


def test_every_mistake_is_told_in_the_order_of_the_text() -> None:
    found = refusals("nam: a\nrun: x\nresources:\n  cpus: -1\nafter: {a: when}\n---\nrun: x\ngrace: soon\n")
    assert [refusal.where for refusal in found] == ["job.yaml:1:1", "job.yaml:4:9", "job.yaml:5:12", "job.yaml:8:8"]


def test_a_script_is_not_longer_than_a_process_may_be_given() -> None:
    (refusal,) = refusals("run: " + "x" * 120_001)
    assert (refusal.code, refusal.field) == ("INVALID_FIELD", "run")
    assert read("run: " + "x" * 120_000)


def test_two_jobs_of_a_file_have_two_names() -> None:
    (refusal,) = refusals("name: a\nrun: x\n---\nname: a\nrun: y\n")
    assert (refusal.code, refusal.where, refusal.field) == ("DUPLICATE_NAME", "job.yaml:4:7", "name")


def test_a_circle_of_dependencies_is_named() -> None:
    (refusal,) = refusals(
        "name: a\nrun: x\nafter: [b]\n---\nname: b\nrun: x\nafter: {c: ended}\n---\nname: c\nrun: x\nafter: [d, a]\n"
        "---\nname: d\nrun: x\n"
    )
    assert (refusal.code, refusal.where) == ("DEPENDENCY_CYCLE", "job.yaml:11:8")
    assert "a -> b -> c -> a" in refusal.message


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
        load_job_file(path)
    assert caught.value.code == "JOB_FILE_UNREADABLE"
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("text", ["", "\n", "# nothing\n", "---\n---\n", "~"])
def test_a_file_without_a_job_says_so(text: str) -> None:
    (refusal,) = refusals(text)
    assert (refusal.code, refusal.message) == ("MISSING_FIELD", "holds no job")


def test_a_file_that_is_not_there_or_a_directory_is_unreadable(tmp_path: Path) -> None:
    for path in (tmp_path / "none.yaml", tmp_path, tmp_path / ("n" * 300)):
        with pytest.raises(CorralError) as caught:
            load_job_file(path)
        assert caught.value.code == "JOB_FILE_UNREADABLE"
    with pytest.raises(CorralError, match="NUL"):
        load_job_file("a\0b")


def test_relative_paths_stand_on_the_directory_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jobs" / "src").mkdir(parents=True)
    path = tmp_path / "jobs" / "job.yaml"
    path.write_text("run: x\nworkdir: ./src/..\nfile_mounts: {code: src}\n")
    monkeypatch.chdir(tmp_path)
    (ask,) = load_job_file("jobs/job.yaml")
    assert (ask.workdir, ask.file_mounts) == (str(path.parent), {"code": str(path.parent / "src")})


def test_a_path_may_begin_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read("run: x\nworkdir: '~'", Path("/"))[0].workdir == str(tmp_path)


def test_without_a_base_relative_paths_are_refused_and_nothing_is_looked_up() -> None:
    (refusal,) = refusals("run: x\nworkdir: src")
    assert (refusal.code, refusal.message) == ("INVALID_FIELD", '"src" must be an absolute path')
    assert parse_job_text("run: x\nworkdir: /no/such/place", check_paths=False)[0].workdir == "/no/such/place"


def test_a_message_shows_no_control_characters_of_the_file() -> None:
    (refusal,) = refusals('run: x\n"\\e[31mred\\a\\n": 1')
    assert "\x1b" not in refusal.line()
    assert refusal.field == "\\x1b[31mred\\x07\\x0a"


def test_a_byte_order_mark_is_no_part_of_the_first_field() -> None:
    assert parse_job_text(b"\xef\xbb\xbfrun: x\n") == [JobAsk(script="x")]


def test_any_job_file_is_a_yaml_file_or_a_batch_script(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("run: x\n")
    (tmp_path / "b.sh").write_text("#!/bin/sh\n#SBATCH --mail-type=END\necho hi\n")
    assert load_any(tmp_path / "a.yaml") == ([JobAsk(script="x")], ())
    asks, ignored = load_any(os.fspath(tmp_path / "b.sh"))
    assert [ask.name for ask in asks] == ["b.sh"]
    assert len(ignored) == 1


# ---- whatever stands in a file, the answer is jobs or an error of the tree ------------------------------------------

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12)
values = st.recursive(
    scalars | st.sampled_from(["H100:8", "0-3", "2h", "ended", "1:30", "a/../b", "/", "~", "x" * 200, "\0", "\ud800"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
documents = st.dictionaries(st.sampled_from(sorted(FIELDS)) | st.text(max_size=8), values, max_size=8)


def told(read: Callable[[], object]) -> list[Refusal]:
    """Return the refusals of a reading; any other exception is a failure of the test."""
    try:
        read()
    except CorralError as error:
        return [error.refusal, *error.also]
    return []


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for refusal in told(lambda: parse_job_text(data)):
        assert refusal.code in by_code()
        assert "\n" not in refusal.line()


@given(st.lists(documents, min_size=1, max_size=3))
def test_any_documents_are_read_or_refused(found: list[dict[str, object]]) -> None:
    from corral.wire.document import Checked, Problems, node_of
    from corral.wire.request import asks_of_nodes

    roots = [node_of(document) for document in found]
    for refusal in told(lambda: asks_of_nodes(roots, Problems(Checked("x", "/tmp", on_disk=True)))):
        assert refusal.code in by_code()
        assert refusal.line().isprintable()


def test_of_very_many_mistakes_the_first_twenty_are_told() -> None:
    found = refusals("\n---\n".join(f"nam{i}: x\ngrace: soon" for i in range(30)))
    assert len(found) == 20
    assert found[0].where == "job.yaml:1:1"
