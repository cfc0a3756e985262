"""YAML to nodes: places, YAML 1.2's scalars, and texts that are refused as a whole."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.model.errors import CorralError, JobFileUnreadable
from corral.wire.document import Checked, Node, Problems
from corral.wire.yamltext import yaml_nodes


def nodes(text: str) -> list[Node]:
    return yaml_nodes(text, "job.yaml", Problems(Checked("job.yaml")))


def value(node: Node) -> Node:
    return node.pairs[0][1]


@pytest.mark.parametrize(
    "text,kind",
    [
        # What YAML 1.1 takes for something else is text here.
        ("no", "text"),
        ("yes", "text"),
        ("on", "text"),
        ("OFF", "text"),
        ("1:30", "text"),
        ("0x1F", "text"),
        ("1_000", "text"),
        ("2024-01-02", "text"),
        ("=", "text"),
        ("true", "bool"),
        ("False", "bool"),
        ("~", "null"),
        ("null", "null"),
        ("", "null"),
        ("1.5", "float"),
        ("1e3", "float"),
        (".5", "float"),
        (".inf", "float"),
        (".nan", "float"),
        ("'1'", "text"),
        ('"true"', "text"),
        ("!!str 1", "text"),
        ("1" * 41, "text"),
    ],
)
def test_scalars_follow_the_core_schema(text: str, kind: str) -> None:
    assert value(nodes(f"a: {text}")[0]).kind == kind


def test_a_leading_zero_does_not_make_an_octal_number_and_the_text_is_kept() -> None:
    node = value(nodes("a: 010")[0])
    assert (node.kind, node.number, node.text) == ("int", 10, "010")


def test_nodes_know_their_line_and_column() -> None:
    first, second = nodes("a: 1\nb:\n  c: x\n---\nd: 2\n")
    inner = first.pairs[1][1].pairs[0]
    assert [(n.line, n.column) for n in (first.pairs[0][0], *inner)] == [(1, 1), (3, 3), (3, 6)]
    assert second.pairs[0][0].line == 5


def test_an_alias_repeats_what_its_anchor_names() -> None:
    root = nodes("a: &x [1, 2]\nb: *x\n")[0]
    assert [node.text for node in root.pairs[1][1].items] == ["1", "2"]


def test_anchors_do_not_reach_into_the_next_document() -> None:
    with pytest.raises(JobFileUnreadable, match="has no anchor"):
        nodes("a: &x 1\n---\nb: *x\n")


def test_a_small_text_that_would_become_a_large_tree_is_refused() -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9)
    )
    with pytest.raises(JobFileUnreadable, match="aliases"):
        nodes(bomb)


def test_a_long_text_that_aliases_repeat_counts_by_its_length() -> None:
    assert nodes(f"a: &a {'x' * 6_400}\nb: [{', '.join(['*a'] * 900)}]\n")  # 901 x 101 values
    with pytest.raises(JobFileUnreadable, match="aliases"):
        nodes(f"a: &a {'x' * 6_400}\nb: [{', '.join(['*a'] * 1_000)}]\n")


@pytest.mark.parametrize(
    "text,message",
    [
        ("a: &x [*x]", "stands inside"),
        ("[" * 40, "levels deep|not YAML"),
        ("[" * 5_000, "not YAML|levels deep"),
        ("- " * 5_000, "not YAML|levels deep"),
        ("a: [1", "not YAML"),
        ("a: b: c", "not YAML"),
        ("\t- a", "not YAML"),
        ("a: 'x", "not YAML"),
        ("%YAML 3.0\n---\na: 1", "not YAML"),
        ("a: \x01", "not YAML"),
        ("- 1\n" * 100_001, "100,000 values"),
        ("--- 1\n" * 1_001, "1,000 documents"),
    ],
)
def test_a_text_that_cannot_be_read_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(JobFileUnreadable, match=message) as caught:
        nodes(text)
    assert caught.value.refusal.where is not None
    assert caught.value.refusal.where.startswith("job.yaml")
    assert "\n" not in str(caught.value)


def test_a_tag_that_would_build_an_object_is_noted_and_nothing_runs() -> None:
    problems = Problems(Checked("job.yaml"))
    yaml_nodes("run: !!python/object/apply:os.system ['touch /tmp/no']", "job.yaml", problems)
    assert [refusal.code for refusal in problems.found] == ["INVALID_FIELD"]


@given(st.text() | st.text(alphabet="[]{}:,-&*!|>'\"#%@` \n\tab01"))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(CorralError):
        nodes(text)
