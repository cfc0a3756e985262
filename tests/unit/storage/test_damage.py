"""A damaged database is refused with a clear message, or read exactly as it was written: nothing in between."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from corral.model.errors import CorralError, SchemaTooNew, StoreCorrupt
from corral.model.ids import JobId
from corral.ports.store import Batch, Recovered
from corral.storage import SqliteStore
from corral.storage.rows import journal_crc
from tests.unit.storage.samples import ended, finished, lost

ENTRIES = 400
OLDER, NEWER = 300, 350


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Give a closed database of some pages: a journal with two snapshots and finished jobs."""
    path = tmp_path / "corral.db"
    store = SqliteStore(path)
    store.open()
    epoch = store.acquire_leadership()
    for seq in range(0, ENTRIES, 10):
        facts = tuple(ended(float(seq + rank), job=str(seq % 7), rank=rank, message="x" * 200) for rank in range(10))
        store.append(seq, epoch, Batch(facts, finished=(finished(seq),)))
    store.save_snapshot(OLDER, b"older")
    store.save_snapshot(NEWER, b"newer" * 1000)
    store.close()
    return path


def change(path: Path, statement: str, *arguments: object) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    assert connection.execute(statement, arguments).rowcount != 0
    connection.close()


def recovered(path: Path) -> Recovered:
    store = SqliteStore(path)
    store.open()
    try:
        return store.recover()
    finally:
        store.close()


def refused(path: Path, kind: type[CorralError] = StoreCorrupt) -> str:
    with pytest.raises(kind) as caught:
        recovered(path)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_the_undamaged_one_reads(path: Path) -> None:
    found = recovered(path)
    assert (found.snapshot_seq, found.snapshot, len(found.entries)) == (NEWER, b"newer" * 1000, ENTRIES - NEWER)


