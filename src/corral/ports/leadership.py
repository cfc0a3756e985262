"""Who of several controllers leads: what they ask of the database, and what it answers.

One row says who leads. It is changed by compare-and-set alone, and judged by no clock but those of the controllers: a
holder counts its lease from the *sending* of its last renewal, a standby from the *answer* in which it first saw the
row as it still is. So a step of the database's wall clock makes nobody a leader too early.
"""

from __future__ import annotations

from typing import Protocol

import msgspec


class Candidate(msgspec.Struct, frozen=True):
    """A controller that may lead.

    ``holder`` is of this run alone. ``place`` is of its state directory on this boot of its machine, in which only one
    controller lives at a time: who finds a holder of its own place has survived it. ``url`` is where it answers.
    """

    holder: str
    place: str = ""
    url: str = ""


class LeaderRow(msgspec.Struct, frozen=True):
    """The row: ``beat`` counts its changes; without a ``holder`` nobody leads, because the last one resigned."""

    epoch: int = 0
    beat: int = 0
    holder: str = ""
    place: str = ""
    url: str = ""


class Look(msgspec.Struct, frozen=True):
    """Read the row."""


class Claim(msgspec.Struct, frozen=True):
    """Become the leader, with the next epoch, if the row is still as it was ``seen``."""

    seen: LeaderRow


class Renew(msgspec.Struct, frozen=True):
    """Go on leading if the row still names this holder and ``epoch``."""

    epoch: int


class Resign(msgspec.Struct, frozen=True):
    """Lead no longer; whoever looks next may claim at once."""

    epoch: int


Ask = Look | Claim | Renew | Resign


class Answer(msgspec.Struct, frozen=True):
    """The row after an ask, and whether the ask was done."""

    row: LeaderRow
    done: bool


class Head(msgspec.Struct, frozen=True):
    """A machine that has a controller. ``certificate`` is the PEM text that it answers with, empty without TLS.

    ``token_digest`` is of the admin token in its state directory: the leader makes it known to the pool, for whoever
    may write in the database is an administrator. ``seen_s`` is how long ago it was there, by the database's clock.
    """

    place: str
    name: str
    url: str
    version: str
    token_digest: str = ""
    certificate: str = ""
    seen_s: float = 0.0


class LeaderStore(Protocol):
    """The database as controllers see it that want to lead. All methods block. Errors: those of ``ports.store.Store``.

    After ``StoreAway`` an ask may have been done or not; the next answer tells.
    """

    def campaign(self, me: Candidate, ask: Ask) -> Answer:
        """Do one ask in one transaction."""

    def appear(self, head: Head) -> tuple[Head, ...]:
        """Say that a head is there, and return all that were there within a day, by name."""

    def published(self) -> dict[str, str]:
        """Return what leaders have published for all heads, such as the address of the engine."""

    def publish(self, epoch: int, name: str, value: str) -> None:
        """Publish a value, or remove it when empty. Raises ``StoreConflict`` when ``epoch`` leads no longer."""
