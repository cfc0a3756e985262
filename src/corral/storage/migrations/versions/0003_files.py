"""Files that travel and logs that come back, for pools whose controllers share nothing but the database."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "blobs",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
        sa.Column("used_at", sa.Float, nullable=False),
        sa.PrimaryKeyConstraint("name", name="blobs_pkey"),
    )
    op.create_index("blobs_used", "blobs", ["used_at"])
    op.create_table(
        "log_pieces",
        sa.Column("task", sa.Text, nullable=False),
        sa.Column("incarnation", sa.Integer, nullable=False),
        sa.Column("begins", sa.BigInteger, nullable=False),
        sa.Column("ends", sa.BigInteger, nullable=False),
        sa.Column("complete", sa.Boolean(create_constraint=False), nullable=False),
        sa.Column("added_at", sa.Float, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("task", "incarnation", "begins", name="log_pieces_pkey"),
    )
    op.create_index("log_pieces_added", "log_pieces", ["added_at"])


def downgrade() -> None:
    op.drop_table("log_pieces")
    op.drop_table("blobs")
