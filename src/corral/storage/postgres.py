"""PostgreSQL under the store: connecting, creating, bounded waiting, its errors in plain words.

Every wait for the server has an end on this side (``LIMIT_S``), also where the network swallows what is sent. What a
controller leaves behind on the server, a transaction with the lock on the leader's row say, ends there by itself:
between two commands by ``idle_in_transaction_session_timeout``, in the middle of one (several are sent at once, and a
cut may swallow the last of them) when the client's machine answers no more, by the server's own keepalives. Where it
still answers, because only the process was stopped, whoever claims the lead ends what is in the way.
READ COMMITTED writes: an UPDATE that waited for another transaction looks at the row again (PostgreSQL manual, 13.2.1),
which is what compare-and-append needs. REPEATABLE READ reads: a recovery sees one state.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection, Engine, create_engine, event, func, inspect, select, text
from sqlalchemy.dialects.postgresql import Insert, insert
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.schema import Table

from corral.model.errors import (
    CorralError,
    DependencyMissing,
    InvalidField,
    StateUnusable,
    StoreAway,
    StoreConflict,
    StoreCorrupt,
)
from corral.storage import migrate
from corral.storage.schema import VERSION_TABLE, meta
from corral.storage.store import SqlStore

if TYPE_CHECKING:
    import psycopg

_log = logging.getLogger(__name__)

LIMIT_S: Final = 4.0
PROMPT_S: Final = 2.0
PATIENT_S: Final = 120.0
CONNECT_S: Final = 2
VERSION_MIN: Final = 120_000
_CREATING: Final = 0x636F7272616C  # "corral": the advisory lock under which tables are made
_OPTIONS: Final = (
    "-c lock_timeout=4000 -c idle_in_transaction_session_timeout=3000 -c default_transaction_read_only=off "
    "-c client_min_messages=warning "
    "-c tcp_keepalives_idle=2 -c tcp_keepalives_interval=1 -c tcp_keepalives_count=3 -c tcp_user_timeout=4000"
)
_LEFT_BEHIND: Final = text(
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = current_user"
    " AND xact_start < clock_timestamp() - make_interval(secs => :limit_s) AND pid IN"
    " (SELECT pid FROM pg_locks WHERE locktype = 'relation' AND relation = 'leadership'::regclass"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    " AND mode = 'RowExclusiveLock' AND granted AND pid <> pg_backend_pid())"
)
"""Ends the sessions whose transaction has changed the leader's row, or waits to, for longer than anybody waits."""

_RESTORE: Final = "restore a backup of the database"
_LIMIT: Final = "limit_s"
_READS: Final = {"isolation_level": "REPEATABLE READ"}

# https://www.postgresql.org/docs/current/errcodes-appendix.html: what passes by itself.
_AWAY_CLASSES: Final = ("08", "53", "57", "40", "55", "58")
_AWAY_CODES: Final = ("25006", "25P03", "25P04")
_REFUSED_CLASSES: Final = ("28", "3D", "42")


