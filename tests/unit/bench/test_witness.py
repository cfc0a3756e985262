from __future__ import annotations

import threading
from pathlib import Path

import pytest

from bench.witness import Mark, Overlap, Witness, append, overlaps, parse


def marks(text: str) -> list[Mark]:
    """Read ``1@0 2@5``: incarnation at seconds."""
    return [Mark(int(word.split("@")[0]), float(word.split("@")[1]), "step") for word in text.split()]


@pytest.mark.parametrize(
    "text, found",
    [
        ("", []),
        ("1@0 1@1 2@5 2@6 4@9", []),
        ("1@0 2@5 1@5.5 1@7 2@8", [Overlap("t", 1, 2, 1.5)]),
        ("1@0 2@5 1@5.5 3@6 1@8 2@9", [Overlap("t", 1, 2, 2.5), Overlap("t", 1, 3, 0.0), Overlap("t", 2, 3, 0.0)]),
        # Its machine hung from 1 to 30: it ran beside its successor from 30 on.
        ("1@0 1@1 2@5 2@29 1@30 1@30.5 2@31", [Overlap("t", 1, 2, 0.5)]),
        # The order of lines is proof, whatever a clock says.
        ("1@0 2@5 1@4", [Overlap("t", 1, 2, 0.0)]),
    ],
)
def test_an_older_incarnation_that_speaks_after_a_newer_one_is_an_overlap(text: str, found: list[Overlap]) -> None:
    assert list(overlaps("t", marks(text))) == found


def test_a_line_says_all_that_a_mark_does() -> None:
    mark = Mark(3, 1234.5, "end", 2**64 - 1)
    assert mark.line() == "3 1234.500000 end 18446744073709551615\n"
    assert parse(mark.line()) == mark


def test_a_witness_reads_on_where_it_ended_and_leaves_half_a_line_for_later(tmp_path: Path) -> None:
    witness = Witness(tmp_path)
    assert witness.tasks() == []
    assert (witness.marks("a"), witness.newest("a"), witness.first("a", 1)) == ([], 0, None)
    (tmp_path / "a").write_text("1 1.0 start 0\n1 2.0 st")
    assert witness.marks("a") == [Mark(1, 1.0, "start")]
    with (tmp_path / "a").open("a") as file:
        file.write("ep 0\n3 9.0 start 0\n3 10.0 step 0\n1 11.0 step 0\n")
    assert witness.marks("a")[1:3] == [Mark(1, 2.0, "step"), Mark(3, 9.0, "start")]
    assert (witness.newest("a"), witness.last("a"), witness.last("b")) == (3, 11.0, 0.0)
    assert witness.first("a", 2) == Mark(3, 9.0, "start")
    assert witness.overlaps() == [Overlap("a", 1, 3, 0.0)]


def test_lines_of_several_writers_stay_whole(tmp_path: Path) -> None:
    def write(incarnation: int) -> None:
        for number in range(200):
            append(tmp_path / "a", Mark(incarnation, float(number), "step", 2**63))

    threads = [threading.Thread(target=write, args=(incarnation,)) for incarnation in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = Witness(tmp_path).marks("a")
    for incarnation in (1, 2, 3):
        assert [mark.at for mark in found if mark.incarnation == incarnation] == [float(n) for n in range(200)]
