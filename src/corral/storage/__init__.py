"""The journal, its snapshots and the relational rows beside it, on SQLAlchemy Core."""

from __future__ import annotations

from corral.storage.sqlite import SqliteStore

__all__ = ["SqliteStore"]
