"""Blobs and logs in the database, for pools whose controllers share nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from sqlalchemy import Connection, Engine, delete, func, or_, select, update

from corral.model.files import LogPiece
from corral.model.ids import TaskKey
from corral.ports.engine import LogChunk
from corral.storage.backend import FAULTS, Backend
from corral.storage.schema import blobs, log_pieces
from corral.wire.trees import name_of

_FRESH_S: Final = 60.0
"""A blob that was used less long ago is not marked as used again."""

_NAMES_TOGETHER: Final = 500
_BYTES_TOGETHER: Final = 4 << 20
_ROWS_TOGETHER: Final = 500


class _Tables:
    """Short transactions on connections of their own: the journal's writer is never waited for."""

    def __init__(self, backend: Backend, engine: Callable[[], Engine]) -> None:
        self._backend = backend
        self._engine = engine

    @contextmanager
    def _writing(self, doing: str) -> Iterator[Connection]:
        try:
            with self._engine().connect() as plain:
                connection = self._backend.writes(plain)
                with connection.begin():
                    yield connection
        except FAULTS as error:
            raise self._backend.fault(error, doing) from error

    @contextmanager
    def _reading(self, doing: str) -> Iterator[Connection]:
        try:
            with self._engine().connect() as plain:
                yield self._backend.reads(plain)
        except FAULTS as error:
            raise self._backend.fault(error, doing) from error


class SqlBlobs(_Tables):
    """Implements ``ports.files.BlobStore``."""

    def put(self, blobs_: Sequence[bytes]) -> None:
        """Keep blobs durably."""
        named = {name_of(blob): blob for blob in blobs_}
        statement = self._backend.insert(blobs)
        statement = statement.on_conflict_do_update(
            index_elements=["name"], set_={"used_at": statement.excluded.used_at}
        )
        # In order: who keeps the same at the same time waits for one row, never each for the other's.
        for some in _together((name, len(named[name])) for name in sorted(self.missing(named))):
            now = time.time()
            with self._writing("keep files in") as connection:
                connection.execute(statement, [{"name": name, "data": named[name], "used_at": now} for name in some])

    def get(self, names: Sequence[str], bytes_max: int | None = None) -> list[bytes | None]:
        """Return blobs, ``None`` for those that are not there; the first that fit."""
        found: list[bytes | None] = []
        with self._reading("read files in") as connection:
            for some in _together(_fitting(connection, names, bytes_max)):
                rows = connection.execute(select(blobs.c.name, blobs.c.data).where(blobs.c.name.in_(some)))
                there = {row.name: bytes(row.data) for row in rows}
                found += [there.get(name) for name in some]
        return found

    def missing(self, names: Collection[str]) -> set[str]:
        """Return those that are not there; mark the others as used."""
        absent = set(names)
        listed, now = sorted(absent), time.time()
        for start in range(0, len(listed), _NAMES_TOGETHER):
            some = blobs.c.name.in_(listed[start : start + _NAMES_TOGETHER])
            with self._writing("look for files in") as connection:
                absent.difference_update(connection.scalars(select(blobs.c.name).where(some)))
                used = update(blobs).where(some, blobs.c.used_at < now - _FRESH_S).values(used_at=now)
                connection.execute(used)
        return absent

    def names(self) -> list[str]:
        """Return the names of all blobs."""
        with self._reading("list files in") as connection:
            return list(connection.scalars(select(blobs.c.name).order_by(blobs.c.name)))

    def sweep(self, unused_since: float) -> int:
        """Delete what was not used since a time, a few at a time: nobody waits long for a lock."""
        gone = 0
        while True:
            old = select(blobs.c.name).where(blobs.c.used_at < unused_since).limit(_ROWS_TOGETHER)
            with self._writing("delete files in") as connection:
                # Once more, for it may have been used since it was looked for.
                statement = delete(blobs).where(blobs.c.name.in_(old), blobs.c.used_at < unused_since)
                count = connection.execute(statement).rowcount
            gone += count
            if not count:
                return gone

    def close(self) -> None:
        """Leave the database to the store."""