class PostgresBackend:
    """One database, named by a libpq URL: ``postgresql://[user[:password]@]host[,host2][:port]/database[?option=..]``.

    ``limit_s`` bounds every wait for an answer: of who campaigns ``PROMPT_S``, of who recovers ``PATIENT_S``.
    """

    def __init__(self, url: str, *, limit_s: float = LIMIT_S) -> None:
        try:
            parsed = make_url(url)
            self.name = parsed.render_as_string(hide_password=True)
        except (ArgumentError, ValueError):
            parsed = None
        if parsed is None or parsed.drivername not in {"postgresql", "postgres"}:
            raise InvalidField(
                "is no URL of a database", field="--store", hint="write postgresql://HOST/DATABASE"
            ) from None
        self._conninfo = url
        self._limit_s = limit_s
        self._opened = False

    def connect(self) -> Engine:
        """Return an engine on the database, with corral's tables made when they are not there.

        Raises ``DependencyMissing`` without the driver, ``StoreAway`` when the server does not answer and
        ``StateUnusable`` when it refuses.
        """
        engine = self._engine()
        try:
            with engine.connect() as connection, connection.begin():
                self.locked(connection)
                if not {VERSION_TABLE, meta.name} & set(inspect(connection).get_table_names()):
                    migrate.upgrade(connection)
        except BaseException:
            engine.dispose()
            raise
        return engine

    def _engine(self) -> Engine:
        bounded = _bounded_connection()

        def connect() -> psycopg.Connection[Any]:
            connection: psycopg.Connection[Any] = bounded.connect(
                self._conninfo,
                connect_timeout=CONNECT_S,
                options=_OPTIONS,
                application_name="corral",
                target_session_attrs="read-write",
                tcp_user_timeout=4_000,
                keepalives_idle=2,
                keepalives_interval=1,
                keepalives_count=3,
            )
            setattr(connection, _LIMIT, PROMPT_S)
            return connection

        engine = create_engine(
            "postgresql+psycopg://",
            creator=connect,
            pool_size=6,
            max_overflow=4,
            pool_timeout=self._limit_s,
            pool_pre_ping=True,
            isolation_level="READ COMMITTED",
        )
        event.listen(engine, "checkin", _rest)
        return engine

    def writes(self, connection: Connection, *, prompt: bool = False) -> Connection:
        """Return the connection with its limit: what it changes it locks."""
        return self._limited(connection, PROMPT_S if prompt else self._limit_s)

    def reads(self, connection: Connection, *, patient: bool = False) -> Connection:
        """Return the connection with transactions that see one state; a patient one may take long to answer."""
        return self._limited(connection.execution_options(**_READS), PATIENT_S if patient else self._limit_s)

    @staticmethod
    def _limited(connection: Connection, limit_s: float) -> Connection:
        setattr(connection.connection.driver_connection, _LIMIT, limit_s)
        return connection

    def insert(self, table: Table) -> Insert:
        """Return PostgreSQL's INSERT, which knows ON CONFLICT."""
        return insert(table)

    def now(self) -> ColumnElement[float]:
        """Return the server's wall clock in seconds since the epoch."""
        return func.date_part("epoch", func.clock_timestamp())

    def locked(self, connection: Connection) -> None:
        """Keep others from changing the schema during this transaction; wait for who is changing it."""
        self._limited(connection, PATIENT_S)
        connection.execute(text(f"SET LOCAL lock_timeout = '{PATIENT_S:g}s'"))
        connection.execute(select(func.pg_advisory_xact_lock(_CREATING)))

    def clear(self, connection: Connection) -> None:
        """End what has been writing for so long that its controller has given it up. For who may claim the lead."""
        if connection.scalar(_LEFT_BEHIND, {"limit_s": LIMIT_S}):
            _log.warning("ended what an earlier leader left behind in %s", self.name)

    def check(self, connection: Connection) -> None:
        """Check that the server is one that keeps what it has committed. Raises ``StateUnusable``."""
        version = int(str(connection.scalar(text("SHOW server_version_num"))))
        if version < VERSION_MIN:
            raise StateUnusable(f"{self.name} runs PostgreSQL {version // 10_000}", hint="12 is the oldest that works")
        if connection.scalar(text("SHOW fsync")) == "off":
            raise StateUnusable(f"{self.name} runs with fsync = off: a power cut would lose what was acknowledged")
        if connection.scalar(text("SHOW synchronous_commit")) == "off":
            raise StateUnusable(
                f"{self.name} has synchronous_commit = off: a crash would lose what was acknowledged",
                hint="ALTER DATABASE ... SET synchronous_commit = on",
            )
        self._opened = True

    def fault(self, error: Exception, doing: str) -> CorralError:
        """Return what an error of the driver means to corral."""
        cause: Any = error.orig if isinstance(error, DBAPIError) else error
        state = getattr(cause, "sqlstate", None) or ""
        said = " ".join(str(cause).split()) or type(cause).__name__
        where = f"cannot {doing} {self.name}"
        if state.startswith("23"):
            return StoreConflict(f"{where}: another controller has written there: {said}")
        if state.startswith("XX00"):
            return StoreCorrupt(f"{self.name} is damaged: {said}", hint=_RESTORE)
        if state.startswith(_REFUSED_CLASSES) or (not state and not self._opened and _refuses(said)):
            return StateUnusable(f"{where}: {said}", hint="look at the address, the user and its rights")
        if not state or state.startswith(_AWAY_CLASSES) or state in _AWAY_CODES:
            return StoreAway(f"{where}: {said}")
        return StateUnusable(f"{where}: {said} [{state}]")


def _rest(connection: Any, _: object) -> None:
    """Let a connection at rest answer promptly to the question whether it still lives."""
    if connection is not None:
        setattr(connection, _LIMIT, PROMPT_S)


def _refuses(said: str) -> bool:
    """Return whether a server that answered a first connection will not answer it better later."""
    # libpq hands no SQLSTATE over for a connection that was refused; of the reasons these four are for good.
    return any(
        word in said for word in ("authentication failed", "does not exist", "no pg_hba.conf", "could not translate")
    )


def _bounded_connection() -> Any:
    """Return the driver's connection class with an end to every wait. Imported late: it is an extra."""
    try:
        import psycopg
    except ImportError:
        raise DependencyMissing(
            "a pool in PostgreSQL needs its driver", hint="pip install 'corral[postgres]'"
        ) from None

    class BoundedConnection(psycopg.Connection[Any]):
        """Waits at most ``limit_s`` for any one answer; then the connection is closed, for nobody knows its state."""

        limit_s = LIMIT_S

        def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
            return super().wait(self._until(gen, time.monotonic() + self.limit_s), *args, **kwargs)

        def _until(self, gen: Any, deadline: float) -> Generator[Any, Any, Any]:
            try:
                wanted = next(gen)
                while True:
                    ready = yield wanted
                    if not ready and time.monotonic() > deadline:
                        self.pgconn.finish()
                        raise psycopg.OperationalError(f"no answer within {self.limit_s:g} s")
                    answered = gen.send(ready)
                    wanted = answered if answered is not None else wanted
            except StopIteration as end:
                return end.value

    return BoundedConnection


class PostgresStore(SqlStore):
    """The store of several controllers."""

    def __init__(self, url: str, *, limit_s: float = LIMIT_S) -> None:
        super().__init__(PostgresBackend(url, limit_s=limit_s))
