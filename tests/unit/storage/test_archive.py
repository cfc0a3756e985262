"""The whole state in a file and back, between databases; files that are damaged, foreign or of another version."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from corral.model.errors import Conflict, SchemaTooNew, StateUnusable, StoreConflict, StoreCorrupt
from corral.model.ids import JobId, TenantId
from corral.ports.files import BlobStore
from corral.ports.store import Batch, JobQuery, UsageRow
from corral.storage import PostgresStore, SqliteStore, SqlStore
from corral.storage.archive import EPOCHS_AHEAD, Archived, export, restore
from corral.storage.blobs import DirectoryBlobs
from corral.wire.trees import name_of
from tests.unit.storage.samples import ended, finished, lost, placed

Place = tuple[SqlStore, BlobStore]
Make = Callable[[str], Place]


@pytest.fixture
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Give a maker of empty places of a kind."""
    made: list[Place] = []

    def new(kind: str) -> Place:
        if kind == "postgres":
            store: SqlStore = PostgresStore(request.getfixturevalue("database_url"))
            store.open()
            blobs: BlobStore = store.blobs()
        else:
            store = SqliteStore(tmp_path / f"{len(made)}.db")
            store.open()
            blobs = DirectoryBlobs(tmp_path / f"blobs-{len(made)}")
        made.append((store, blobs))
        return store, blobs

    yield new
    for store, blobs in made:
        blobs.close()
        store.close()


def fill(store: SqlStore, blobs: BlobStore) -> None:
    """Let a pool have run: a snapshot, entries after it, finished jobs, usage, files."""
    store.acquire_leadership()
    epoch = store.acquire_leadership()
    store.append(0, epoch, Batch((placed(1.0), ended(2.0, message="é\0"), lost(3.0)), finished=(finished(1, key="k"),)))
    store.save_snapshot(2, b"state after two")
    store.append(3, epoch, Batch((lost(4.0),), finished=(finished(2),), usage=(UsageRow(TenantId("a"), 0, 1.5, 2.0),)))
    blobs.put([b"a file", b"\0" * 5000])


@pytest.mark.parametrize("source", ["sqlite", "postgres"])
@pytest.mark.parametrize("target", ["sqlite", "postgres"])
def test_a_state_moves_whole_from_any_database_to_any(make: Make, tmp_path: Path, source: str, target: str) -> None:
    if source == target == "postgres":
        pytest.skip("the fixture has one database")
    old, old_files = make(source)
    fill(old, old_files)
    place = tmp_path / "state"
    assert export(old, old_files, place, version="1") == Archived(4, 10, 2)
    assert place.stat().st_mode & 0o777 == 0o600
    new, new_files = make(target)
    assert restore(new, new_files, place) == Archived(4, 10, 2)
    assert new.recover() == old.recover()
    assert new.entries_after(0, 100) == old.entries_after(0, 100)
    assert new.finished_jobs(JobQuery()) == old.finished_jobs(JobQuery())
    assert new.finished_job(JobId("1")) == old.finished_job(JobId("1"))
    assert new.usage(0, 3600, None) == old.usage(0, 3600, None)
    assert new_files.get([name_of(b"a file"), name_of(b"\0" * 5000)]) == [b"a file", b"\0" * 5000]
    # It goes on where the other ended, with an epoch that no agent has seen.
    epoch = new.acquire_leadership()
    assert epoch == 2 + EPOCHS_AHEAD + 1
    assert new.append(4, epoch, Batch((lost(5.0),))) == 5


def test_an_empty_pool_is_a_state_too(make: Make, tmp_path: Path) -> None:
    assert export(*make("sqlite"), tmp_path / "state", version="1") == Archived(0, 0, 0)
    new, files = make("sqlite")
    assert restore(new, files, tmp_path / "state") == Archived(0, 0, 0)
    assert new.recover().entries == ()


def test_an_export_in_the_middle_of_writing_holds_one_state(make: Make, tmp_path: Path) -> None:
    old, files = make("sqlite")
    fill(old, files)
    other = SqliteStore(tmp_path / "0.db")
    other.open()

    class Meanwhile(DirectoryBlobs):
        def names(self) -> list[str]:
            other.append(4, 2, Batch((lost(5.0),)))
            return super().names()

    meanwhile = Meanwhile(tmp_path / "blobs-0")
    assert export(old, meanwhile, tmp_path / "state", version="1").last_seq == 4
    meanwhile.close()
    other.close()
    new, new_files = make("sqlite")
    restore(new, new_files, tmp_path / "state")
    assert [entry.seq for entry in new.recover().entries] == [3, 4]