def _fitting(connection: Connection, names: Sequence[str], bytes_max: int | None) -> list[tuple[str, int]]:
    """Return the first names, at least one, with the sizes of their blobs, 0 where there is none."""
    found: list[tuple[str, int]] = []
    total = 0
    for start in range(0, len(names), _NAMES_TOGETHER):
        asked = names[start : start + _NAMES_TOGETHER]
        lengths = select(blobs.c.name, func.length(blobs.c.data).label("size")).where(blobs.c.name.in_(asked))
        sizes = {row.name: row.size for row in connection.execute(lengths)}
        for name in asked:
            total += sizes.get(name, 0)
            if found and name in sizes and bytes_max is not None and total > bytes_max:
                return found
            found.append((name, sizes.get(name, 0)))
    return found


def _together(sizes: Iterable[tuple[str, int]]) -> Iterator[list[str]]:
    """Divide blobs (name and size in bytes) among transactions that are over soon."""
    some: list[str] = []
    total = 0
    for name, size in sizes:
        if some and (total + size > _BYTES_TOGETHER or len(some) == _ROWS_TOGETHER):
            yield some
            some, total = [], 0
        some.append(name)
        total += size
    if some:
        yield some


class SqlLogs(_Tables):
    """Implements ``ports.files.LogStore``. Of each log about the last ``bytes_max`` are kept."""

    def __init__(self, backend: Backend, engine: Callable[[], Engine], bytes_max: int) -> None:
        super().__init__(backend, engine)
        self._bytes_max = bytes_max

    def append(self, piece: LogPiece) -> int:
        """Add a piece and return the offset of the end of what is kept."""
        mine = (log_pieces.c.task == str(piece.task), log_pieces.c.incarnation == piece.incarnation)
        with self._writing("keep logs in") as connection:
            end = connection.scalar(select(func.max(log_pieces.c.ends)).where(*mine))
            if end is None or piece.offset > end:
                connection.execute(delete(log_pieces).where(*mine))
                end = piece.offset
            data = piece.data[end - piece.offset :]
            if data or piece.complete:
                row = {"ends": end + len(data), "complete": piece.complete, "added_at": time.time(), "data": data}
                key = {"task": str(piece.task), "incarnation": piece.incarnation, "begins": end}
                statement = self._backend.insert(log_pieces).values(**key, **row)
                # The same piece may come twice at once, the longer one first.
                longer = or_(log_pieces.c.ends < row["ends"], statement.excluded.complete)
                connection.execute(statement.on_conflict_do_update(index_elements=list(key), set_=row, where=longer))
                end += len(data)
            connection.execute(delete(log_pieces).where(*mine, log_pieces.c.ends < end - self._bytes_max))
            return int(end)

    def read(self, task: TaskKey, incarnation: int, offset: int, limit: int) -> LogChunk | None:
        """Return up to ``limit`` bytes from ``offset`` on, ``None`` when there is no such log."""
        columns = (log_pieces.c.begins, log_pieces.c.ends, log_pieces.c.complete, log_pieces.c.data)
        mine = (log_pieces.c.task == str(task), log_pieces.c.incarnation == incarnation)
        later = select(*columns).where(*mine, log_pieces.c.ends >= offset).order_by(log_pieces.c.begins)
        first, data, complete = max(offset, 0), bytearray(), False
        with self._reading("read logs in") as connection:
            if connection.scalar(select(log_pieces.c.begins).where(*mine).limit(1)) is None:
                return None
            with connection.execution_options(yield_per=8).execute(later) as rows:
                for row in rows:
                    if not data:
                        first = max(first, row.begins)
                    data += bytes(row.data)[max(0, first - row.begins) :]
                    complete = row.complete and len(data) <= limit
                    if len(data) > limit:
                        break
        return LogChunk(first, bytes(data[:limit]), complete)

    def sweep(self, unused_since: float) -> int:
        """Delete logs that nothing was added to since a time."""
        key = (log_pieces.c.task, log_pieces.c.incarnation)
        old = select(*key).group_by(*key).having(func.max(log_pieces.c.added_at) < unused_since)
        gone = 0
        with self._reading("look for logs in") as connection:
            found = connection.execute(old).all()
        for task, incarnation in found:
            with self._writing("delete logs in") as connection:
                mine = (log_pieces.c.task == task, log_pieces.c.incarnation == incarnation)
                connection.execute(delete(log_pieces).where(*mine))
            gone += 1
        return gone
