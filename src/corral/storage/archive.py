"""The whole state in one file, and back: to move it to another database, and as a backup of a pool that goes on.

A gzip of lines, each a JSON array: ``["corral-state", 1, {..}]``, then ``[table, row...]`` and ``["blob", base64]``,
then ``["end", lines, sha256]`` over all lines before it. Bytes are base64. The tables are read in one transaction, so
the file holds one state, whatever the pool does meanwhile. An import is one transaction too: all of it, or nothing.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from sqlalchemy import Connection, LargeBinary, func, insert, select, update
from sqlalchemy.sql.schema import Table

from corral.model.errors import Conflict, SchemaTooNew, StateUnusable, StoreCorrupt
from corral.ports.files import BlobStore
from corral.storage.schema import (
    HEAD,
    REVISIONS,
    finished_documents,
    finished_jobs,
    journal,
    leadership,
    snapshots,
    usage_hours,
)
from corral.storage.store import SqlStore

FORMAT: Final = 1
EPOCHS_AHEAD: Final = 1_000
"""So much is added to the epoch, for agents may have followed leaders that came after the export was made."""

_MAGIC: Final = "corral-state"
_TABLES: Final = {
    str(table.name): table for table in (snapshots, journal, finished_jobs, finished_documents, usage_hours)
}
_ROWS_TOGETHER: Final = 500
_ROWS_READ: Final = 50
"""So few, for a database ends a transaction in which nothing is asked for seconds; documents take time to pack."""


class Archived(NamedTuple):
    """What a file holds: the last entry of the journal, and how many rows and blobs there are."""

    last_seq: int
    rows: int
    blobs: int


def export(store: SqlStore, blobs: BlobStore | None, place: Path, *, version: str) -> Archived:
    """Write the state of an open store to a file that only its owner can read; it is there whole, or not at all.

    Raises the errors of the store, and ``StateUnusable`` when the file cannot be written.
    """
    new = place.with_name(f".{place.name}.new")
    try:
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            with gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
                writer = _Writer(packed)
                with store.reading(patient=True) as connection:
                    last_seq = _write_tables(writer, connection, version)
                count = _write_blobs(writer, blobs) if blobs is not None else 0
                rows = writer.lines - 1 - count
                writer.end()
            file.flush()
            os.fsync(file.fileno())
        new.rename(place)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise StateUnusable(f"cannot write {place}: {(error.strerror or str(error)).lower()}") from None
    return Archived(last_seq, rows, count)


class _Writer:
    def __init__(self, file: gzip.GzipFile) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.lines = 0

    def line(self, *parts: object) -> None:
        data = msgspec.json.encode(parts) + b"\n"
        self._hash.update(data)
        self._file.write(data)
        self.lines += 1

    def end(self) -> None:
        self._file.write(msgspec.json.encode(("end", self.lines, self._hash.hexdigest())) + b"\n")


def _write_tables(writer: _Writer, connection: Connection, version: str) -> int:
    head = connection.execute(select(leadership.c.epoch, leadership.c.last_seq).where(leadership.c.id == 1)).one()
    columns = {name: [str(column.name) for column in table.columns] for name, table in _TABLES.items()}
    about = {"corral": version, "schema": HEAD, "epoch": head.epoch, "last_seq": head.last_seq, "columns": columns}
    writer.line(_MAGIC, FORMAT, about)
    for name, table in _TABLES.items():
        found = connection.execution_options(yield_per=_ROWS_READ).execute(
            select(table).order_by(*table.primary_key.columns)
        )
        for row in found:
            writer.line(name, *(b64encode(value).decode() if isinstance(value, bytes) else value for value in row))
    return int(head.last_seq)


def _write_blobs(writer: _Writer, blobs: BlobStore) -> int:
    count = 0
    for name in blobs.names():
        for blob in blobs.get([name]):
            if blob is not None:
                writer.line("blob", b64encode(blob).decode())
                count += 1
    return count


class _About(msgspec.Struct, frozen=True):
    corral: str
    schema: str
    epoch: int
    last_seq: int
    columns: dict[str, list[str]]


def restore(store: SqlStore, blobs: BlobStore | None, place: Path) -> Archived:
    """Fill an open and empty store from a file. Everything is checked before anything is written.

    Raises ``Conflict`` when the store is not empty, ``StoreCorrupt`` when the file is damaged or none of corral's,
    ``SchemaTooNew`` when a newer corral wrote it, and the errors of the store.
    """
    about, lines = _checked(place)
    with store.reading() as connection:
        _check_empty(store, connection)
    # Before the rows that name them; without those they are swept in time.
    count = _read_blobs(place, blobs)
    with store.writing("import into") as connection:
        _check_empty(store, connection)
        for table, rows in _grouped(_lines(place), about):
            connection.execute(insert(table), rows)
        connection.execute(update(leadership).values(epoch=about.epoch + EPOCHS_AHEAD, last_seq=about.last_seq))
    return Archived(about.last_seq, lines - 1 - count, count)


def _check_empty(store: SqlStore, connection: Connection) -> None:
    if connection.scalar(select(leadership.c.epoch)) or connection.scalar(select(func.count()).select_from(journal)):
        raise Conflict(f"{store.name} holds the state of a pool already", hint="import into a new database")


def _read_blobs(place: Path, blobs: BlobStore | None) -> int:
    count = 0
    for line in _lines(place):
        if line[0] == "blob":
            count += 1
            if blobs is not None:
                blobs.put([b64decode(line[1])])
    return count


def _checked(place: Path) -> tuple[_About, int]:
    """Read a file through; return what its first line says, and how many lines there are."""
    digest, count, about, end = hashlib.sha256(), 0, None, None
    try:
        with gzip.open(place, "rb") as file:
            for data in file:
                if end is not None:
                    raise StoreCorrupt(f"{place} is damaged: something follows its end")
                line = msgspec.json.decode(data, type=list[Any])
                if about is None:
                    about = _about_of(place, line)
                if line[0] == "end":
                    end = line
                    continue
                digest.update(data)
                count += 1
    except (EOFError, zlib.error, gzip.BadGzipFile, msgspec.DecodeError, IndexError, ValueError) as error:
        raise StoreCorrupt(f"{place} is damaged, or no export of corral: {error}") from None
    except OSError as error:
        raise StateUnusable(f"cannot read {place}: {(error.strerror or str(error)).lower()}") from None
    if about is None or end is None or end[1:] != [count, digest.hexdigest()]:
        raise StoreCorrupt(f"{place} is damaged: it does not end as it was written")
    return about, count


def _about_of(place: Path, line: list[Any]) -> _About:
    if len(line) != 3 or line[0] != _MAGIC:
        raise StoreCorrupt(f"{place} is no export of corral")
    if line[1] != FORMAT:
        raise SchemaTooNew(f"{place} has format {line[1]}, this corral reads {FORMAT}", hint="use the newer corral")
    about = msgspec.convert(line[2], type=_About)
    if about.schema not in REVISIONS:
        raise SchemaTooNew(
            f"{place} was written by corral {about.corral}, with schema {about.schema}", hint="use that corral"
        )
    return about


def _lines(place: Path) -> Iterator[list[Any]]:
    with gzip.open(place, "rb") as file:
        for data in file:
            yield msgspec.json.decode(data, type=list[Any])


def _grouped(lines: Iterable[list[Any]], about: _About) -> Iterator[tuple[Table, list[dict[str, Any]]]]:
    """Yield the rows of tables, many at a time."""
    table: Table | None = None
    rows: list[dict[str, Any]] = []
    for line in lines:
        found = _TABLES.get(line[0])
        if rows and (found is not table or len(rows) >= _ROWS_TOGETHER):
            assert table is not None
            yield table, rows
            rows = []
        table = found
        if found is not None:
            rows.append(_row(found, about.columns[str(found.name)], line[1:]))


def _row(table: Table, names: list[str], values: list[Any]) -> dict[str, Any]:
    named = dict(zip(names, values, strict=True))
    for name, value in named.items():
        if isinstance(table.c[name].type, LargeBinary) and value is not None:
            named[name] = b64decode(value)
    return named
