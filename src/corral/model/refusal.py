"""An expected "no" as a value, and what kinds of mistakes and faults there are."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Category(StrEnum):
    """What kind of mistake or fault an error is."""

    USAGE = "usage"
    NOT_FOUND = "not-found"
    DENIED = "denied"
    CONFLICT = "conflict"
    UNAVAILABLE = "unavailable"
    FAULT = "fault"


class Refusal(msgspec.Struct, frozen=True):
    """An expected "no": the stable ``code`` of the error class, one line of text, the field and a way out.

    ``where`` is the place in a file, ``path:line:column`` (both from 1).
    """

    code: str
    message: str
    field: str | None = None
    hint: str | None = None
    where: str | None = None

    def line(self) -> str:
        """Return the refusal as the one line a person reads."""
        places = "".join(f"{place}: " for place in (self.where, self.field) if place)
        hint = f" ({self.hint})" if self.hint else ""
        return f"{places}{self.message}{hint}"
