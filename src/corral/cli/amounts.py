"""Amounts and times on the command line of administrators."""

from __future__ import annotations

import math
import re
from datetime import datetime

from corral.model.errors import InvalidField

MILLI = 1000
AMOUNT_MAX = 10**9
NONE = "none"


def milli_of(text: str | None, flag: str, before: int | None) -> int | None:
    """Return GPUs or CPUs in thousandths: ``before`` when not given, ``None`` (not set) for ``none``."""
    if text is None:
        return before
    if text.strip().lower() == NONE:
        return None
    if not re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,12})?", text.strip()):
        raise InvalidField(f"{text!r} is not an amount", field=flag, hint="write a number such as 8 or 0.5, or none")
    milli = float(text) * MILLI
    if milli > AMOUNT_MAX * MILLI:
        raise InvalidField(f"{text} is more than a pool can have", field=flag)
    if not math.isclose(milli, round(milli), abs_tol=1e-6):
        raise InvalidField(f"{text} is finer than a thousandth", field=flag)
    return round(milli)


def moment_of(text: str, flag: str, now: float) -> float:
    """Return a time in seconds since the epoch: ``now``, an age such as ``7d``, or a local date and time (ISO 8601)."""
    from corral.wire.units import Unreadable, read_duration_s

    if text == "now":
        return now
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        pass
    try:
        return now - read_duration_s(text)
    except Unreadable:
        hint = "write an age like 7d, or a date like 2026-01-31 or 2026-01-31T08:00"
        raise InvalidField(f"{text!r} is no time", field=flag, hint=hint) from None


def duration_of(text: str, flag: str) -> float:
    """Return a duration such as ``7d`` or ``2h30m`` in seconds."""
    from corral.wire.units import Unreadable, read_duration_s

    try:
        return read_duration_s(text)
    except Unreadable as error:
        raise InvalidField(f"{text!r} {error.args[0]}", field=flag, hint="write it like 7d, 2h30m or 90s") from None