@pytest.mark.parametrize(
    "damage,message",
    [
        (lambda _: b"", "is damaged: it is empty"),
        (lambda data: data[:15], "does not begin as a database does"),
        (lambda data: data[:100], "is damaged"),
        (lambda data: data[: len(data) // 2], "is damaged"),
        (lambda data: data[:-4096], "is damaged"),
        (lambda data: b"#!/bin/sh\n" + data[10:], "does not begin as a database does"),
        (lambda _: random.Random(1).randbytes(8192), "does not begin as a database does"),
        (lambda data: data[:4096] + random.Random(2).randbytes(len(data) - 4096), "is damaged"),
    ],
    ids=["emptied", "15-bytes", "100-bytes", "half", "last-page-gone", "wrong-magic", "noise", "noise-after-header"],
)
def test_a_cut_or_overwritten_file_is_refused_and_left_as_it_is(
    path: Path, damage: Callable[[bytes], bytes], message: str
) -> None:
    path.write_bytes(damage(path.read_bytes()))
    before = path.read_bytes()
    said = refused(path)
    assert message in said
    assert "restore a backup" in said
    assert path.read_bytes() == before


@pytest.mark.parametrize("seed", range(30))
def test_random_bytes_in_the_middle_are_seen_or_harmless(path: Path, seed: int) -> None:
    """Any page may be hit: what still reads must read as it was written."""
    before = recovered(path)
    documents = {number: finished(number).document for number in range(0, ENTRIES, 10)}
    data = bytearray(path.read_bytes())
    chance = random.Random(seed)
    at = chance.randrange(100, len(data) - 64)
    data[at : at + 64] = chance.randbytes(64)
    path.write_bytes(data)
    store = SqliteStore(path)
    try:
        store.open()
        found = store.recover()
        assert found.snapshot_seq in (NEWER, OLDER)
        assert found.entries[-(ENTRIES - NEWER) :] == before.entries
        assert [entry.seq for entry in store.entries_after(0, 1000)] == list(range(1, ENTRIES + 1))
        for number, document in documents.items():
            job = store.finished_job(JobId(str(number)))
            assert job is None or job.document == document
    except StoreCorrupt:
        pass
    finally:
        store.close()


def test_a_single_flipped_letter_in_an_entry_is_seen(path: Path) -> None:
    data = path.read_bytes()
    at = data.rindex(b"task-ended")
    path.write_bytes(data[:at] + b"task-endee" + data[at + 10 :])
    store = SqliteStore(path)
    store.open()
    with pytest.raises(StoreCorrupt, match=r"journal entry \d+ is damaged: its checksum does not match"):
        store.entries_after(0, 1000)
    store.close()


def test_an_entry_that_moved_to_another_place_is_seen(path: Path) -> None:
    change(path, "UPDATE journal SET payload = (SELECT payload FROM journal WHERE seq = 380) WHERE seq = 390")
    assert "journal entry 390 is damaged" in refused(path)


def test_an_entry_that_does_not_decode_is_refused(path: Path) -> None:
    payload = b'{"kind": "node-lost"}'
    change(path, "UPDATE journal SET payload = ?, crc = ? WHERE seq = 390", payload, journal_crc(390, 1, payload))
    assert "journal entry 390 does not decode" in refused(path)


def test_an_entry_of_a_kind_that_only_a_newer_corral_knows_says_so(path: Path) -> None:
    payload = b'{"kind": "node-teleported", "at": 1.0}'
    change(path, "UPDATE journal SET payload = ?, crc = ? WHERE seq = 390", payload, journal_crc(390, 1, payload))
    assert "'node-teleported', which this corral does not know" in refused(path, SchemaTooNew)


def test_a_missing_entry_is_seen(path: Path) -> None:
    change(path, "DELETE FROM journal WHERE seq = 375")
    assert "journal entry 375 is missing (of 400, after the snapshot at 350)" in refused(path)


def test_a_journal_that_lost_its_end_is_seen(path: Path) -> None:
    change(path, "DELETE FROM journal WHERE seq > 398")
    assert "its journal ends at 398, but 400 was the last entry" in refused(path)


def test_a_store_that_lost_its_leadership_row_is_seen(path: Path) -> None:
    change(path, "DELETE FROM leadership")
    assert "its journal ends at 400, but nothing was the last entry" in refused(path)


def damage_snapshot(path: Path, seq: int) -> None:
    change(path, "UPDATE snapshots SET data = zeroblob(length(data)) WHERE seq = ?", seq)


def test_a_damaged_newest_snapshot_falls_back_to_the_older_one(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    damage_snapshot(path, NEWER)
    found = recovered(path)
    assert (found.snapshot_seq, found.snapshot) == (OLDER, b"older")
    assert [entry.seq for entry in found.entries] == list(range(OLDER + 1, ENTRIES + 1))
    assert "the snapshot at entry 350 is damaged" in caplog.text


def test_the_fall_back_works_after_pruning_and_a_damaged_snapshot_stops_pruning(path: Path) -> None:
    store = SqliteStore(path)
    store.open()
    assert store.prune(entries_before=1e9, keep_jobs=()) == OLDER
    damage_snapshot(path, NEWER)
    assert store.prune(entries_before=1e9, keep_jobs=()) == 0
    store.save_snapshot(ENTRIES, b"newest")
    assert store.prune(entries_before=1e9, keep_jobs=()) == 0, "one of the two kept snapshots is damaged"
    store.close()
    damage_snapshot(path, ENTRIES)
    assert "journal entry 1 is missing (of 400, after no usable snapshot)" in refused(path)


def test_with_both_snapshots_damaged_a_whole_journal_is_enough(path: Path) -> None:
    damage_snapshot(path, NEWER)
    damage_snapshot(path, OLDER)
    found = recovered(path)
    assert (found.snapshot_seq, found.snapshot, len(found.entries)) == (0, None, ENTRIES)


def test_a_damaged_record_of_a_finished_job_is_seen(path: Path) -> None:
    change(path, "UPDATE finished_documents SET document = ? WHERE number = 20", b"{}")
    store = SqliteStore(path)
    store.open()
    with pytest.raises(StoreCorrupt, match="the record of finished job 20 is damaged"):
        store.finished_job(JobId("20"))
    assert store.finished_job(JobId("30")) == finished(30)
    store.close()


def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "corral.db"
    change(path, "CREATE TABLE bookmarks (id INTEGER)")
    assert "is a database, but not one of corral" in refused(path)


def test_another_programs_alembic_database_is_refused(path: Path) -> None:
    change(path, "UPDATE meta SET value = 'other' WHERE key = 'application'")
    assert "is a database, but not one of corral" in refused(path)


@pytest.mark.parametrize("revisions", [[], ["0001", "0002"]])
def test_a_database_without_one_schema_revision_is_refused(path: Path, revisions: list[str]) -> None:
    change(path, "DELETE FROM alembic_version")
    for revision in revisions:
        change(path, "INSERT INTO alembic_version VALUES (?)", revision)
    assert f"names {len(revisions)} schema revisions instead of one" in refused(path)


def test_a_large_database_is_opened_without_reading_it_through_and_damage_is_met_later(path: Path) -> None:
    data = path.read_bytes()
    at = data.index(b"x" * 200) // 4096 * 4096
    path.write_bytes(data[:at] + bytes(4096) + data[at + 4096 :])
    store = SqliteStore(path, check_mib_max=0)
    store.open()
    with pytest.raises(StoreCorrupt):
        store.entries_after(0, 1000)
    store.close()
    assert "is damaged" in refused(path)


def test_a_log_without_its_database_is_refused_instead_of_beginning_anew(path: Path) -> None:
    store = SqliteStore(path)
    store.open()
    store.append(ENTRIES, store.acquire_leadership(), Batch((lost(1.0),)))
    path.unlink()
    assert "is gone, but its write-ahead log is there" in refused(path)
    assert not path.exists()
    store.close()


def test_a_store_that_was_killed_while_it_was_made_is_made_again(tmp_path: Path, path: Path) -> None:
    fresh = tmp_path / "fresh" / "corral.db"
    fresh.parent.mkdir()
    shutil.copy(path, fresh.with_name("corral.db.new"))
    fresh.with_name("corral.db.new-wal").write_bytes(b"torn")
    assert recovered(fresh) == Recovered(0, None, ())
    assert [entry.name for entry in fresh.parent.iterdir()] == ["corral.db"]
