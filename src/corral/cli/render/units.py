"""Quantities as people read them: durations, sizes, moments in local time."""

from __future__ import annotations

from datetime import datetime, tzinfo
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from corral.model.resources import Amount

MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86400
NOTHING = "-"


def duration(seconds: float | None) -> str:
    """Return a length of time in at most two units: ``0.04s``, ``4.2s``, ``45s``, ``3m12s``, ``2h05m``, ``3d04h``.

    Rounded to what is shown; a negative length (clocks that disagree) is shown as ``0s``, ``None`` as ``-``.
    """
    if seconds is None:
        return NOTHING
    hundredths = round(max(seconds, 0.0) * 100)
    if 0 < hundredths < 100:
        return f"{hundredths / 100:.2f}s"
    tenths = round(max(seconds, 0.0) * 10)
    if 0 < tenths < 100:
        return f"{tenths / 10:.1f}s"
    whole = round(max(seconds, 0.0))
    if whole < MINUTE_S:
        return f"{whole}s"
    if whole < HOUR_S:
        return f"{whole // MINUTE_S}m{whole % MINUTE_S:02d}s"
    minutes = round(whole / MINUTE_S)
    if minutes < DAY_S // MINUTE_S:
        return f"{minutes // 60}h{minutes % 60:02d}m"
    hours = round(whole / HOUR_S)
    return f"{hours // 24}d{hours % 24:02d}h"


def moment(at: float | None, now: float, zone: tzinfo | None = None) -> str:
    """Return a point in time in local time (or ``zone``): the clock today, with the date on other days."""
    if at is None:
        return NOTHING
    here, today = datetime.fromtimestamp(at, zone), datetime.fromtimestamp(now, zone)
    if here.date() == today.date():
        return f"{here:%H:%M:%S}"
    return f"{here:%b %d %H:%M}" if here.year == today.year else f"{here:%Y-%m-%d %H:%M}"


def stamp(at: float | None, zone: tzinfo | None = None) -> str:
    """Return a point in time with its date, whatever day it is."""
    return NOTHING if at is None else f"{datetime.fromtimestamp(at, zone):%Y-%m-%d %H:%M:%S}"


def span(earliest: float, latest: float | None, now: float, zone: tzinfo | None = None) -> str:
    """Return an expected time as a range: ``14:05 to 14:20``; ``by 14:20`` when it may be any moment."""
    first = _minute(earliest, now, zone)
    if latest is None:
        return "at any moment, or much later" if first == "now" else f"not before {first}, maybe much later"
    last = _minute(latest, now, zone)
    if first == last:
        return first
    return f"by {last}" if first == "now" else f"{first} to {last}"


def _minute(at: float, now: float, zone: tzinfo | None) -> str:
    if at <= now:
        return "now"
    here, today = datetime.fromtimestamp(at, zone), datetime.fromtimestamp(now, zone)
    if at - now < 2 * MINUTE_S:
        return f"{here:%H:%M:%S}"
    return f"{here:%H:%M}" if here.date() == today.date() else f"{here:%b %d %H:%M}"


def trimmed(value: float, digits: int) -> str:
    """Return a number with at most ``digits`` decimals and no needless zeros."""
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def milli(amount: int | None) -> str:
    """Return milli-GPUs or milli-cores as units: 2500 is ``2.5``."""
    return NOTHING if amount is None else trimmed(amount / 1000, 3)


def memory(mib: float | None) -> str:
    """Return MiB in the unit that gives a short number: ``512 MiB``, ``79.6 GiB``, ``1.5 TiB``."""
    if mib is None:
        return NOTHING
    value, unit = float(mib), "MiB"
    for larger in ("GiB", "TiB", "PiB"):
        if abs(value) < 1024:
            break
        value, unit = value / 1024, larger
    return f"{trimmed(value, 1)} {unit}"


def of_memory(mib: float | None, total_mib: float) -> str:
    """Return a part of a node's or device's memory in one unit: ``2.9/80 GiB``; unknown is ``-/80 GiB``."""
    divisor, unit = (1024, "GiB") if total_mib >= 1024 else (1, "MiB")
    part = NOTHING if mib is None else trimmed(mib / divisor, 1)
    return f"{part}/{trimmed(total_mib / divisor, 1)} {unit}"


def percent(share: float | None, digits: int = 1) -> str:
    """Return a part of one as percent, ``33.3%``; ``None`` is ``-``."""
    return NOTHING if share is None else f"{share * 100:.{digits}f}%"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return ``1 node`` or ``3 nodes``."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def amount_words(amount: Amount) -> str:
    """Return an amount in words, without what is zero: ``2 GPUs, 8 CPUs, 16 GiB``."""
    parts = []
    if amount.gpu_milli:
        parts.append(f"{milli(amount.gpu_milli)} {'GPU' if amount.gpu_milli == 1000 else 'GPUs'}")
    if amount.cpus_milli:
        parts.append(f"{milli(amount.cpus_milli)} {'CPU' if amount.cpus_milli == 1000 else 'CPUs'}")
    if amount.memory_mib:
        parts.append(memory(amount.memory_mib))
    return ", ".join(parts) or "nothing"


def gpu_hours(hours: float) -> str:
    """Return GPU-hours with a sensible number of digits."""
    if 0 < hours < 0.01:
        return f"{hours:.4f}" if hours >= 0.00005 else "<0.0001"
    return f"{hours:.2f}" if hours < 100 else f"{hours:.0f}"


def gang_name(job: str, gang: int) -> str:
    """Return how commands call a gang: ``12`` for the only or first one, ``12.3`` for a later array element."""
    return f"{job}.{gang}" if gang else job
