"""What keeps files and logs: in directories, in SQLite's tables and in PostgreSQL's, with the same answers."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from corral.model.errors import StoreFull
from corral.model.files import LogPiece
from corral.model.ids import JobId, TaskKey
from corral.ports.engine import LogChunk
from corral.ports.files import BlobStore, LogStore
from corral.storage import PostgresStore, SqliteStore, SqlStore
from corral.storage.blobs import DirectoryBlobs, DirectoryLogs
from corral.wire.trees import CHUNK_BYTES

TASK = TaskKey(JobId("7"), 0, 1)
LOG_BYTES_MAX = 100


class Kept(NamedTuple):
    blobs: BlobStore
    logs: LogStore


@pytest.fixture(params=["directory", "sqlite", "postgres"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kept]:
    if request.param == "directory":
        directory = DirectoryBlobs(tmp_path / "blobs")
        yield Kept(directory, DirectoryLogs(tmp_path / "logs", LOG_BYTES_MAX))
        directory.close()
        return
    store: SqlStore = (
        PostgresStore(request.getfixturevalue("database_url"))
        if request.param == "postgres"
        else SqliteStore(tmp_path / "corral.db")
    )
    store.open()
    yield Kept(store.blobs(), store.logs(LOG_BYTES_MAX))
    store.close()


def named(blob: bytes) -> str:
    return hashlib.sha256(blob).hexdigest()


def piece(offset: int, data: bytes, *, incarnation: int = 1, complete: bool = False) -> LogPiece:
    return LogPiece(TASK, incarnation, offset, data, complete)


def test_blobs_are_there_under_their_names(kept: Kept) -> None:
    large = os.urandom(CHUNK_BYTES)
    blobs = [b"", b"one", large]
    names = [named(blob) for blob in blobs]
    assert kept.blobs.missing(names) == set(names)
    kept.blobs.put([b"one", b"", b"one"])
    assert kept.blobs.missing(names) == {named(large)}
    kept.blobs.put(blobs)
    assert kept.blobs.missing(names) == set()
    assert kept.blobs.get([names[2], named(b"no"), names[0], names[1]]) == [large, None, b"", b"one"]
    assert kept.blobs.get([]) == []
    assert kept.blobs.missing([]) == set()


def test_very_many_names_are_looked_for_at_once(kept: Kept) -> None:
    kept.blobs.put([b"%d" % number for number in range(0, 1_200, 3)])
    names = [named(b"%d" % number) for number in range(1_200)]
    assert kept.blobs.missing(names) == {name for number, name in enumerate(names) if number % 3}


def test_the_first_that_fit_are_given_and_at_least_one(kept: Kept) -> None:
    blobs = [b"%04d" % number for number in range(1_000)]
    kept.blobs.put([*blobs, bytes(CHUNK_BYTES)])
    names = [named(blob) for blob in blobs]
    assert kept.blobs.get(names, 4_000) == blobs
    assert kept.blobs.get(names, 3_999) == blobs[:999]
    assert kept.blobs.get(names, 2_402) == blobs[:600]
    assert kept.blobs.get([named(b"no"), *names], 4) == [None, blobs[0]]
    assert kept.blobs.get([named(bytes(CHUNK_BYTES)), named(b"no"), names[0]], 10) == [bytes(CHUNK_BYTES), None]
    # Several may be one.
    assert kept.blobs.get([names[0]] * 3, 8) == [blobs[0]] * 2


def test_more_than_a_transaction_takes_is_kept(kept: Kept) -> None:
    blobs = [b"%d" % number for number in range(1_100)] + [os.urandom(CHUNK_BYTES) for _ in range(3)]
    kept.blobs.put(blobs)
    assert kept.blobs.missing([named(blob) for blob in blobs]) == set()
    assert kept.blobs.get([named(blob) for blob in blobs]) == blobs


def test_what_was_not_used_for_long_goes_and_what_is_asked_for_stays(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = time.time()
    kept.blobs.put([b"old", b"new"])
    assert kept.blobs.sweep(began - 1_000) == 0
    # What was used at a time is what is found a thousand seconds later.
    monkeypatch.setattr(time, "time", lambda: began + 1_000)
    real_utime = os.utime
    monkeypatch.setattr(os, "utime", lambda path: real_utime(path, (began + 1_000, began + 1_000)))
    assert kept.blobs.missing([named(b"new")]) == set()
    assert kept.blobs.sweep(began + 500) == 1
    assert kept.blobs.get([named(b"old"), named(b"new")]) == [None, b"new"]


def test_a_log_grows_piece_by_piece_and_what_comes_twice_is_there_once(kept: Kept) -> None:
    assert kept.logs.read(TASK, 1, 0, 10) is None
    assert kept.logs.append(piece(0, b"")) == 0
    assert kept.logs.append(piece(0, b"hello ")) == 6
    assert kept.logs.append(piece(3, b"lo wor")) == 9
    assert kept.logs.append(piece(0, b"hello")) == 9
    assert kept.logs.append(piece(9, b"ld")) == 11
    assert kept.logs.read(TASK, 1, 0, 100) == LogChunk(0, b"hello world", complete=False)
    assert kept.logs.read(TASK, 1, 4, 3) == LogChunk(4, b"o w", complete=False)
    assert kept.logs.read(TASK, 1, 11, 3) == LogChunk(11, b"", complete=False)
    assert kept.logs.read(TASK, 2, 0, 3) is None


def test_a_log_that_is_complete_says_so_at_its_end_only(kept: Kept) -> None:
    kept.logs.append(piece(0, b"all"))
    kept.logs.append(piece(3, b"", complete=True))
    assert kept.logs.read(TASK, 1, 0, 2) == LogChunk(0, b"al", complete=False)
    assert kept.logs.read(TASK, 1, 2, 2) == LogChunk(2, b"l", complete=True)
    assert kept.logs.read(TASK, 1, 3, 2) == LogChunk(3, b"", complete=True)
    kept.logs.append(piece(0, b"", incarnation=2, complete=True))
    assert kept.logs.read(TASK, 2, 0, 2) == LogChunk(0, b"", complete=True)


def test_after_a_gap_a_log_begins_anew(kept: Kept) -> None:
    kept.logs.append(piece(0, b"early"))
    assert kept.logs.append(piece(50, b"late")) == 54
    assert kept.logs.read(TASK, 1, 0, 100) == LogChunk(50, b"late", complete=False)


def test_of_a_long_log_the_last_is_kept(kept: Kept) -> None:
    text = b"".join(b"%09d\n" % number for number in range(1_000))
    for start in range(0, len(text), 30):
        kept.logs.append(piece(start, text[start : start + 30]))
    read = kept.logs.read(TASK, 1, 0, len(text))
    assert read is not None
    assert LOG_BYTES_MAX <= len(read.data) <= 3 * LOG_BYTES_MAX
    assert read.data == text[-len(read.data) :]
    assert read.offset == len(text) - len(read.data)


def test_old_logs_go(kept: Kept) -> None:
    kept.logs.append(piece(0, b"x", complete=True))
    kept.logs.append(piece(0, b"y", incarnation=2))
    assert kept.logs.sweep(time.time() - 1_000) == 0
    assert kept.logs.sweep(time.time() + 1_000) == 2
    assert kept.logs.read(TASK, 1, 0, 1) is None


def test_files_leave_room_for_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs, logs = DirectoryBlobs(tmp_path / "blobs"), DirectoryLogs(tmp_path / "logs", LOG_BYTES_MAX)
    free = 0

    def disk(_path: object) -> SimpleNamespace:
        return SimpleNamespace(f_frsize=1 << 20, f_blocks=100 << 10, f_bavail=free)

    monkeypatch.setattr(os, "statvfs", disk)
    # Of a disk of 100 GiB one stays free.
    free = 1024
    with pytest.raises(StoreFull, match="nearly full"):
        blobs.put([b"x"])
    with pytest.raises(StoreFull, match="nearly full"):
        logs.append(piece(0, b"x"))
    assert blobs.names() == []
    free = 1025
    blobs.put([b"x"])
    assert logs.append(piece(0, b"x")) == 1
    # What is there needs no room.
    free = 0
    blobs.put([b"x"])
    blobs.close()
