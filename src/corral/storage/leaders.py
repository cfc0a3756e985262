"""Who leads, which heads there are and what they publish, on SQLAlchemy Core."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from sqlalchemy import Connection, Engine, Update, delete, select, update

from corral.model.errors import StoreConflict
from corral.ports.leadership import Answer, Ask, Candidate, Claim, Head, LeaderRow, Look, Renew, Resign
from corral.storage.backend import FAULTS, Backend
from corral.storage.schema import heads, leadership, published

HEAD_KEPT_S: Final = 86_400.0

_of = leadership.c
_row = select(_of.epoch, _of.beat, _of.holder, _of.place, _of.url).where(_of.id == 1)
_head_columns = (heads.c.place, heads.c.name, heads.c.url, heads.c.version, heads.c.token_digest, heads.c.certificate)


class SqlLeaderStore:
    """``corral.ports.leadership.LeaderStore`` on any backend.

    Its transactions run on connections of their own: a renewal never waits for the store's writer.
    """

    def __init__(self, backend: Backend, engine: Callable[[], Engine]) -> None:
        self._backend = backend
        self._engine = engine

    @contextmanager
    def _transaction(self, doing: str) -> Iterator[Connection]:
        try:
            with self._engine().connect() as plain:
                connection = self._backend.writes(plain, prompt=True)
                with connection.begin():
                    yield connection
        except FAULTS as error:
            raise self._backend.fault(error, doing) from error

    def campaign(self, me: Candidate, ask: Ask) -> Answer:
        """Do one ask in one transaction."""
        with self._transaction("ask who leads in") as connection:
            if isinstance(ask, Claim):
                # Who claims has watched the row for a whole lease: what holds it now is of no use to anybody.
                self._backend.clear(connection)
            change = _change(me, ask)
            done = True if change is None else connection.execute(change).rowcount == 1
            return Answer(LeaderRow(*connection.execute(_row).one()), done)

    def appear(self, head: Head) -> tuple[Head, ...]:
        """Say that a head is there, and return all that were there within a day, by name."""
        values: dict[str, Any] = {column.name: getattr(head, column.name) for column in _head_columns}
        with self._transaction("register in") as connection:
            now = connection.scalar(select(self._backend.now()))
            assert isinstance(now, float)
            statement = self._backend.insert(heads).values(**values, seen_at=now)
            connection.execute(
                statement.on_conflict_do_update(
                    index_elements=[heads.c.place],
                    set_={**{k: v for k, v in values.items() if k != "place"}, "seen_at": now},
                )
            )
            connection.execute(delete(heads).where(heads.c.seen_at < now - HEAD_KEPT_S))
            found = connection.execute(select(*_head_columns, heads.c.seen_at).order_by(heads.c.name, heads.c.place))
            return tuple(Head(*row[:-1], seen_s=now - row[-1]) for row in found)

    def published(self) -> dict[str, str]:
        """Return what leaders have published for all heads."""
        with self._transaction("read") as connection:
            return {row.name: row.value for row in connection.execute(select(published))}

    def publish(self, epoch: int, name: str, value: str) -> None:
        """Publish a value, or remove it when empty. Raises ``StoreConflict`` when ``epoch`` leads no longer."""
        statement = self._backend.insert(published).values(name=name, value=value)
        with self._transaction("publish in") as connection:
            # The row stays locked to the end of the transaction: whoever claims comes before or after it.
            held = update(leadership).where(_of.id == 1, _of.epoch == epoch).values(epoch=epoch)
            if connection.execute(held).rowcount != 1:
                raise StoreConflict(f"another controller leads: epoch {epoch} is over")
            if not value:
                connection.execute(delete(published).where(published.c.name == name))
                return
            connection.execute(
                statement.on_conflict_do_update(index_elements=[published.c.name], set_={"value": value})
            )


def _change(me: Candidate, ask: Ask) -> Update | None:
    changed = update(leadership).values(beat=_of.beat + 1)
    match ask:
        case Look():
            return None
        case Claim(seen):
            row = {"epoch": _of.epoch + 1, "holder": me.holder, "place": me.place, "url": me.url}
            return changed.where(_of.id == 1, _of.epoch == seen.epoch, _of.beat == seen.beat).values(**row)
        case Renew(epoch):
            return changed.where(_of.id == 1, _of.epoch == epoch, _of.holder == me.holder)
        case Resign(epoch):
            held = changed.where(_of.id == 1, _of.epoch == epoch, _of.holder == me.holder)
            return held.values(holder="", place="", url="")
