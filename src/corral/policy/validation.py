"""Checks of what a job says, one small function per field. Each returns the refusal, or ``None`` when all is well.

The readers of files, flags and bodies check their own syntax; these hold for every way in.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping

from corral.model.ask import JobAsk
from corral.model.errors import CorralError, InvalidField, MissingField, PathUnsafe, Refusal
from corral.model.job import Fencing
from corral.model.resources import MILLI
from corral.policy.config import (
    ARGUMENT_BYTES_MAX,
    ARRAY_MAX,
    COMMAND_BYTES_MAX,
    DURATION_MAX_S,
    ENTRIES_MAX,
    GRACE_MAX_S,
    INDEX_MAX,
    LEASE_MARGIN_S,
    LEASE_MAX_S,
    LEASE_MIN_S,
    NAME_LENGTH_MAX,
    PATH_LENGTH_MAX,
    PRIORITY_MAX,
    QUANTITY_MAX,
    RANKS_MAX,
    RESTART_COST_MAX_S,
    RESTARTS_MAX,
    SCRIPT_BYTES_MAX,
    AdmissionDefaults,
)
from corral.policy.work import work_refusal

NAME = re.compile(r"[^\W_][\w.@+=:-]*")
"""A letter or digit, then letters, digits and ``. _ @ + = : -``, in any script."""

_REFERENCE = re.compile(r"[0-9.]+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SIGNAL = re.compile(r"[A-Z][A-Z0-9]{1,15}")


def invalid(field: str, message: str, hint: str | None = None, kind: type[CorralError] = InvalidField) -> Refusal:
    """Return the refusal of one field."""
    return Refusal(code=kind.code, message=message, field=field, hint=hint)


def refusals_of(ask: JobAsk, defaults: AdmissionDefaults) -> Iterator[Refusal]:
    """Yield what is wrong with the fields of a job, one by one, without regard to any pool."""
    found = (
        _name(ask.name),
        _command(ask),
        _resources(ask),
        _between("num_nodes", ask.num_nodes, 1, RANKS_MAX),
        _between("priority", ask.priority, -PRIORITY_MAX, PRIORITY_MAX),
        _between("max_restarts", ask.max_restarts, 0, RESTARTS_MAX),
        _seconds("max_duration", ask.max_duration_s, 0.0, DURATION_MAX_S, above=True),
        _seconds("grace", ask.grace_s, 0.0, GRACE_MAX_S),
        _seconds("lease", ask.lease_s, LEASE_MIN_S, LEASE_MAX_S),
        _checkpoint(ask, defaults),
        _seconds("restart_cost", ask.restart_cost_s, 0.0, RESTART_COST_MAX_S),
        work_refusal(ask),
        _array(ask),
        _variables("envs", ask.envs),
        *(_variables(f"array[{i}]", point) for i, point in enumerate(ask.points[:ARRAY_MAX])),
        _path("workdir", ask.workdir),
        _mounts(ask.file_mounts),
        _data(ask.data),
        _entries("after", len(ask.after)),
    )
    return (refusal for refusal in found if refusal is not None)


def _between(field: str, value: int | None, low: int, high: int) -> Refusal | None:
    if value is None or low <= value <= high:
        return None
    return invalid(field, f"must be between {low} and {high}, not {_number(value)}")


def _number(value: float) -> str:
    """Return a number short enough for one line."""
    if isinstance(value, int) and abs(value) < 10**15:
        return str(value)
    try:
        return f"{value:g}"
    except OverflowError:
        return "a number of more than 300 digits"


def _seconds(field: str, value: float | None, low: float, high: float, *, above: bool = False) -> Refusal | None:
    if value is None:
        return None
    if not isinstance(value, int | float) or not math.isfinite(value):
        return invalid(field, "must be a finite number of seconds")
    if value > high or value < low or (above and value <= low):
        least = f"more than {low:g}" if above else f"at least {low:g}"
        return invalid(field, f"must be {least} and at most {high:g} seconds, not {_number(value)}")
    return None


def _name(name: str | None) -> Refusal | None:
    if name is None:
        return None
    if len(name) > NAME_LENGTH_MAX:
        return invalid("name", f"is longer than {NAME_LENGTH_MAX} characters")
    if _REFERENCE.fullmatch(name):
        return invalid("name", f"{name!r} looks like a job's number", "begin the name with a letter")
    if not NAME.fullmatch(name):
        return invalid("name", f"{name!r} is not a name", "letters, digits and . _ - @ + = : without blanks")
    return None


def _command(ask: JobAsk) -> Refusal | None:
    if ask.argv and ask.script is not None:
        return invalid("run", "is given both as a script and as a list of arguments", "keep one of them")
    if not ask.argv and not (ask.script or "").strip():
        return invalid("run", "is missing: there is nothing to run", "say what to run", MissingField)
    if ask.argv and not ask.argv[0]:
        return invalid("run", "names no program", "say what to run", MissingField)
    size = 0
    for word in ask.argv:
        refusal = _text("run", word, ARGUMENT_BYTES_MAX)
        if refusal is not None:
            return refusal
        size += len(word.encode(errors="replace")) + 1
    if size > COMMAND_BYTES_MAX:
        return invalid("run", f"has {size} bytes of arguments, at most {COMMAND_BYTES_MAX} can be passed")
    return _text("run", ask.script, SCRIPT_BYTES_MAX) or _text("setup", ask.setup, SCRIPT_BYTES_MAX)


def _text(field: str, text: str | None, bytes_max: int) -> Refusal | None:
    if text is None:
        return None
    if "\0" in text:
        return invalid(field, "must not hold a NUL byte")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return invalid(field, "is not valid Unicode")
    return invalid(field, f"is longer than {bytes_max} bytes") if size > bytes_max else None


def _resources(ask: JobAsk) -> Refusal | None:
    field, milli = "resources.accelerators", ask.gpu_milli
    if milli < 0:
        return invalid(field, f"must not be negative, but is {_number(milli)} milli-GPUs")
    if milli > QUANTITY_MAX:
        return invalid(field, f"{_number(milli)} milli-GPUs are out of range")
    if milli > MILLI and milli % MILLI:
        return invalid(
            field,
            f"{milli / MILLI:g} GPUs: shares of a device exist below 1 GPU only",
            f"ask for {milli // MILLI} or {milli // MILLI + 1}",
        )
    if ask.gpu_model is not None:
        if milli == 0:
            return invalid(field, f"asks for 0 {ask.gpu_model[:64]}", "say how many, as in H100:1")
        if len(ask.gpu_model) > NAME_LENGTH_MAX or not re.search(r"[A-Za-z0-9]", ask.gpu_model):
            return invalid(field, "is not the name of a device model")
    for name, value in (("resources.cpus", ask.cpus_milli), ("resources.memory", ask.memory_mib)):
        if value is not None and not 0 < value <= QUANTITY_MAX:
            unit = "milli-CPUs" if name == "resources.cpus" else "MiB"
            return invalid(name, f"must be more than 0 and within range, not {_number(value)} {unit}")
    return None


def _checkpoint(ask: JobAsk, defaults: AdmissionDefaults) -> Refusal | None:
    if ask.checkpoint is None:
        return None
    if not _SIGNAL.fullmatch(ask.checkpoint.signal) or ask.checkpoint.signal.startswith("SIG"):
        return invalid("checkpoint.signal", "must be the name of a signal without SIG, as in USR1")
    refusal = _seconds("checkpoint.grace", ask.checkpoint.grace_s, 0.0, LEASE_MAX_S)
    if refusal is None:
        refusal = _path("checkpoint.path", ask.checkpoint.path)
    lease_s = ask.lease_s if ask.lease_s is not None else defaults.lease_s
    fencing = ask.fencing if ask.fencing is not None else defaults.fencing
    if refusal is None and fencing is Fencing.EXCLUSIVE and ask.checkpoint.grace_s + LEASE_MARGIN_S > lease_s:
        return invalid(
            "checkpoint.grace",
            f"{ask.checkpoint.grace_s:g} s and {LEASE_MARGIN_S:g} s of margin do not fit the lease of {lease_s:g} s",
            f"set lease to at least {ask.checkpoint.grace_s + LEASE_MARGIN_S:g}, or shorten the grace",
        )
    return refusal


def _array(ask: JobAsk) -> Refusal | None:
    indices, points = ask.indices, ask.points
    count = len(points) if indices is None else len(indices)
    if count > ARRAY_MAX:
        return invalid("array", f"has {count} elements, more than {ARRAY_MAX}", "submit several jobs")
    if indices is None:
        return None
    if not indices:
        return invalid("array", "has no element")
    if min(indices) < 0 or max(indices) > INDEX_MAX:
        return invalid("array", f"indices must be between 0 and {INDEX_MAX}")
    if len(set(indices)) != len(indices):
        twice = next(index for index, count in Counter(indices).items() if count > 1)
        return invalid("array", f"index {twice} is given twice")
    if points and len(points) != len(indices):
        return invalid("array", f"has {len(indices)} indices but {len(points)} points")
    return None


def _variables(field: str, variables: Mapping[str, str]) -> Refusal | None:
    refusal = _entries(field, len(variables))
    size = 0
    for name, value in variables.items():
        if refusal is not None:
            break
        shown = f"{field}.{name[:64]}"
        if not _VARIABLE.fullmatch(name) or len(name) > NAME_LENGTH_MAX:
            refusal = invalid(shown, "is not a name of an environment variable", "letters, digits and _")
        elif name.upper().startswith("CORRAL_"):
            refusal = invalid(shown, "names that begin with CORRAL_ are corral's own", "choose another name")
        else:
            refusal = _text(shown, value, ARGUMENT_BYTES_MAX - len(name) - 1)
            size += len(name) + len(value) + 2
    if refusal is None and size > COMMAND_BYTES_MAX:
        return invalid(field, f"has {size} characters, at most {COMMAND_BYTES_MAX} can be passed")
    return refusal


def _entries(field: str, count: int) -> Refusal | None:
    return invalid(field, f"has {count} entries, more than {ENTRIES_MAX}") if count > ENTRIES_MAX else None


def _path(field: str, path: str | None) -> Refusal | None:
    if path is None:
        return None
    if "\0" in path:
        return invalid(field, "a path must not hold a NUL byte", kind=PathUnsafe)
    if not path:
        return invalid(field, "is an empty path")
    return _text(field, path, PATH_LENGTH_MAX)


def _mounts(mounts: Mapping[str, str]) -> Refusal | None:
    refusal = _entries("file_mounts", len(mounts))
    for target, source in mounts.items():
        if refusal is not None:
            break
        field = f"file_mounts.{target[:64]}"
        parts = [part for part in target.split("/") if part not in ("", ".")]
        if "\0" in target:
            refusal = invalid("file_mounts", "a path must not hold a NUL byte", kind=PathUnsafe)
        elif target.startswith(("/", "~")):
            refusal = invalid(field, "a mount's target must be relative to the task's directory", kind=PathUnsafe)
        elif ".." in parts:
            refusal = invalid(field, "a mount's target must not contain ..", kind=PathUnsafe)
        elif not parts:
            refusal = invalid(field, "is not a path inside the task's directory", kind=PathUnsafe)
        else:
            refusal = _text(field, target, PATH_LENGTH_MAX) or _path(field, source)
    return refusal


def _data(shards: tuple[str, ...]) -> Refusal | None:
    refusal = _entries("data", len(shards))
    for shard in shards:
        if refusal is not None:
            break
        if not shard or len(shard) > NAME_LENGTH_MAX or "/" in shard or shard in (".", ".."):
            refusal = invalid("data", f"{shard[:64]!r} is not the name of a shard", "a name without slashes")
        else:
            refusal = _text("data", shard, ARGUMENT_BYTES_MAX)
    return refusal
