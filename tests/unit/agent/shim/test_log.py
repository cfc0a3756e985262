"""The log writer against a plain model: whatever comes in which pieces, nothing is lost and files end at line ends."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.agent.shim.log import LogWriter
from corral.agent.shim.log_reader import read_log

lines = st.lists(
    st.one_of(st.binary(max_size=30), st.integers(0, 400).map(lambda size: b"x" * size)).map(
        lambda raw: raw.replace(b"\n", b".") + b"\n"
    ),
    max_size=40,
)


class Log:
    """A writer with its pipe."""

    def __init__(self, directory: Path, max_bytes: int, files: int) -> None:
        self.directory = os.open(directory, os.O_RDONLY)
        self.reader, self.sender = os.pipe()
        os.set_blocking(self.reader, False)
        self.writer = LogWriter(self.directory, max_bytes, files)

    def write(self, data: bytes) -> None:
        for start in range(0, len(data), 60_000):
            os.write(self.sender, data[start : start + 60_000])
            while self.writer.pump(self.reader):
                pass

    def close(self) -> None:
        for descriptor in (self.reader, self.sender, self.directory, self.writer._file):
            if descriptor >= 0:
                os.close(descriptor)


def files_of(directory: Path) -> list[bytes]:
    """Return the content of all files, the oldest first."""
    numbered = sorted(directory.glob("log.[0-9]*"), key=lambda path: -int(path.suffix[1:]))
    return [path.read_bytes() for path in [*numbered, directory / "log"] if path.exists()]


@pytest.mark.parametrize("splices", [True, False])
@given(content=lines, max_bytes=st.integers(1, 300), files=st.integers(1, 5), cuts=st.lists(st.integers(1, 50)))
def test_nothing_is_lost_within_the_files_that_are_kept(
    *, splices: bool, content: list[bytes], max_bytes: int, files: int, cuts: list[int]
) -> None:
    whole = b"".join(content)
    with tempfile.TemporaryDirectory() as name:
        log = Log(Path(name), max_bytes, files)
        log.writer._splices = splices
        position = 0
        for cut in cuts:
            log.write(whole[position : position + cut])
            position += cut
        log.write(whole[position:])
        kept = files_of(Path(name))
        assert len(kept) <= files
        assert log.writer.total_bytes == len(whole)
        assert whole.endswith(b"".join(kept))
        # No file ends before its size is reached, and none goes on beyond the next line end, or twice its size.
        for file in kept[:-1]:
            assert len(file) >= max_bytes
            assert b"\n" not in file[max_bytes:-1]
            assert len(file) <= 2 * max_bytes
            assert file.endswith(b"\n") or len(file) == 2 * max_bytes
        if len(kept) < files:
            assert b"".join(kept) == whole
        # The reader agrees from every offset.
        start = len(whole) - len(b"".join(kept))
        for offset in (0, start, start + 1, len(whole) // 2, len(whole)):
            piece = read_log(Path(name), offset, 1 << 20)
            assert piece.offset == max(offset, start)
            assert piece.data == whole[piece.offset :]
            assert piece.end == len(whole)
        log.close()


def test_the_shims_own_lines_come_after_what_was_said(tmp_path: Path) -> None:
    log = Log(tmp_path, 1000, 2)
    log.write(b"task\n")
    log.writer.note("corral: grün")
    log.writer.pump(log.reader)
    assert (tmp_path / "log").read_text() == "task\ncorral: grün\n"
    log.close()


def test_what_is_thrown_away_is_counted(tmp_path: Path) -> None:
    log = Log(tmp_path, 1000, 2)
    os.write(log.sender, b"x" * 500)
    log.writer.note("y" * 9)
    log.writer.discard(log.reader)
    assert (log.writer.lost_bytes, log.writer.total_bytes) == (510, 0)
    log.close()


def test_no_log_yet_is_an_empty_one(tmp_path: Path) -> None:
    assert read_log(tmp_path, 0, 100) == (0, b"", 0)
    assert read_log(tmp_path, 7, 100).data == b""


def test_an_offset_beyond_the_end_reads_nothing(tmp_path: Path) -> None:
    log = Log(tmp_path, 1000, 2)
    log.write(b"0123456789")
    assert read_log(tmp_path, 4, 3) == (4, b"456", 10)
    assert read_log(tmp_path, 10, 3) == (10, b"", 10)
    assert read_log(tmp_path, 99, 3) == (99, b"", 10)
    log.close()


def test_a_rotation_that_was_cut_short_at_any_point_is_read_right(tmp_path: Path) -> None:
    log = Log(tmp_path, 10, 4)
    log.write(b"".join(b"line %04d\n" % number for number in range(5)))
    whole = b"".join(files_of(tmp_path))
    start = 50 - len(whole)
    # The states that a rotation passes through, one rename after the other.
    (tmp_path / ".log.new").write_bytes(b"")
    for old, new in (("log.2", "log.3"), ("log.1", "log.2"), ("log", "log.1"), (".log.new", "log")):
        if (tmp_path / old).exists():
            dropped = (tmp_path / new).read_bytes() if (tmp_path / new).exists() else b""
            (tmp_path / old).rename(tmp_path / new)
            start += len(dropped)
            assert read_log(tmp_path, 0, 1000) == (start, whole[len(whole) - 50 + start :], 50)
    log.close()
