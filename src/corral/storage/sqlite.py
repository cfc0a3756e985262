"""SQLite under the store: creating, opening and checking the file, its transactions, its errors in plain words.

WAL and ``synchronous=FULL``: a commit that returned is on the disk. A new database is made beside its place and
renamed into it, so that a file of that name is always whole, and an empty one is damage, not a beginning.

What is checked at each start: the magic number; every page (``PRAGMA quick_check``) of a database of up to
``check_mib_max`` (0.6 ms per MiB, so at most 0.15 s), of a larger one what recovery reads anyhow; the journal
from the snapshot on without a gap; the CRC-32 of each entry read. Damage elsewhere in a large file is reported as
``StoreCorrupt`` by the call that meets it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event, func
from sqlalchemy.dialects.sqlite import Insert, insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import QueuePool
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.schema import Table

from corral.model.errors import CorralError, StateUnusable, StoreConflict, StoreCorrupt, StoreFull
from corral.storage import migrate
from corral.storage.backend import FAULTS
from corral.storage.rows import RESTORE
from corral.storage.store import SqlStore

_MAGIC: Final = b"SQLite format 3\0"
_MIB: Final = 1 << 20
_WAL_BYTES_KEPT: Final = 16 * _MIB
_FREE_BYTES_MIN: Final = 256 * 1024
_WRITES: Final = "corral_writes"


class SqliteBackend:
    """One database file. ``busy_timeout_s`` is how long a write waits for another process that writes."""

    def __init__(self, path: Path, *, busy_timeout_s: float = 5.0, check_mib_max: int = 256) -> None:
        self._path = path
        self._busy_timeout_s = busy_timeout_s
        self._check_mib_max = check_mib_max
        self.name = str(path)

    def connect(self) -> Engine:
        """Return an engine on the file, made anew when it is not there.

        Raises ``StateUnusable`` when the directory cannot be written, ``StoreCorrupt`` when the file is no database.
        """
        self._check_directory()
        if not self._path.exists():
            self._create()
        self._check_file()
        return self._engine(self._path, mode="rw")

    def writes(self, connection: Connection, *, prompt: bool = False) -> Connection:
        """Return the connection with transactions that lock the database from their start."""
        del prompt
        if connection.get_execution_options().get(_WRITES):
            return connection
        return connection.execution_options(**{_WRITES: True})

    def reads(self, connection: Connection, *, patient: bool = False) -> Connection:
        """Return the connection as it is: a transaction sees one state."""
        del patient
        return connection

    def insert(self, table: Table) -> Insert:
        """Return SQLite's INSERT, which knows ON CONFLICT."""
        return insert(table)

    def now(self) -> ColumnElement[float]:
        """Return this machine's wall clock in seconds since the epoch."""
        return (func.julianday("now") - 2_440_587.5) * 86_400.0

    def locked(self, connection: Connection) -> None:
        """Do nothing: who writes has locked the whole database."""

    def clear(self, connection: Connection) -> None:
        """Do nothing: a lock ends with the process that has it, and one that hangs may not be passed over."""

    def check(self, connection: Connection) -> None:
        """Read the database through when it is small enough; raise ``StoreCorrupt`` with the first complaint."""
        if self._path.stat().st_size > self._check_mib_max * _MIB:
            return
        complaint = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
        if complaint != "ok":
            raise StoreCorrupt(f"{self._path} is damaged: {' '.join(str(complaint).split())}", hint=RESTORE)

    def fault(self, error: Exception, doing: str) -> CorralError:
        """Return what an error of the driver means to corral."""
        cause: Any = error.orig if isinstance(error, DBAPIError) else error
        name = getattr(cause, "sqlite_errorname", "") or ""
        detail = f"{cause} [{name}]" if name else str(cause)
        where = f"cannot {doing} {self._path}"
        if name == "SQLITE_FULL" or (name.startswith("SQLITE_IOERR") and self._full()):
            return StoreFull(f"{where}: the disk is full", hint="free some space and start again; nothing is lost")
        if isinstance(cause, UnicodeDecodeError) or "Could not decode to UTF-8" in detail:
            return StoreCorrupt(f"{self._path} is damaged: {detail}", hint=RESTORE)
        if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_FORMAT")) or name == "SQLITE_IOERR_SHORT_READ":
            return StoreCorrupt(f"{self._path} is damaged: {detail}", hint=RESTORE)
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            hint = "stop the other process that uses this state directory"
            return StateUnusable(f"{where}: another process kept it locked for {self._busy_timeout_s:g} s", hint=hint)
        if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_AUTH")):
            return StateUnusable(f"{where}: {detail}", hint="make the directory and its files writable for this user")
        if name.startswith("SQLITE_CONSTRAINT"):
            return StoreConflict(f"{where}: another controller has written there: {detail}")
        return StateUnusable(f"{where}: {detail}", hint="look at the disk, its quota and the file size limit")

    def _full(self) -> bool:
        try:
            there = os.statvfs(self._path.parent)
        except OSError:
            return False
        return there.f_bavail * there.f_frsize < _FREE_BYTES_MIN or there.f_files > 0 == there.f_favail

    def _check_directory(self) -> None:
        directory = self._path.parent
        if not directory.is_dir():
            raise StateUnusable(f"the state directory {directory} does not exist")
        if os.statvfs(directory).f_flag & os.ST_RDONLY:
            raise StateUnusable(f"the state directory {directory} is on a read-only file system")
        writable = self._path if self._path.exists() else directory
        for place in (directory, writable):
            if not os.access(place, os.R_OK | os.W_OK):
                raise StateUnusable(f"{place} cannot be written by this user", hint="look at its owner and mode")

    def _check_file(self) -> None:
        with self._path.open("rb") as file:
            magic = file.read(len(_MAGIC))
        if magic != _MAGIC:
            what = "it is empty" if not magic else "it does not begin as a database does"
            raise StoreCorrupt(f"{self._path} is damaged: {what}", hint=RESTORE)

    def _create(self) -> None:
        """Make the database under another name, complete it, and rename it into its place."""
        new = self._path.with_name(self._path.name + ".new")
        with _locked(self._path.parent), self._translated("create"):
            if self._path.exists():
                return
            if _beside(self._path, "-wal").exists():
                raise StoreCorrupt(f"{self._path} is gone, but its write-ahead log is there", hint=RESTORE)
            for stale in (new, _beside(new, "-wal"), _beside(new, "-shm"), _beside(new, "-journal")):
                stale.unlink(missing_ok=True)
            os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
            engine = self._engine(new, mode="rwc")
            try:
                with self.writes(engine.connect()) as connection, connection.begin():
                    migrate.upgrade(connection)
            finally:
                engine.dispose()
            new.rename(self._path)

    @contextlib.contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (*FAULTS, sqlite3.Error) as error:
            raise self.fault(error, doing) from error
        except OSError as error:
            raise StateUnusable(f"cannot {doing} {self._path}: {error.strerror}") from error

    def _engine(self, path: Path, *, mode: str) -> Engine:
        address = f"file:{quote(str(path.absolute()))}?mode={mode}"

        def connect() -> sqlite3.Connection:
            connection = sqlite3.connect(
                address, uri=True, timeout=self._busy_timeout_s, isolation_level=None, check_same_thread=False
            )
            try:
                for pragma in (
                    "journal_mode = WAL",
                    "synchronous = FULL",
                    "foreign_keys = ON",
                    f"journal_size_limit = {_WAL_BYTES_KEPT}",
                ):
                    connection.execute(f"PRAGMA {pragma}")
            except BaseException:
                connection.close()
                raise
            return connection

        engine = create_engine("sqlite://", creator=connect, poolclass=QueuePool, pool_size=4)
        event.listen(engine, "begin", _begin)
        return engine


def _begin(connection: Connection) -> None:
    # The driver would begin only at the first change, and then fail instead of waiting when another writer came first.
    writes = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold the lock of a directory, and put its entries on the disk before letting go."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class SqliteStore(SqlStore):
    """The store of one controller: a file, no service to start."""

    def __init__(self, path: Path, *, busy_timeout_s: float = 5.0, check_mib_max: int = 256) -> None:
        super().__init__(SqliteBackend(path, busy_timeout_s=busy_timeout_s, check_mib_max=check_mib_max))
