"""Mistakes in job files: each with its place, code, field and the nearest right name."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.model.errors import CorralError, Refusal, by_code
from corral.wire.document import Checked, Problems, node_of
from corral.wire.jobfile import parse_job_text
from corral.wire.request import FIELDS, asks_of_json, asks_of_nodes
from tests.unit.wire.reading import read, refusals


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


def test_a_message_shows_no_control_characters_of_the_file() -> None:
    (refusal,) = refusals('run: x\n"\\e[31mred\\a\\n": 1')
    assert "\x1b" not in refusal.line()
    assert refusal.field == "\\x1b[31mred\\x07\\x0a"


def test_of_very_many_mistakes_the_first_twenty_are_told() -> None:
    found = refusals("\n---\n".join(f"nam{i}: x\ngrace: soon" for i in range(30)))
    assert len(found) == 20
    assert found[0].where == "job.yaml:1:1"


# ---- whatever stands in a file, the answer is jobs or an error of the tree ------------------------------------------


def test_no_nearest_name_is_sought_for_what_is_not_told() -> None:
    problems = Problems(Checked())
    problems.fields(node_of({f"runn{i}": 1 for i in range(19)}), "", FIELDS)
    assert problems.nearest("runn", FIELDS) == "run"
    problems.fields(node_of({"runn": 1}), "", FIELDS)
    assert problems.nearest("runn", FIELDS) is None
    problems.fields(node_of({f"runn{i}": 1 for i in range(100)}), "", FIELDS)
    assert (problems.count, len(problems.found)) == (120, 20)


def test_a_sweep_is_not_larger_written_out_than_a_request_may_be() -> None:
    axis = [f"{i:02}" + "x" * 998 for i in range(64)]
    body = json.dumps({"jobs": [{"run": "x", "sweep": {"A": axis, "B": axis}}]}).encode()
    tracemalloc.start()
    (refusal,) = told(lambda: asks_of_json(body))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (refusal.code, refusal.field) == ("INVALID_FIELD", "jobs[0].sweep")
    assert "8,192,000 characters" in refusal.message  # 64 x 64 points of 2 x 1,000 characters
    assert peak < 4_000_000


def test_the_elements_of_one_submission_are_counted_together() -> None:
    def jobs(count: int) -> bytes:
        return json.dumps({"jobs": [{"run": "x", "array": 10_000}] * count}).encode()

    assert len(asks_of_json(jobs(10))) == 10
    (refusal,) = told(lambda: asks_of_json(jobs(11)))
    assert (refusal.code, refusal.field) == ("INVALID_FIELD", "jobs")
    assert "110,000 array elements" in refusal.message


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
    roots = [node_of(document) for document in found]
    for refusal in told(lambda: asks_of_nodes(roots, Problems(Checked("x", "/tmp", on_disk=True)))):
        assert refusal.code in by_code()
        assert refusal.line().isprintable()
