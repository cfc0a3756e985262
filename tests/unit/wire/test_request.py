"""Jobs as JSON: what is written reads back, bodies are refused as job files are, Python values are taken as meant."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.model.ask import AfterAsk, JobAsk
from corral.model.errors import CorralError, Refusal, by_code
from corral.model.experience import WorkSpec
from corral.model.files import JobFiles
from corral.model.job import CheckpointSpec, DependencyKind, Fencing
from corral.wire import units
from corral.wire.document import Checked, nearest, shown
from corral.wire.request import FIELDS, GRACE_S_MAX, LEASE_S_MAX, LEASE_S_MIN, ask_of_fields, asks_of_json, document_of

names = st.from_regex(r"[A-Za-z][A-Za-z0-9_.-]{0,20}", fullmatch=True)
texts = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=30)
variables = st.from_regex(r"[A-BD-Z][A-Z0-9_]{0,8}", fullmatch=True)
durations = st.floats(1, 80_000, allow_nan=False).map(lambda s: round(s, 3))

works = st.builds(
    WorkSpec,
    total=st.none() | st.floats(1e-6, 1e12),
    family=st.none() | names,
    throughput=st.dictionaries(st.sampled_from(["V100", "V100:4", "NVIDIA H100 80GB"]), st.floats(1e-6, 1e9)),
)


@st.composite
def asks(draw: st.DrawFn) -> JobAsk:
    as_script = draw(st.booleans())
    points = draw(st.lists(st.dictionaries(variables, texts, min_size=1, max_size=3), max_size=4))
    indices = draw(st.none() | st.lists(st.integers(0, units.INDEX_MAX), min_size=1, max_size=5, unique=True))
    if points:
        indices = draw(st.just(list(range(len(points)))) | st.just([7 * i + 3 for i in range(len(points))]))
    swept = {name for point in points for name in point}
    envs = draw(st.dictionaries(variables, texts, max_size=3))
    sizes = draw(st.just(()) | st.sets(st.integers(1, 500), min_size=2, max_size=32).map(lambda s: tuple(sorted(s))))
    varies = draw(st.sampled_from(["gpus", "nodes"])) if sizes else None
    return JobAsk(
        name=draw(st.none() | names),
        tenant=draw(st.none() | names),
        queue=draw(st.none() | names),
        argv=() if as_script else (draw(texts.filter(bool)), *draw(st.lists(texts, max_size=3))),
        script=draw(texts.filter(lambda text: text.strip())) if as_script else None,
        setup=draw(st.none() | texts),
        gpu_milli=sizes[-1] * 1000
        if varies == "gpus"
        else draw(st.integers(0, 1000) | st.integers(1, 99).map(lambda n: n * 1000)),
        gpu_counts=sizes if varies == "gpus" else (),
        gpu_model=draw(st.none() | st.sampled_from(["H100", "RTX-4090"])),
        cpus_milli=draw(st.none() | st.integers(1, 10**9)),
        memory_mib=draw(st.none() | st.integers(1, units.MEMORY_MIB_MAX)),
        num_nodes=sizes[-1] if varies == "nodes" else draw(st.integers(1, 100_000)),
        node_counts=sizes if varies == "nodes" else (),
        envs={name: value for name, value in envs.items() if name not in swept},
        workdir=draw(st.none() | st.just("/some/where")),
        file_mounts=draw(st.dictionaries(st.sampled_from(["a", "b/c", "d e"]), st.just("/etc/passwd"))),
        indices=tuple(indices) if indices is not None else None,
        points=tuple(points),
        max_duration_s=draw(st.none() | durations),
        grace_s=draw(st.none() | st.floats(0, GRACE_S_MAX).map(lambda s: round(s, 3))),
        max_restarts=draw(st.none() | st.integers(0, 1000)),
        priority=draw(st.integers(-1000, 1000)),
        after=tuple(
            AfterAsk(ref, draw(st.sampled_from(DependencyKind)))
            for ref in draw(st.lists(names | st.integers(1, 999).map(str), max_size=3, unique=True))
        ),
        data=tuple(draw(st.lists(texts, max_size=3))),
        fencing=draw(st.none() | st.sampled_from(Fencing)),
        lease_s=draw(st.none() | st.floats(LEASE_S_MIN, LEASE_S_MAX).map(lambda s: round(s, 3))),
        checkpoint=draw(st.none() | st.builds(CheckpointSpec, st.sampled_from(["USR1", "TERM"]), durations)),
        restart_cost_s=draw(st.none() | durations),
        work=draw(st.none() | works),
        files=draw(st.none() | st.builds(JobFiles, st.just("0a" * 32), st.booleans(), st.just(("data", "a/b")))),
        outputs=tuple(draw(st.lists(st.sampled_from(["out/*.json", "logs/**", "weights.pt"]), max_size=2))),
        appmaster=draw(st.none() | st.sampled_from(["mine:propose", "a.b_2.c:Bidder.propose"])),
        user=draw(st.just("") | names),
    )


@given(asks())
def test_a_written_job_reads_back_exactly(ask: JobAsk) -> None:
    assert asks_of_json(json.dumps({"jobs": [document_of(ask)]}).encode()) == (ask,)


def test_only_what_was_said_is_written() -> None:
    assert document_of(JobAsk(argv=("true",))) == {"run": ["true"]}


def refused(body: bytes) -> list[Refusal]:
    with pytest.raises(CorralError) as caught:
        asks_of_json(body)
    return [caught.value.refusal, *caught.value.also]


@pytest.mark.parametrize(
    "body,code,field",
    [
        (b"", "USAGE", None),
        (b"{", "USAGE", None),
        (b"\xff", "USAGE", None),
        (b'{"jobs": NaN}', "USAGE", None),
        (b"[" * 100_000, "USAGE", None),
        (b"1" * 5_000, "USAGE", None),
        (b"[]", "INVALID_FIELD", None),
        (b"{}", "MISSING_FIELD", "jobs"),
        (b'{"run": "x"}', "UNKNOWN_FIELD", "run"),
        (b'{"jobs": {}}', "INVALID_FIELD", "jobs"),
        (b'{"jobs": []}', "INVALID_FIELD", "jobs"),
        (b'{"jobs": [], "jobs": []}', "DUPLICATE_NAME", "jobs"),
        (b'{"jobs": [1]}', "INVALID_FIELD", "jobs[0]"),
        (b'{"jobs": [{"run": "x"}, {}]}', "MISSING_FIELD", "jobs[1].run"),
        (b'{"jobs": [{"run": "x", "run": "y"}]}', "DUPLICATE_NAME", "jobs[0].run"),
        (b'{"jobs": [{"run": "x", "num_nodes": 1e400}]}', "INVALID_FIELD", "jobs[0].num_nodes"),
        (b'{"jobs": [{"run": "x", "num_nodes": 1' + b"0" * 400 + b"}]}", "INVALID_FIELD", "jobs[0].num_nodes"),
        (b'{"jobs": [{"run": "\\ud800"}]}', "INVALID_FIELD", "jobs[0].run"),
        (b'{"jobs": [{"run": "a\\u0000b"}]}', "INVALID_FIELD", "jobs[0].run"),
        (b'{"jobs": [{"run": "x", "workdir": "rel"}]}', "INVALID_FIELD", "jobs[0].workdir"),
        (
            b'{"jobs": [{"run": "x", "envs": ' + b'{"A":' * 40 + b"1" + b"}" * 40 + b"}]}",
            "INVALID_FIELD",
            "jobs[0].envs.A",
        ),
        (b'{"jobs": [' + b'{"run":"x"},' * 1000 + b'{"run":"x"}]}', "INVALID_FIELD", "jobs"),
    ],
)
def test_a_body_that_is_no_submission_is_refused(body: bytes, code: str, field: str | None) -> None:
    (refusal,) = refused(body)
    assert (refusal.code, refusal.field) == (code, field)
    assert refusal.line().isprintable()


def test_the_user_is_said_over_http_alone() -> None:
    assert asks_of_json(b'{"jobs": [{"run": "x", "user": "me"}]}')[0].user == "me"
    assert "user" not in FIELDS


@given(st.binary(max_size=200) | st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["jobs", "run", "a"]), inner),
).map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_any_body_is_read_or_refused(body: bytes) -> None:
    try:
        asks_of_json(body)
        refusal = None
    except CorralError as error:
        refusal = error.refusal
    assert refusal is None or (refusal.code in by_code() and refusal.line().isprintable())


def test_python_values_are_taken_as_meant(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    ask = ask_of_fields(
        {
            "run": ("python", tmp_path / "x", 0.5),
            "max_duration": timedelta(minutes=2),
            "array": range(3),
            "workdir": tmp_path,
            "resources": {"accelerators": 0.1 + 0.2, "cpus": 1e-3},
        },
        Checked(base="/", on_disk=True),
    )
    assert ask.argv == ("python", str(tmp_path / "x"), "0.5")
    assert (ask.max_duration_s, ask.indices, ask.workdir) == (120.0, (0, 1, 2), str(tmp_path))
    assert (ask.gpu_milli, ask.cpus_milli) == (300, 1)


@pytest.mark.parametrize("value", [{1, 2}, object(), b"x", lambda: None, 1j])
def test_a_value_of_no_use_is_called_by_its_type(value: object) -> None:
    with pytest.raises(CorralError, match=f"a {type(value).__name__}"):
        ask_of_fields({"run": value}, Checked())


def test_a_structure_that_holds_itself_is_refused() -> None:
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(CorralError) as caught:
        ask_of_fields({"run": loop}, Checked())
    assert caught.value.code == "INVALID_FIELD"


def test_fields_are_called_as_the_caller_calls_them() -> None:
    with pytest.raises(CorralError) as caught:
        ask_of_fields({"run": "x", "num_nodes": 0}, Checked(names={"num_nodes": "--nodes"}))
    assert caught.value.refusal.field == "--nodes"


def test_the_nearest_name_forgives_case_and_dashes_and_gives_up_on_strangers() -> None:
    assert nearest("Num-Node", FIELDS) == "num_nodes"
    assert nearest("zzzz", FIELDS) is None


def test_shown_text_is_short_and_printable() -> None:
    assert shown("a\nb") == '"a\\x0ab"'
    assert shown("x" * 100) == '"' + "x" * 57 + '..."'
