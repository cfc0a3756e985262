"""Tables fit the width at hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from corral.cli.render.layout import Column, as_text, facts, fitted, table

WIDE = Column("TEXT", wide=True, least=6)
CUT = Column("NAME", cut=True, least=4)
NUMBER = Column("N", right=True)
EXTRA = Column("EXTRA", optional=True)


def test_a_table_that_fits_has_its_natural_widths() -> None:
    assert as_text(table([CUT, NUMBER, WIDE], [("a", "1", "some words"), ("bcd", "10", "x")]), width=80) == (
        "NAME   N  TEXT\na      1  some words\nbcd   10  x\n"
    )


def test_room_is_taken_from_texts_then_from_extras_then_from_the_rest() -> None:
    columns = {0: CUT, 1: NUMBER, 2: WIDE, 3: EXTRA}
    natural = {0: 10, 1: 3, 2: 20, 3: 5}
    assert fitted(columns, natural, 44, 2) == natural
    assert fitted(columns, natural, 40, 2) == {0: 10, 1: 3, 2: 16, 3: 5}
    assert fitted(columns, natural, 24, 2) == {0: 4, 1: 3, 2: 6, 3: 5}
    # Without the extra column there is room for the texts again.
    assert fitted(columns, natural, 23, 2) == {0: 10, 1: 3, 2: 6}
    assert fitted(columns, natural, 12, 2) == {0: 4, 1: 1, 2: 6}


def test_cut_names_end_in_an_ellipsis_and_texts_wrap() -> None:
    text = as_text(table([CUT, WIDE], [("a-long-name", "one two three")]), width=14)
    assert text.splitlines() == ["NAME    TEXT", "a-lon…  one", "        two", "        three"]


def test_wide_characters_count_as_two_cells() -> None:
    lines = as_text(table([CUT, NUMBER], [("训练任务", "1"), ("x", "22")]), width=40).splitlines()
    assert lines == ["NAME       N", "训练任务   1", "x         22"]


def test_facts_are_aligned_and_wrap_under_themselves() -> None:
    text = as_text(facts([("a", "one two three four"), ("name", "x\x1b[2J")]), width=16)
    assert text.splitlines() == ["a     one two", "      three four", "name  x\\x1b[2J"]


@given(
    st.lists(st.tuples(st.text(max_size=30), st.text(max_size=60), st.text(max_size=8)), min_size=1, max_size=5),
    st.integers(min_value=30, max_value=120),
)
def test_no_line_is_ever_longer_than_the_width_or_harmful(rows: list[tuple[str, str, str]], width: int) -> None:
    text = as_text(table([CUT, WIDE, NUMBER], rows), width=width)
    assert all(cell_len(line) <= width for line in text.splitlines())
    assert not any(ord(c) < 32 and c != "\n" for c in text)
