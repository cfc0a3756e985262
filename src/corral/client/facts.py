"""Answers that need more than one decoding step: journaled facts and tokens."""

from __future__ import annotations

from collections.abc import Generator

import msgspec

from corral.client.calls import Caller, decoded
from corral.client.follow import events
from corral.model.events import FactCodec
from corral.model.ids import TenantId
from corral.model.tenant import Role, Token
from corral.ports.store import JournalEntry


class _Entry(msgspec.Struct, frozen=True):
    seq: int
    epoch: int
    fact: msgspec.Raw

    def known(self) -> list[JournalEntry]:
        """Return the entry, or nothing for a kind that only a newer version knows."""
        try:
            return [JournalEntry(self.seq, self.epoch, FactCodec.decode(bytes(self.fact)))]
        except msgspec.ValidationError:
            return []


class _Entries(msgspec.Struct, frozen=True):
    entries: tuple[_Entry, ...]


class _Token(msgspec.Struct, frozen=True):
    id: str
    tenant: TenantId
    role: Role
    created_at: float
    label: str

    def model(self) -> Token:
        """Return the token of the model, its digest empty."""
        return Token(self.id, "", self.tenant, self.role, self.created_at, self.label)


class _Tokens(msgspec.Struct, frozen=True):
    tokens: tuple[_Token, ...]


class _Issued(msgspec.Struct, frozen=True):
    token: _Token
    secret: str


def entries_of(body: bytes) -> list[JournalEntry]:
    """Return the facts of a history."""
    return [known for entry in decoded(body, _Entries).entries for known in entry.known()]


def follow_facts(caller: Caller, ref: str | None, after_seq: int | None) -> Generator[JournalEntry]:
    """Yield facts as they happen."""
    last_id = None if after_seq is None else str(after_seq)
    for _, _, data in events(caller, "/events", {"job": ref}, last_id):
        yield from decoded(data, _Entry).known()


def tokens_of(body: bytes) -> tuple[Token, ...]:
    """Return a list of tokens."""
    return tuple(token.model() for token in decoded(body, _Tokens).tokens)


def issued_token_of(body: bytes) -> tuple[Token, str]:
    """Return a new token and its secret."""
    issued = decoded(body, _Issued)
    return issued.token.model(), issued.secret
