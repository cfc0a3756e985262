"""The tables of the store, for SQLite and PostgreSQL alike.

``journal.crc`` is the CRC-32 of a row's payload and place (see :mod:`corral.storage.rows`): SQLite has no page
checksums, so a flipped bit would otherwise be replayed as a fact. ``leadership`` holds one row; its ``last_seq`` is
what compare-and-append compares, and what a start holds against the journal's end. It says too who leads (see
:mod:`corral.ports.leadership`): an append waits for a claim that is being written, and is refused after it. Times are
seconds since the epoch.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    text,
)

REVISIONS: Final = ("0001", "0002", "0003")
"""Every schema revision of every release, oldest first; the last is what this code reads and writes."""

HEAD: Final = REVISIONS[-1]
APPLICATION: Final = "corral"
VERSION_TABLE: Final = "alembic_version"

# SQLite keeps rows in the order of a key only if its type is exactly INTEGER (64 bits there).
_Sequence = BigInteger().with_variant(Integer(), "sqlite")

metadata = MetaData()

meta = Table(
    "meta",
    metadata,
    Column("key", Text, nullable=False),
    Column("value", Text, nullable=False),
    PrimaryKeyConstraint("key", name="meta_pkey"),
)

leadership = Table(
    "leadership",
    metadata,
    Column("id", Integer, nullable=False, autoincrement=False),
    Column("epoch", BigInteger, nullable=False),
    Column("last_seq", BigInteger, nullable=False),
    Column("beat", BigInteger, nullable=False, server_default=text("0")),
    Column("holder", Text, nullable=False, server_default=text("''")),
    Column("place", Text, nullable=False, server_default=text("''")),
    Column("url", Text, nullable=False, server_default=text("''")),
    PrimaryKeyConstraint("id", name="leadership_pkey"),
)

heads = Table(
    "heads",
    metadata,
    Column("place", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("url", Text, nullable=False),
    Column("version", Text, nullable=False),
    Column("token_digest", Text, nullable=False),
    Column("certificate", Text, nullable=False),
    Column("seen_at", Float, nullable=False),
    PrimaryKeyConstraint("place", name="heads_pkey"),
)

published = Table(
    "published",
    metadata,
    Column("name", Text, nullable=False),
    Column("value", Text, nullable=False),
    PrimaryKeyConstraint("name", name="published_pkey"),
)

journal = Table(
    "journal",
    metadata,
    Column("seq", _Sequence, nullable=False, autoincrement=False),
    Column("epoch", BigInteger, nullable=False),
    Column("at", Float, nullable=False),
    Column("kind", Text, nullable=False),
    Column("job", Text),
    Column("crc", BigInteger, nullable=False),
    Column("payload", LargeBinary, nullable=False),
    PrimaryKeyConstraint("seq", name="journal_pkey"),
)
Index("journal_job", journal.c.job, journal.c.seq)

snapshots = Table(
    "snapshots",
    metadata,
    Column("seq", _Sequence, nullable=False, autoincrement=False),
    Column("checksum", Text, nullable=False),
    Column("data", LargeBinary, nullable=False),
    PrimaryKeyConstraint("seq", name="snapshots_pkey"),
)

finished_jobs = Table(
    "finished_jobs",
    metadata,
    Column("number", _Sequence, nullable=False, autoincrement=False),
    Column("id", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("queue", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("user", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("submitted_at", Float, nullable=False),
    Column("started_at", Float),
    Column("ended_at", Float, nullable=False),
    Column("gangs", Integer, nullable=False),
    Column("restarts", Integer, nullable=False),
    Column("moves", Integer, nullable=False),
    Column("used_gpu_milli_s", Float, nullable=False),
    Column("lost_gpu_milli_s", Float, nullable=False),
    Column("idle_share", Float),
    Column("idempotency_key", Text),
    Column("request_digest", Text),
    Column("ranks", Integer, nullable=False),
    Column("gpu_milli", Integer, nullable=False),
    Column("gpu_model", Text),
    Column("is_array", Boolean(create_constraint=False), nullable=False),
    Column("exit_code", Integer),
    Column("exit_cause", Text),
    Column("message", Text, nullable=False),
    PrimaryKeyConstraint("number", name="finished_jobs_pkey"),
)
Index("finished_jobs_id", finished_jobs.c.id, unique=True)
Index("finished_jobs_tenant", finished_jobs.c.tenant, finished_jobs.c.number)
Index("finished_jobs_name", finished_jobs.c.name, finished_jobs.c.number)
Index("finished_jobs_ended", finished_jobs.c.ended_at)

# Apart from the rows that lists read, so that a page of a thousand jobs never touches a thousand documents.
finished_documents = Table(
    "finished_documents",
    metadata,
    Column("number", _Sequence, nullable=False, autoincrement=False),
    Column("crc", BigInteger, nullable=False),
    Column("document", LargeBinary, nullable=False),
    PrimaryKeyConstraint("number", name="finished_documents_pkey"),
    ForeignKeyConstraint(["number"], ["finished_jobs.number"], name="finished_documents_number", ondelete="CASCADE"),
)

usage_hours = Table(
    "usage_hours",
    metadata,
    Column("tenant", Text, nullable=False),
    Column("hour", BigInteger, nullable=False),
    Column("gpu_milli_s", Float, nullable=False),
    Column("cpus_milli_s", Float, nullable=False),
    Column("lost_gpu_milli_s", Float, nullable=False),
    PrimaryKeyConstraint("tenant", "hour", name="usage_hours_pkey"),
)
Index("usage_hours_hour", usage_hours.c.hour)

# Used where several controllers share the database; one alone keeps files in directories.
blobs = Table(
    "blobs",
    metadata,
    Column("name", Text, nullable=False),
    Column("data", LargeBinary, nullable=False),
    Column("used_at", Float, nullable=False),
    PrimaryKeyConstraint("name", name="blobs_pkey"),
)
Index("blobs_used", blobs.c.used_at)

log_pieces = Table(
    "log_pieces",
    metadata,
    Column("task", Text, nullable=False),
    Column("incarnation", Integer, nullable=False),
    Column("begins", BigInteger, nullable=False),
    Column("ends", BigInteger, nullable=False),
    Column("complete", Boolean(create_constraint=False), nullable=False),
    Column("added_at", Float, nullable=False),
    Column("data", LargeBinary, nullable=False),
    PrimaryKeyConstraint("task", "incarnation", "begins", name="log_pieces_pkey"),
)
Index("log_pieces_added", log_pieces.c.added_at)
