"""Devices and sizes: ranges, lists and steps of elastic jobs, and one line for everything that is none."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.model.ask import JobAsk
from corral.model.errors import CorralError
from corral.wire import sizes, units
from corral.wire.document import Checked
from corral.wire.request import ask_of_fields, asks_of_json


@pytest.mark.parametrize(
    "text,expected",
    [
        ("8", (None, 8_000, ())),
        ("H100:8", ("H100", 8_000, ())),
        ("H100", ("H100", 1_000, ())),
        ("H100:0.5", ("H100", 500, ())),
        ("0.001", (None, 1, ())),
        ("0.29", (None, 290, ())),  # 0.29 * 1000 is 290.00000000000006 in binary
        ("0", (None, 0, ())),
        ("RTX-4090:2", ("RTX-4090", 2_000, ())),
        ("4090:2", ("4090", 2_000, ())),
        ("2-4", (None, 4_000, (2, 3, 4))),
        (" 2 - 4 ", (None, 4_000, (2, 3, 4))),
        ("2-8:2", (None, 8_000, (2, 4, 6, 8))),
        ("2-7:2", (None, 6_000, (2, 4, 6))),
        ("8,2,4", (None, 8_000, (2, 4, 8))),
        ("1,4-6", (None, 6_000, (1, 4, 5, 6))),
        ("H100:2-4", ("H100", 4_000, (2, 3, 4))),
        ("H100:4-8:4", ("H100", 8_000, (4, 8))),
        ("RTX-4090:1,2", ("RTX-4090", 2_000, (1, 2))),
        ("4-4", (None, 4_000, ())),
    ],
)
def test_accelerators_are_read_as_model_milli_and_sizes(text: str, expected: sizes.Devices) -> None:
    assert sizes.read_accelerators(text) == expected


@pytest.mark.parametrize(
    "text",
    "|H100:|:8|H100:-1|1.5|H100:1.5|0.0001|H100:8:9|9999999|8-2|2-8:0|0-4|0.5-2|2-|1,|1,,2|2,2|1-1000001|1-33|1-2-3"
    "|H100:4-2|1-99999999999|a b:1".split("|"),
)
def test_what_is_no_accelerator_is_refused(text: str) -> None:
    with pytest.raises(units.Unreadable):
        sizes.read_accelerators(text)


def ask(**fields: object) -> JobAsk:
    return ask_of_fields({"run": "x", **fields}, Checked())


@pytest.mark.parametrize(
    "fields,milli,gpus,nodes",
    [
        ({"num_gpus": "2-4"}, 4_000, (2, 3, 4), ()),
        ({"num_gpus": [4, 2, 8]}, 8_000, (2, 4, 8), ()),
        ({"num_gpus": [4]}, 4_000, (), ()),
        ({"num_gpus": 0.5}, 500, (), ()),
        ({"num_gpus": 2}, 2_000, (), ()),
        ({"resources": {"accelerators": [1, 2]}}, 2_000, (1, 2), ()),
        ({"resources": {"accelerators": {"H100": [2, 4, 8]}}}, 8_000, (2, 4, 8), ()),
        ({"resources": {"accelerators": {"H100": "2-4"}}}, 4_000, (2, 3, 4), ()),
        ({"num_nodes": "1-3"}, 0, (), (1, 2, 3)),
        ({"num_nodes": [4, 1]}, 0, (), (1, 4)),
        ({"num_nodes": [4]}, 0, (), ()),
        ({"num_nodes": "4"}, 0, (), ()),
    ],
)
def test_sizes_of_gpus_and_of_nodes(
    fields: dict[str, object], milli: int, gpus: tuple[int, ...], nodes: tuple[int, ...]
) -> None:
    found = ask(**fields)
    assert (found.gpu_milli, found.gpu_counts, found.node_counts) == (milli, gpus, nodes)
    assert found.num_nodes == (nodes[-1] if nodes else 4 if "num_nodes" in fields else 1)


@pytest.mark.parametrize(
    "fields,field,words",
    [
        ({"num_gpus": "8-2"}, "num_gpus", "counts backwards"),
        ({"num_gpus": "0.5-2"}, "num_gpus", "whole devices"),
        ({"num_gpus": [0.5, 1]}, "num_gpus[0]", "whole devices"),
        ({"num_gpus": [0, 1]}, "num_gpus[0]", "between 1 and"),
        ({"num_gpus": []}, "num_gpus", "names no size"),
        ({"num_gpus": [2, 2]}, "num_gpus", "names a size twice"),
        ({"num_gpus": list(range(1, 40))}, "num_gpus", "39 sizes, more than 32"),
        ({"num_gpus": "1-40"}, "num_gpus", "40 sizes, more than 32"),
        ({"num_gpus": ["two"]}, "num_gpus[0]", "whole number"),
        ({"num_gpus": [True]}, "num_gpus[0]", "whole number"),
        ({"num_gpus": float("nan")}, "num_gpus", "is not a number of devices"),
        ({"num_gpus": [float("inf"), 2]}, "num_gpus[0]", "whole number"),
        ({"num_nodes": [1, float("nan")]}, "num_nodes[1]", "whole number"),
        ({"num_gpus": {"H100": 2}}, "num_gpus", "must be a number or text"),
        ({"resources": {"accelerators": {"H100": ["x"]}}}, "resources.accelerators.H100[0]", "whole number"),
        ({"resources": {"accelerators": {"H100": 1, "A100": 1}}}, "resources.accelerators", "must name one model"),
        ({"resources": {"num_gpus": 2}}, "resources.num_gpus", "unknown field"),
        ({"num_gpus": 2, "resources": {"accelerators": 2}}, "num_gpus", "says the same as resources.accelerators"),
        ({"num_gpus": "1-2", "num_nodes": "1-2"}, "num_nodes", "so does the number of GPUs per node"),
        ({"num_nodes": "4-1"}, "num_nodes", "counts backwards"),
        ({"num_nodes": "1.5-2"}, "num_nodes", "share"),
        ({"num_nodes": [0, 1]}, "num_nodes[0]", "between 1 and"),
        ({"num_nodes": "1-200000:10000"}, "num_nodes", "not between 1 and 100,000"),
        ({"num_nodes": {"a": 1}}, "num_nodes", "whole number"),
    ],
)
def test_sizes_that_are_none_are_refused_in_one_line(fields: dict[str, object], field: str, words: str) -> None:
    with pytest.raises(CorralError, match=words) as caught:
        ask(**fields)
    assert caught.value.refusal.field == field
    assert caught.value.also == ()
    assert caught.value.refusal.line().isprintable()


def test_no_number_is_taken_for_a_huge_list_before_it_is_refused() -> None:
    body = json.dumps({"jobs": [{"run": "x", "num_gpus": "1-9999999999"}]}).encode()
    with pytest.raises(CorralError, match="more than 32"):
        asks_of_json(body)


@given(
    st.none() | st.sampled_from(["H100", "4090"]),
    st.sets(st.integers(1, 10_000), min_size=1, max_size=32).map(lambda found: tuple(sorted(found))),
)
def test_written_sizes_read_back(model: str | None, wanted: tuple[int, ...]) -> None:
    several = wanted if len(wanted) > 1 else ()
    written = sizes.written_accelerators(model, wanted[-1] * 1000, several)
    found = ask(resources={"accelerators": written}, num_nodes=1)
    assert (found.gpu_model, found.gpu_milli, found.gpu_counts) == (model, wanted[-1] * 1000, several)


@given(st.none() | st.sampled_from(["H100", "4090"]), st.integers(0, 1000) | st.integers(1, 99).map(lambda n: n * 1000))
def test_written_accelerators_read_back(model: str | None, milli: int) -> None:
    written = sizes.written_accelerators(model, milli)
    assert isinstance(written, str)
    assert sizes.read_accelerators(written) == (model, milli, ())


@given(st.text() | st.from_regex(r"[0-9., :-]{1,12}", fullmatch=True))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(units.Unreadable):
        sizes.read_accelerators(text)
