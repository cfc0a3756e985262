"""The journal, its snapshots and the relational rows beside it, on SQLAlchemy Core."""

from __future__ import annotations

from corral.storage.postgres import PostgresStore
from corral.storage.sqlite import SqliteStore
from corral.storage.store import SqlStore

__all__ = ["PostgresStore", "SqlStore", "SqliteStore"]
