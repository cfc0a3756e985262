"""The first schema: journal, snapshots, leadership, finished jobs, usage."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

SEQUENCE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    meta = op.create_table(
        "meta",
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("value", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("key", name="meta_pkey"),
    )
    leadership = op.create_table(
        "leadership",
        sa.Column("id", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("last_seq", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="leadership_pkey"),
    )
    op.create_table(
        "journal",
        sa.Column("seq", SEQUENCE, nullable=False, autoincrement=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("job", sa.Text),
        sa.Column("crc", sa.BigInteger, nullable=False),
        sa.Column("payload", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("seq", name="journal_pkey"),
    )
    op.create_index("journal_job", "journal", ["job", "seq"])
    op.create_table(
        "snapshots",
        sa.Column("seq", SEQUENCE, nullable=False, autoincrement=False),
        sa.Column("checksum", sa.Text, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("seq", name="snapshots_pkey"),
    )
    _finished_and_usage()
    op.bulk_insert(meta, [{"key": "application", "value": "corral"}])
    op.bulk_insert(leadership, [{"id": 1, "epoch": 0, "last_seq": 0}])


def _finished_and_usage() -> None:
    op.create_table(
        "finished_jobs",
        sa.Column("number", SEQUENCE, nullable=False, autoincrement=False),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("queue", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("user", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("submitted_at", sa.Float, nullable=False),
        sa.Column("started_at", sa.Float),
        sa.Column("ended_at", sa.Float, nullable=False),
        sa.Column("gangs", sa.Integer, nullable=False),
        sa.Column("restarts", sa.Integer, nullable=False),
        sa.Column("moves", sa.Integer, nullable=False),
        sa.Column("used_gpu_milli_s", sa.Float, nullable=False),
        sa.Column("lost_gpu_milli_s", sa.Float, nullable=False),
        sa.Column("idle_share", sa.Float),
        sa.Column("idempotency_key", sa.Text),
        sa.Column("request_digest", sa.Text),
        sa.Column("ranks", sa.Integer, nullable=False),
        sa.Column("gpu_milli", sa.Integer, nullable=False),
        sa.Column("gpu_model", sa.Text),
        sa.Column("is_array", sa.Boolean(create_constraint=False), nullable=False),
        sa.Column("exit_code", sa.Integer),
        sa.Column("exit_cause", sa.Text),
        sa.Column("message", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("number", name="finished_jobs_pkey"),
    )
    op.create_index("finished_jobs_id", "finished_jobs", ["id"], unique=True)
    op.create_index("finished_jobs_tenant", "finished_jobs", ["tenant", "number"])
    op.create_index("finished_jobs_name", "finished_jobs", ["name", "number"])
    op.create_index("finished_jobs_ended", "finished_jobs", ["ended_at"])
    op.create_table(
        "finished_documents",
        sa.Column("number", SEQUENCE, nullable=False, autoincrement=False),
        sa.Column("crc", sa.BigInteger, nullable=False),
        sa.Column("document", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("number", name="finished_documents_pkey"),
        sa.ForeignKeyConstraint(
            ["number"], ["finished_jobs.number"], name="finished_documents_number", ondelete="CASCADE"
        ),
    )
    op.create_table(
        "usage_hours",
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("hour", sa.BigInteger, nullable=False),
        sa.Column("gpu_milli_s", sa.Float, nullable=False),
        sa.Column("cpus_milli_s", sa.Float, nullable=False),
        sa.Column("lost_gpu_milli_s", sa.Float, nullable=False),
        sa.PrimaryKeyConstraint("tenant", "hour", name="usage_hours_pkey"),
    )
    op.create_index("usage_hours_hour", "usage_hours", ["hour"])


def downgrade() -> None:
    for name in (
        "usage_hours",
        "finished_documents",
        "finished_jobs",
        "snapshots",
        "journal",
        "leadership",
        "meta",
    ):
        op.drop_table(name)
