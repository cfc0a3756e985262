"""Migrations make exactly the tables that the code uses, and an upgrade succeeds or changes nothing."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, create_engine, inspect

from corral.model.errors import SchemaTooNew
from corral.ports.store import Batch
from corral.storage import SqliteStore, migrate, store
from corral.storage.schema import HEAD, REVISIONS, VERSION_TABLE, metadata
from tests.unit.storage.samples import lost


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "corral.db"
    made = SqliteStore(path)
    made.open()
    made.append(0, made.acquire_leadership(), Batch((lost(1.0),)))
    made.close()
    return path


def described(engine: Engine) -> dict[str, Any]:
    """Return columns, keys and indexes of every table, in comparable words."""
    there = inspect(engine)
    return {
        table: {
            "columns": [
                (column["name"], str(column["type"]), column["nullable"], column["default"])
                for column in there.get_columns(table)
            ],
            "key": there.get_pk_constraint(table),
            "foreign": there.get_foreign_keys(table),
            "indexes": sorted(there.get_indexes(table), key=lambda index: str(index["name"])),
        }
        for table in there.get_table_names()
        if table != VERSION_TABLE
    }


def test_the_migrations_make_exactly_the_schema(path: Path) -> None:
    migrated, direct = create_engine(f"sqlite:///{path}"), create_engine("sqlite://")
    metadata.create_all(direct)
    assert described(migrated) == described(direct)
    with migrated.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    migrated.dispose()
    direct.dispose()


def test_the_chain_of_revisions_is_the_one_that_the_code_names() -> None:
    config = Config()
    config.set_main_option("script_location", str(migrate.MIGRATIONS))
    script = ScriptDirectory.from_config(config)
    assert tuple(revision.revision for revision in reversed(list(script.walk_revisions()))) == REVISIONS
    assert script.get_current_head() == HEAD


def test_a_newer_schema_is_refused_and_left_alone(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    with pytest.raises(SchemaTooNew, match=rf"has schema 9999, this corral knows schemas up to {HEAD}.*newer corral"):
        SqliteStore(path).open()
    assert path.read_bytes() == before


def next_release(path: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    """Let the code be of a release with one more revision."""
    scripts = path.parent / "migrations"
    shutil.copytree(migrate.MIGRATIONS, scripts, ignore=shutil.ignore_patterns("__pycache__"))
    (scripts / "versions" / "9000_next.py").write_text(
        "import sqlalchemy as sa\nfrom alembic import op\n\n"
        f"revision = '9000'\ndown_revision = {HEAD!r}\n\n\n"
        f"def upgrade():\n    op.add_column('usage_hours', sa.Column('tpu_milli_s', sa.Float))\n    {change}\n"
    )
    monkeypatch.setattr(migrate, "MIGRATIONS", scripts)
    monkeypatch.setattr(migrate, "REVISIONS", (*REVISIONS, "9000"))
    monkeypatch.setattr(store, "HEAD", "9000")
    monkeypatch.setattr(migrate.upgrade, "__defaults__", ("9000",))


def test_an_older_schema_is_upgraded_and_keeps_its_rows(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    next_release(path, monkeypatch, "pass")
    opened = SqliteStore(path)
    opened.open()
    assert [entry.fact for entry in opened.recover().entries] == [lost(1.0)]
    opened.close()
    connection = sqlite3.connect(path)
    assert "tpu_milli_s" in [row[1] for row in connection.execute("PRAGMA table_info(usage_hours)")]
    assert connection.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchall() == [("9000",)]
    connection.close()
    opened.open()
    opened.close()


def test_an_upgrade_that_fails_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    next_release(path, monkeypatch, "raise RuntimeError('planted')")
    with pytest.raises(RuntimeError, match="planted"):
        SqliteStore(path).open()
    connection = sqlite3.connect(path)
    assert "tpu_milli_s" not in [row[1] for row in connection.execute("PRAGMA table_info(usage_hours)")]
    assert connection.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchall() == [(HEAD,)]
    connection.close()


def test_opening_an_up_to_date_store_does_not_load_alembic(path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from corral.storage import SqliteStore\n"
        "store = SqliteStore(Path(sys.argv[1])); store.open(); store.close()\n"
        "sys.exit('alembic' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code, path], timeout=60, check=False).returncode == 0
