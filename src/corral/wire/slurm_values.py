"""Values of sbatch's options. Each reader raises :class:`corral.wire.units.Unreadable`."""

from __future__ import annotations

import math
import re

from corral.wire import units

_TIME = re.compile(r"(?:([0-9]+)-)?([0-9]+)(?::([0-9]+))?(?::([0-9]+))?")
_MEMORY = re.compile(r"([0-9]+(?:\.[0-9]+)?)([KMGT]?)B?", re.IGNORECASE)
_MIB = {"K": 1 / 1024, "M": 1.0, "": 1.0, "G": 1024.0, "T": 1024.0**2}
_DEPENDENCY = {"afterok": "succeeded", "afterany": "ended", "afternotok": "failed"}


def read_time_s(text: str) -> float | None:
    """Read a time limit of sbatch: minutes, mm:ss, hh:mm:ss, d-hh, d-hh:mm or d-hh:mm:ss; ``None`` is unlimited."""
    if text.upper() in {"UNLIMITED", "INFINITE", "0"}:
        return None
    match = _TIME.fullmatch(text) if len(text) <= 64 else None
    if match is None:
        raise units.Unreadable("is not a time limit", "write it like 90 (minutes), 2:30:00 or 1-00:00:00")
    days, *rest = match.groups()
    numbers = [int(part) for part in rest if part is not None]
    if days is not None:
        hours, minutes, seconds = (*numbers, 0, 0)[:3]
        return units.bounded_s(int(days) * 86_400.0 + hours * 3_600.0 + minutes * 60.0 + seconds)
    if len(numbers) == 3:
        return units.bounded_s(numbers[0] * 3_600.0 + numbers[1] * 60.0 + numbers[2])
    minutes, seconds = (*numbers, 0)[:2]
    return units.bounded_s(minutes * 60.0 + seconds)


def read_memory_mib(text: str) -> int:
    """Read an amount of memory in MiB unless it has a unit (K, M, G, T: powers of 1024), rounded up."""
    match = _MEMORY.fullmatch(text) if len(text) <= 64 else None
    if match is None:
        raise units.Unreadable("is not an amount of memory", "write it like 64G or 64000 (MiB)")
    mib = math.ceil(float(match[1]) * _MIB[match[2].upper()])
    if mib > units.MEMORY_MIB_MAX:
        raise units.Unreadable("is more than a node can have")
    return mib


def read_devices(text: str) -> tuple[str | None, int]:
    """Read ``4`` or ``h100:4`` as (model or ``None``, number)."""
    model, _, count = text.rpartition(":")
    if not count.isascii() or not count.isdigit() or len(count) > 6:
        raise units.Unreadable("is not a number of devices", "write it like 4 or h100:4")
    return (units.read_model(model) if model else None), int(count)


def read_gres(text: str) -> tuple[str | None, int] | None:
    """Read the devices of ``gpu:h100:4,license:1``; ``None`` when it names none."""
    for part in text.split(","):
        words = re.sub(r"\(.*\)$", "", part).split(":")
        if words[0] in {"gpu", "gres/gpu"}:
            counted = words[1:] if words[-1].isdigit() else [*words[1:], "1"]
            return read_devices(":".join(counted))
    return None


def read_after(text: str) -> dict[str, str]:
    """Read ``afterok:12:13,afterany:14`` as what each job has to come to."""
    found: dict[str, str] = {}
    for part in text.split(","):
        kind, *jobs = part.split(":")
        if kind not in _DEPENDENCY or not jobs or "?" in text:
            raise units.Unreadable("is a dependency that corral does not have", "afterok, afterany and afternotok")
        found |= dict.fromkeys(jobs, _DEPENDENCY[kind])
    return found


def read_signal(text: str) -> dict[str, object]:
    """Read ``[B:]USR1@60`` as a checkpoint: the signal and its seconds of grace."""
    name, _, seconds = text.rpartition(":")[2].partition("@")
    if not (seconds or "60").isdigit():
        raise units.Unreadable("is not a signal and a time", "write it like USR1@60")
    return {"signal": name, "grace": int((seconds or "60")[:9])}
