"""Several controllers: who leads, which heads there are, what they publish for each other."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("leadership", sa.Column("beat", sa.BigInteger, nullable=False, server_default=sa.text("0")))
    for name in ("holder", "place", "url"):
        op.add_column("leadership", sa.Column(name, sa.Text, nullable=False, server_default=sa.text("''")))
    op.create_table(
        "heads",
        sa.Column("place", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("version", sa.Text, nullable=False),
        sa.Column("token_digest", sa.Text, nullable=False),
        sa.Column("certificate", sa.Text, nullable=False),
        sa.Column("seen_at", sa.Float, nullable=False),
        sa.PrimaryKeyConstraint("place", name="heads_pkey"),
    )
    op.create_table(
        "published",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("value", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("name", name="published_pkey"),
    )


def downgrade() -> None:
    op.drop_table("published")
    op.drop_table("heads")
    with op.batch_alter_table("leadership") as leadership:
        for name in ("url", "place", "holder", "beat"):
            leadership.drop_column(name)
