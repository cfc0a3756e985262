"""Quantities as people write them, and back: durations, memory, CPUs, accelerators, array indices.

Each reader takes text and raises :class:`Unreadable` with one line that says what is wrong.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from corral.model.resources import MILLI

GPUS_MAX = 1_000_000
CPUS_MAX = 1_000_000
MEMORY_MIB_MAX = 2**40
BYTES_MAX = 2**40
DURATION_S_MAX = 10 * 365 * 86_400
INDEX_MAX = 1_000_000_000
ELEMENTS_MAX = 10_000
POINTS_BYTES_MAX = 4 * 1024 * 1024

_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_PARTS = re.compile(rf"({_NUMBER})\s*(weeks?|days?|hours?|hrs?|minutes?|mins?|seconds?|secs?|ms|w|d|h|m|s)\s*")
_SECONDS = {"w": 604_800.0, "d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0}
_CLOCK = re.compile(r"(?:([0-9]+)-)?([0-9]+):([0-9]{1,2}):([0-9]{1,2})")
_MEMORY = re.compile(rf"({_NUMBER})\s*([a-z]*)")
_BYTES: dict[str, int] = {f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)} | {
    f"{letter}{tail}": 1024**power for power, letter in enumerate("kmgt", 1) for tail in ("", "i", "ib")
}
_CPUS = re.compile(rf"({_NUMBER})(m?)")
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_RANGE = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10}))?(?::([0-9]{1,10}))?")
_LENGTH_MAX = 64


class Unreadable(ValueError):
    """A quantity that cannot be read: one line, and a way out where there is one."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        self.message = message
        self.hint = hint
        super().__init__(message)


def read_duration_s(text: str) -> float:
    """Read ``2h30m``, ``90s``, ``90`` (seconds), ``01:30:00`` or ``1-00:00:00`` (days first) as seconds."""
    text = text.strip()
    if len(text) > _LENGTH_MAX:
        raise Unreadable("is too long for a duration", "write it like 2h30m")
    if re.fullmatch(_NUMBER, text):
        return bounded_s(float(text))
    if clock := _CLOCK.fullmatch(text):
        days, hours, minutes, seconds = (int(part or 0) for part in clock.groups())
        return bounded_s(days * 86_400.0 + hours * 3_600.0 + minutes * 60.0 + seconds)
    if re.fullmatch(r"[0-9]+:[0-9]+", text):
        first, second = text.split(":")
        raise Unreadable("is ambiguous", f"write {first}h{second}m or {first}m{second}s")
    position, total = 0, 0.0
    lowered = text.lower()
    while part := _PARTS.match(lowered, position):
        unit = part[2]
        total += float(part[1]) * (0.001 if unit == "ms" else _SECONDS[unit[0]])
        position = part.end()
    if position != len(lowered) or not lowered:
        raise Unreadable("is not a duration", "write it like 2h30m, 90s or 1-00:00:00")
    return bounded_s(total)


def bounded_s(seconds: float) -> float:
    """Return a number of seconds that is finite, not negative and at most ten years."""
    if not math.isfinite(seconds) or seconds < 0:
        raise Unreadable("must not be negative" if seconds < 0 else "must be a finite number of seconds")
    if seconds > DURATION_S_MAX:
        raise Unreadable("is longer than ten years")
    return seconds


def read_memory_mib(text: str) -> int:
    """Read ``32GB`` (10^9), ``512MiB`` (2^20), ``16G`` (2^30) or ``16`` (GiB, as SkyPilot) as MiB, rounded up."""
    text = text.strip().lower()
    match = _MEMORY.fullmatch(text) if len(text) <= _LENGTH_MAX else None
    unit = match[2] if match else ""
    if match is None or (unit and unit not in _BYTES):
        raise Unreadable("is not an amount of memory", "write it like 32GB, 512MiB or 16 (GiB)")
    mib = math.ceil(float(match[1]) * _BYTES[unit or "g"] / 2**20)
    if mib < 1:
        raise Unreadable("must be more than nothing", "leave memory out for the pool's default")
    if mib > MEMORY_MIB_MAX:
        raise Unreadable("is more than a node can have")
    return mib


