"""Schema versions: what a database has, and how it gets to what this code needs."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, inspect, select, table
from sqlalchemy import column as sql_column

from corral.model.errors import SchemaTooNew, StoreCorrupt
from corral.storage.schema import APPLICATION, HEAD, REVISIONS, VERSION_TABLE, meta

MIGRATIONS: Final = Path(__file__).parent / "migrations"
_one_at_a_time = threading.Lock()
"""Alembic's ``context`` and ``op`` are one for the whole process."""

_version = table(VERSION_TABLE, sql_column("version_num"))


def revision_of(connection: Connection, name: str) -> str:
    """Return the schema revision of the corral database ``name``.

    Raises ``StoreCorrupt`` when it is no corral database, ``SchemaTooNew`` when a newer corral wrote it.
    """
    there = set(inspect(connection).get_table_names())
    if not {VERSION_TABLE, meta.name} <= there:
        raise StoreCorrupt(f"{name} is a database, but not one of corral")
    application = connection.scalar(select(meta.c.value).where(meta.c.key == "application"))
    if application != APPLICATION:
        raise StoreCorrupt(f"{name} is a database, but not one of corral")
    revisions = list(connection.scalars(select(_version.c.version_num)))
    if len(revisions) != 1:
        raise StoreCorrupt(f"{name} names {len(revisions)} schema revisions instead of one")
    revision = str(revisions[0])
    if revision not in REVISIONS:
        raise SchemaTooNew(
            f"{name} has schema {revision}, this corral knows schemas up to {HEAD}",
            hint="start the newer corral that wrote it, or restore a backup",
        )
    return revision


def upgrade(connection: Connection, revision: str = HEAD) -> None:
    """Migrate to ``revision`` within the transaction of ``connection``. Importing Alembic costs 0.2 s: only here."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    with _one_at_a_time:
        command.upgrade(config, revision)
