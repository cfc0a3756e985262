"""What may reach a terminal: names are escaped, logs keep colours and lose every other control sequence."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.cli.terminal import LogFilter, safe, safe_json

# An ASCII terminal obeys nothing else: a well-formed colour, erase-in-line, and these characters.
HARMLESS = "\t\n\r\b"


@pytest.mark.parametrize(
    "text,shown",
    [
        ("train", "train"),
        ("训练 größe 🚀", "训练 größe 🚀"),
        ("a\x1b[2Jb", "a\\x1b[2Jb"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("\x00\x7f\x9b", "\\x00\\x7f\\x9b"),
        ("evil\u202etxt.exe", "evil\\u202etxt.exe"),
        ("zero\u200bwidth", "zero\\u200bwidth"),
        ("lone\udc80", "lone\\udc80"),
        ("tag\U000e0041", "tag\\U000e0041"),
        ("line\u2028sep", "line\\u2028sep"),
    ],
)
def test_names_are_shown_without_being_obeyed(text: str, shown: str) -> None:
    assert safe(text) == shown


@given(st.text())
def test_a_safe_name_has_nothing_to_obey(text: str) -> None:
    assert all(c.isprintable() or c in " \u3000" or c.isspace() or ord(c) > 0x2FF for c in safe(text))
    assert not set(safe(text)) & {chr(n) for n in (*range(32), *range(127, 160))}


@given(st.text(), st.text())
def test_json_says_the_same_and_has_nothing_to_obey(name: str, value: str) -> None:
    """Control characters up to 31 are escaped by JSON itself; a terminal obeys those from 127 to 159 as well."""
    document = {name.encode(errors="ignore").decode(): [value.encode(errors="ignore").decode()]}
    made = msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
    escaped = safe_json(made)
    assert msgspec.json.decode(escaped) == document
    assert not {c for c in escaped if c != "\n" and (ord(c) < 32 or 127 <= ord(c) < 160 or c in "\u202e\u200b\ufeff")}


def test_json_keeps_what_is_harmless() -> None:
    assert safe_json('{\n  "größe 训练": "🚀"\n}') == '{\n  "größe 训练": "🚀"\n}'
    assert safe_json('"\x9b2J\U000e0041"') == '"\\u009b2J\\udb40\\udc41"'


def shown(*chunks: bytes, colours: bool = True) -> str:
    log = LogFilter(colours=colours)
    return "".join(log.feed(chunk) for chunk in chunks) + log.end()


@pytest.mark.parametrize(
    "written,text",
    [
        (b"plain\n", "plain\n"),
        (b"\x1b[31mred\x1b[0m\n", "\x1b[31mred\x1b[0m\n\x1b[0m"),
        (b"\x1b[38;2;1;2;3mx", "\x1b[38;2;1;2;3mx\x1b[0m"),
        (b"50%\r\x1b[K60%", "50%\r\x1b[K60%"),
        (b"a\x1b[2Jb", "ab"),
        (b"a\x1b[10;10Hb", "ab"),
        (b"a\x1b[Ab", "ab"),
        (b"a\x1b]0;title\x07b", "ab"),
        (b"a\x1b]52;c;ZXZpbA==\x1b\\b", "ab"),
        (b"a\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\b", "alinkb"),
        (b"a\x1bPq#0\x1b\\b", "ab"),
        (b"a\x1bcb", "ab"),
        (b"a\x1b(0b", "ab"),
        (b"a\x1b[6nb", "ab"),
        (b"a\x1b[?1049hb", "ab"),
        (b"a\x1b[>4;1mb", "ab"),
        (b"a\x07\x00\x0e\x7fb", "ab"),
        (b"a\xc2\x9b2Jb", "ab"),
        ("größe 训练\n".encode(), "größe 训练\n"),
        (b"a\xff\xfeb", "a\ufffd\ufffdb"),
        (b"a\x1b", "a"),
        (b"a\x1b[3", "a[3"),
    ],
)
def test_a_log_on_a_terminal_keeps_colours_and_nothing_else(written: bytes, text: str) -> None:
    assert shown(written) == text


def test_colours_go_when_they_are_not_wanted() -> None:
    assert shown(b"\x1b[31mred\x1b[0m\n", colours=False) == "red\n"


@given(st.binary(), st.integers(min_value=1, max_value=7))
def test_a_terminal_gets_only_what_it_may_obey_however_the_log_is_cut(data: bytes, size: int) -> None:
    text = shown(*(data[at : at + size] for at in range(0, len(data), size)))
    import re

    rest = re.sub(r"\x1b\[[0-9;:]*m|\x1b\[[012]?K", "", text)
    assert not {c for c in rest if (ord(c) < 32 or 127 <= ord(c) < 160) and c not in HARMLESS}


@given(
    st.lists(
        st.sampled_from([b"text", b"\x1b[31m", b"\x1b[0m", b"\x1b[2J", b"\x1b]0;t\x07", b"\n", "ö".encode(), b"\x1bc"])
    ),
    st.integers(min_value=1, max_value=5),
)
def test_cutting_a_log_into_chunks_changes_nothing(pieces: list[bytes], size: int) -> None:
    data = b"".join(pieces)
    assert shown(*(data[at : at + size] for at in range(0, len(data), size))) == shown(data)


@pytest.mark.parametrize("begin", ["\x9d", "\x1b]", "\x9b", "\x1b[", "\x90a", "\x1b"])
def test_a_log_of_beginnings_is_read_once(begin: str) -> None:
    """Each was looked through to the end of the log once: 4 MB took hours, and now a moment."""
    log = LogFilter(colours=True)
    log.feed((begin * (4_000_000 // len(begin)) + "\x07").encode())
    assert log.feed(b"x") == "x"


def test_what_is_complete_is_not_held_back() -> None:
    log = LogFilter(colours=True)
    assert log.feed("a\x9b2Jb".encode()) == "ab"
    assert log.feed("\x9b3".encode()) == ""
    assert log.feed(b"Cd") == "d"


def test_an_endless_sequence_does_not_hold_the_log_back() -> None:
    log = LogFilter(colours=True)
    assert "x" in log.feed(b"\x1b]0;" + b"x" * 10_000)