def read_bytes(text: str) -> int:
    """Read ``10MiB`` (2^20), ``10MB`` (10^6), ``512k`` (2^10) or ``4096`` (bytes) as bytes."""
    text = text.strip().lower()
    match = _MEMORY.fullmatch(text) if len(text) <= _LENGTH_MAX else None
    unit = (match[2] if match else "") or "b"
    if match is None or (unit != "b" and unit not in _BYTES):
        raise Unreadable("is not a size", "write it like 10MiB, 512k or 4096 (bytes)")
    size = float(match[1]) * (_BYTES[unit] if unit != "b" else 1)
    if not size.is_integer() or not 1 <= size <= BYTES_MAX:
        raise Unreadable("must be whole bytes, from 1 to 1 TiB")
    return int(size)


def read_cpus_milli(text: str) -> int:
    """Read ``4``, ``0.5`` or ``500m`` as milli-CPUs."""
    text = text.strip()
    match = _CPUS.fullmatch(text) if len(text) <= _LENGTH_MAX else None
    if match is None:
        plus = text.removesuffix("+")
        hint = f"write {plus}: a job gets exactly what it asks" if plus != text else "write it like 4, 0.5 or 500m"
        raise Unreadable("is not a number of CPUs", hint)
    milli = _milli(match[1]) / (MILLI if match[2] else 1)
    if not milli.is_integer() or milli < 1:
        raise Unreadable("must be at least 1m (a thousandth of a CPU) and whole thousandths")
    if milli > CPUS_MAX * MILLI:
        raise Unreadable("is more than a node can have")
    return int(milli)


def read_gpus_milli(text: str) -> int:
    """Read a number of devices, ``8`` or a share ``0.5``, as milli-GPUs."""
    text = text.strip()
    if len(text) > _LENGTH_MAX or not re.fullmatch(_NUMBER, text):
        raise Unreadable("is not a number of devices", "write it like 8, 0.5, H100:8 or H100:0.5")
    milli = _milli(text)
    if milli > GPUS_MAX * MILLI:
        raise Unreadable("is more than a node can have")
    if not milli.is_integer():
        raise Unreadable("must be whole thousandths of a device")
    if milli > MILLI and milli % MILLI:
        raise Unreadable("must be a share below 1 or a whole number of devices")
    return int(milli)


def _milli(number: str) -> float:
    """Return a decimal number in thousandths: 1.001 is 1001, though its nearest double times 1000 is a little less."""
    return round(float(number) * MILLI * MILLI) / MILLI


def read_model(text: str) -> str:
    """Read a device model's name."""
    model = text.strip()
    if not _MODEL.fullmatch(model):
        raise Unreadable("is not a device model and number", "write it like H100:8")
    return model


def read_indices(text: str) -> tuple[int, ...]:
    """Read ``0-23``, ``0-23:2``, ``1,3,5-7`` as the indices in the order written; a single number is not a range."""
    found: list[int] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            limit = "%" in part
            raise Unreadable(
                "limits how many run at once, which corral does not" if limit else "is not a range of indices",
                "leave out the part from %: shares and quotas decide" if limit else "write it like 0-23, 0-23:2 or 1,3",
            )
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if step == 0 or last < first:
            raise Unreadable("counts backwards or in steps of 0", "write the smaller index first")
        indices = range(first, last + 1, step)
        if len(found) + len(indices) > ELEMENTS_MAX:
            raise Unreadable(f"has more than {ELEMENTS_MAX:,} elements")
        found.extend(indices)
    return checked_indices(found)


def checked_indices(indices: Sequence[int]) -> tuple[int, ...]:
    """Return indices that are in range, distinct and not too many."""
    if not indices:
        raise Unreadable("has no elements")
    if len(indices) > ELEMENTS_MAX:
        raise Unreadable(f"has more than {ELEMENTS_MAX:,} elements")
    if min(indices) < 0 or max(indices) > INDEX_MAX:
        raise Unreadable(f"an index must be between 0 and {INDEX_MAX:,}")
    if len(set(indices)) != len(indices):
        raise Unreadable("names an index twice")
    return tuple(indices)


def written_gpus(gpu_milli: int) -> str:
    """Return milli-GPUs as a number of devices: ``8`` or ``0.5``."""
    return f"{gpu_milli / MILLI:g}" if gpu_milli % MILLI else str(gpu_milli // MILLI)


def written_cpus(cpus_milli: int) -> str:
    """Return what :func:`read_cpus_milli` reads back."""
    return f"{cpus_milli}m" if cpus_milli % MILLI else str(cpus_milli // MILLI)


def written_memory(memory_mib: int) -> str:
    """Return what :func:`read_memory_mib` reads back."""
    return f"{memory_mib}MiB" if memory_mib % 1024 else f"{memory_mib // 1024}GiB"
