"""Alembic's environment: it runs on the connection and within the transaction that it is given."""

from __future__ import annotations

from alembic import context

from corral.storage.schema import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
