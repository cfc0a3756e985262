"""The journal, its snapshots and the relational rows beside it, on SQLAlchemy Core."""
