"""The logs of several tasks on one output, and the last lines of a log."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.cli.logfeed import Place, last_lines, tail_of
from corral.cli.logwriter import LINE_BYTES_MAX, PrefixWriter, SingleWriter
from corral.ports.engine import LogChunk

EVERY_BYTE = bytes(range(256))


def test_one_task_into_a_pipe_is_untouched() -> None:
    out = BytesIO()
    writer = SingleWriter(tty=False, colours=False, stream=out)
    writer.write("1.0.0", EVERY_BYTE)
    writer.write("1.0.0", b"\x1b[2Jnot a line")
    writer.end("1.0.0")
    assert out.getvalue() == EVERY_BYTE + b"\x1b[2Jnot a line"


def test_one_task_on_a_terminal_cannot_control_it() -> None:
    out = BytesIO()
    writer = SingleWriter(tty=True, colours=True, stream=out)
    writer.write("1.0.0", b"50%\r\x1b[K\x1b[32m60%\x1b[2")
    writer.write("1.0.0", b"J\n")
    writer.end("1.0.0")
    assert out.getvalue() == b"50%\r\x1b[K\x1b[32m60%\n\x1b[0m"


def test_several_tasks_are_told_apart_line_by_line() -> None:
    out = BytesIO()
    writer = PrefixWriter(tty=False, colours=False, stream=out)
    writer.write("1.0.0", b"one\ntw")
    writer.write("1.1.0", b"\xff\x00\n")
    writer.write("1.0.0", b"o\nthree")
    writer.end("1.0.0")
    writer.end("1.1.0")
    assert out.getvalue() == b"1.0.0 | one\n1.1.0 | \xff\x00\n1.0.0 | two\n1.0.0 | three\n"


def test_several_tasks_on_a_terminal_have_colours_of_their_own_and_end_them() -> None:
    out = BytesIO()
    writer = PrefixWriter(tty=True, colours=True, stream=out)
    writer.write("1.0.0", b"10%\r20%\r\n\x1b[31mred\x1b[2J\n")
    writer.write("1.1.0", b"x\n")
    assert out.getvalue().split(b"\n") == [
        b"\x1b[36m1.0.0 |\x1b[0m 20%",
        b"\x1b[36m1.0.0 |\x1b[0m \x1b[31mred\x1b[0m",
        b"\x1b[33m1.1.0 |\x1b[0m x",
        b"",
    ]


def test_without_colours_a_terminal_gets_plain_text() -> None:
    out = BytesIO()
    writer = PrefixWriter(tty=True, colours=False, stream=out)
    writer.write("1.0.0", b"\x1b[31mred\x1b[0m\n")
    assert out.getvalue() == b"1.0.0 | red\n"


def test_a_task_without_line_ends_does_not_fill_the_memory() -> None:
    out = BytesIO()
    writer = PrefixWriter(tty=False, colours=False, stream=out)
    for _ in range(3):
        writer.write("1.0.0", b"x" * LINE_BYTES_MAX)
    writer.end("1.0.0")
    assert out.getvalue() == (b"1.0.0 | " + b"x" * LINE_BYTES_MAX + b"\n") * 3


@given(st.lists(st.tuples(st.sampled_from("ab"), st.binary(max_size=20)), max_size=20))
def test_no_byte_of_any_task_is_lost(pieces: list[tuple[str, bytes]]) -> None:
    out = BytesIO()
    writer = PrefixWriter(tty=False, colours=False, stream=out)
    for task, data in pieces:
        writer.write(task, data)
    for task in "ab":
        writer.end(task)
    for task in "ab":
        written = b"".join(data for name, data in pieces if name == task)
        prefix = f"{task} | ".encode()
        # A line may hold anything but a line end, so the lines of a task are found by their beginnings.
        lines = [line.removeprefix(prefix) for line in out.getvalue().split(b"\n") if line.startswith(prefix)]
        expected = written.removesuffix(b"\n").split(b"\n") if written else []
        assert lines == expected


@pytest.mark.parametrize(
    "data,lines,tail",
    [
        (b"1\n2\n3\n", 2, b"2\n3\n"),
        (b"1\n2\n3", 2, b"2\n3"),
        (b"1\n2\n3\n", 3, b"1\n2\n3\n"),
        (b"1\n2\n3\n", 9, b"1\n2\n3\n"),
        (b"1\n2\n3\n", 0, b""),
        (b"\n\n\n", 2, b"\n\n"),
        (b"", 5, b""),
        (b"no end", 1, b"no end"),
    ],
)
def test_the_last_lines_of_a_text(data: bytes, lines: int, tail: bytes) -> None:
    assert last_lines(data, lines) == tail


@given(st.binary(max_size=200), st.integers(min_value=0, max_value=5))
def test_the_last_lines_as_a_list_would_have_them(data: bytes, lines: int) -> None:
    split = data.split(b"\n")
    whole = [line + b"\n" for line in split[:-1]] + ([split[-1]] if split[-1] else [])
    assert last_lines(data, lines) == b"".join(whole[len(whole) - lines :] if lines < len(whole) else whole)


def chunks_of(data: bytes, size: int, begin: int) -> list[LogChunk]:
    return [
        LogChunk(begin + at, data[at : at + size], complete=False, incarnation=1) for at in range(0, len(data), size)
    ]


def test_the_tail_of_a_long_log_and_where_it_ends() -> None:
    lines: Callable[[range], bytes] = lambda numbers: b"".join(f"{n:0999}\n".encode() for n in numbers)  # noqa: E731
    data = lines(range(5000))
    # The first 100,000 bytes were rotated away: offsets go on from there.
    assert tail_of(chunks_of(data, 65_536, 100_000), 3) == (lines(range(4997, 5000)), Place(1, 100_000 + len(data)))
    assert tail_of(chunks_of(data, 65_536, 100_000), 4_000) == (lines(range(1000, 5000)), Place(1, 100_000 + len(data)))
    assert tail_of([], 3) == (b"", Place())


def test_the_place_in_a_log_tells_what_was_rotated_away() -> None:
    skipped, place = Place().moved(LogChunk(10, b"abc", complete=False, incarnation=1))
    assert (skipped, place) == (10, Place(1, 13))
    assert place.moved(LogChunk(13, b"d", complete=False, incarnation=1)) == (0, Place(1, 14))
    assert place.moved(LogChunk(20, b"d", complete=False, incarnation=1)) == (7, Place(1, 21))
    # A task that was started again: its log begins at 0, and of that 30 bytes are gone.
    assert place.moved(LogChunk(30, b"d", complete=False, incarnation=2)) == (30, Place(2, 31))
