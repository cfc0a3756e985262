"""What the store needs of a database."""

from __future__ import annotations

from typing import Any, Protocol

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.schema import Table

from corral.model.errors import CorralError

FAULTS = (DBAPIError, PoolTimeout, UnicodeDecodeError)
"""What an unusable database raises. The last: Python's sqlite3 reads its messages as UTF-8, and they quote damage."""


class Backend(Protocol):
    """What a database brings: its connections, its locks, its ON CONFLICT, the meaning of its errors."""

    name: str

    def connect(self) -> Engine:
        """Return an engine on the database, made anew when there is none."""

    def writes(self, connection: Connection, *, prompt: bool = False) -> Connection:
        """Return the connection made ready for transactions that write; a prompt one gives up sooner."""

    def reads(self, connection: Connection, *, patient: bool = False) -> Connection:
        """Return the connection with transactions that see one state; a patient one may take long to answer."""

    def insert(self, table: Table) -> Any:
        """Return the dialect's INSERT with ``on_conflict_do_update`` and ``excluded``."""

    def now(self) -> ColumnElement[float]:
        """Return the database's wall clock in seconds since the epoch."""

    def locked(self, connection: Connection) -> None:
        """Keep others from changing the schema during this transaction."""

    def clear(self, connection: Connection) -> None:
        """End transactions that hold the leader's row although their controllers have given them up."""

    def check(self, connection: Connection) -> None:
        """Check the database as a whole; raise ``StoreCorrupt``."""

    def fault(self, error: Exception, doing: str) -> CorralError:
        """Return what an error of the driver means."""