def test_a_place_that_holds_a_state_is_left_alone(make: Make, tmp_path: Path) -> None:
    old, files = make("sqlite")
    fill(old, files)
    export(old, files, tmp_path / "state", version="1")
    with pytest.raises(Conflict, match="holds the state of a pool already"):
        restore(old, files, tmp_path / "state")
    led, led_files = make("sqlite")
    led.acquire_leadership()
    with pytest.raises(Conflict):
        restore(led, led_files, tmp_path / "state")
    assert [entry.seq for entry in old.recover().entries] == [3, 4]


def lines_of(place: Path) -> list[bytes]:
    with gzip.open(place, "rb") as file:
        return file.readlines()


def with_lines(place: Path, lines: list[bytes]) -> None:
    with gzip.open(place, "wb") as file:
        file.writelines(lines)


def test_what_is_damaged_or_foreign_changes_nothing(make: Make, tmp_path: Path) -> None:
    old, files = make("sqlite")
    fill(old, files)
    good = tmp_path / "good"
    export(old, files, good, version="1")
    lines, whole = lines_of(good), good.read_bytes()
    new, new_files = make("sqlite")
    bad = tmp_path / "bad"
    damages: list[Callable[[], object]] = [
        lambda: bad.write_bytes(whole[:-40]),
        lambda: bad.write_bytes(b""),
        lambda: bad.write_bytes(b"no gzip at all"),
        lambda: bad.write_bytes(whole[:30] + b"\xff" * 20 + whole[50:]),
        lambda: bad.write_bytes(whole[:200] + bytes(50) + whole[250:]),
        lambda: with_lines(bad, lines[:-1]),
        lambda: with_lines(bad, [*lines[:2], *lines[3:]]),
        lambda: with_lines(bad, [*lines, lines[-1]]),
        lambda: with_lines(bad, [lines[0], lines[1].replace(b"1", b"2", 1), *lines[2:]]),
        lambda: with_lines(bad, [b'["other-state",1,{}]\n', *lines[1:]]),
        lambda: with_lines(bad, [b"{}\n"]),
    ]
    for damage in damages:
        damage()
        with pytest.raises(StoreCorrupt, match=r"is damaged|no export of corral"):
            restore(new, new_files, bad)
    with pytest.raises(StateUnusable, match="no such file"):
        restore(new, new_files, tmp_path / "none")
    assert restore(new, new_files, good).last_seq == 4


def test_what_a_newer_corral_wrote_is_refused(make: Make, tmp_path: Path) -> None:
    old, files = make("sqlite")
    export(old, files, tmp_path / "state", version="9.0")
    first = json.loads(lines_of(tmp_path / "state")[0])
    new, new_files = make("sqlite")
    for changed in ([first[0], 2, first[2]], [first[0], 1, {**first[2], "schema": "9999"}]):
        with_lines(tmp_path / "newer", [json.dumps(changed).encode() + b"\n"])
        with pytest.raises(SchemaTooNew, match=r"newer corral|9999"):
            restore(new, new_files, tmp_path / "newer")


def test_an_export_that_fails_leaves_what_was_there(make: Make, tmp_path: Path) -> None:
    old, files = make("sqlite")
    with pytest.raises(StateUnusable, match="cannot write"):
        export(old, files, tmp_path / "no" / "such" / "folder", version="1")
    (tmp_path / "taken").mkdir()
    with pytest.raises(StateUnusable):
        export(old, files, tmp_path / "taken", version="1")
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".new")] == []


def test_the_old_place_cannot_write_into_the_new_one(make: Make, tmp_path: Path) -> None:
    old, files = make("sqlite")
    fill(old, files)
    export(old, files, tmp_path / "state", version="1")
    new, new_files = make("sqlite")
    restore(new, new_files, tmp_path / "state")
    with pytest.raises(StoreConflict):
        new.append(4, 2, Batch((lost(5.0),)))
