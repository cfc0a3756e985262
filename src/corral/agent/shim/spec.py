"""``spec.json``: everything that a shim knows about its task, checked before anything is forked."""
# ruff: noqa: PTH117 -- a shim is forked from a process that never loads pathlib

from __future__ import annotations

import json
import os
import resource
import signal
from typing import Any, NamedTuple

from corral.agent.shim.task_cgroup import ROLES

SPEC_BYTES_MAX = 4 << 20
# sockaddr_un.sun_path has 108 bytes, the final NUL included (unix(7)).
SOCKET_PATH_BYTES_MAX = 107


class SpecError(ValueError):
    """The specification is wrong; the text names the field."""


class SetupSpec(NamedTuple):
    """A script that runs once for all tasks that name the same ``marker``.

    With ``cwd`` it runs there, in a directory of which the task's own is a copy (see ``setup_result``).
    """

    script: str
    marker: str
    cwd: str | None = None


class LeaseSpec(NamedTuple):
    """The file with the deadline (decimal CLOCK_BOOTTIME seconds) and what happens around it."""

    path: str
    checkpoint_before_s: float
    freeze_max_s: float


class TaskSpec(NamedTuple):
    """One incarnation of a task. Times in seconds, sizes in bytes unless the name says otherwise.

    ``rlimits`` are (resource, soft, hard) as setrlimit(2) takes them; in JSON ``{"NOFILE": [1024, 4096]}``, -1 for
    unlimited. What is not named stays as the fork server has it.
    """

    task: str
    incarnation: int
    argv: tuple[str, ...] | None
    script: str | None
    setup: SetupSpec | None
    env: dict[str, str]
    cwd: str
    log_max_bytes: int
    log_files: int
    max_duration_s: float | None
    grace_s: float
    orphan_grace_s: float
    checkpoint_signal: int | None
    checkpoint_grace_s: float
    lease: LeaseSpec | None
    cpus: tuple[int, ...] | None
    cgroup: dict[str, Any] | None
    memory_mib: int | None
    notify: str | None
    oom_score_adj: int
    umask: int
    rlimits: tuple[tuple[int, int, int], ...]

    @property
    def marker(self) -> str:
        """Return the value of CORRAL_TASK: ``<task>.<incarnation>``."""
        return f"{self.task}.{self.incarnation}"


class _Fields:
    """Takes checked values out of a JSON object and, at the end, refuses what nobody took."""

    def __init__(self, raw: object, where: str) -> None:
        if not isinstance(raw, dict):
            raise SpecError(f"{where or 'spec'} must be an object")
        self._raw = dict(raw)
        self._where = f"{where}." if where else ""

    def name(self, field: str) -> str:
        return f"{self._where}{field}"

    def has(self, field: str) -> bool:
        return field in self._raw

    def get(self, field: str, default: object = None) -> Any:
        return self._raw.pop(field, default)

    def text(self, field: str) -> str:
        value = self.get(field)
        if not isinstance(value, str) or "\0" in value:
            raise SpecError(f"{self.name(field)} must be a string without NUL")
        return value

    def optional_text(self, field: str) -> str | None:
        return self.text(field) if self._raw.get(field) is not None else self.get(field)

    def path(self, field: str) -> str:
        value = self.text(field)
        if not os.path.isabs(value):
            raise SpecError(f"{self.name(field)} must be an absolute path")
        return value

    def number(self, field: str, default: float | None = None) -> float:
        value = self.get(field, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise SpecError(f"{self.name(field)} must be a number that is not negative")
        return float(value)

    def optional_number(self, field: str) -> float | None:
        return self.number(field) if self._raw.get(field) is not None else self.get(field)

    def integer(self, field: str, default: int | None = None, *, low: int = 0, high: int = 1 << 53) -> int:
        value = self.get(field, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise SpecError(f"{self.name(field)} must be an integer from {low} to {high}")
        return value

    def optional_integer(self, field: str, *, low: int = 0) -> int | None:
        return self.integer(field, low=low) if self._raw.get(field) is not None else self.get(field)

    def finish(self) -> None:
        if self._raw:
            raise SpecError(f"unknown field {self.name(min(map(str, self._raw)))}")


def _arguments(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(text, str) and "\0" not in text for text in value):
        raise SpecError("argv must be a list of strings without NUL")
    if not value or not value[0]:
        raise SpecError("argv must begin with the name of a program")
    return tuple(value)


def _environment(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise SpecError("env must be an object")
    for name, content in value.items():
        if not isinstance(content, str) or "\0" in content or not name or "=" in name or "\0" in name:
            raise SpecError(f"env: {name!r} is not a variable that a process can have")
    return value


def _signal_number(name: object) -> int | None:
    if name is None:
        return None
    if isinstance(name, str):
        full = name if name.startswith("SIG") else f"SIG{name}"
        if full in signal.Signals.__members__:
            return int(signal.Signals[full])
    raise SpecError(f"checkpoint_signal: {name!r} is no signal of this system")


def _cpus(value: object) -> tuple[int, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not value or not all(type(cpu) is int and cpu >= 0 for cpu in value):
        raise SpecError("cpus must be a list of CPU numbers, and not empty")
    return tuple(value)


def _setup(raw: object) -> SetupSpec | None:
    if raw is None:
        return None
    fields = _Fields(raw, "setup")
    script, marker = fields.text("script"), fields.path("marker")
    setup = SetupSpec(script, marker, fields.path("cwd") if fields.has("cwd") else None)
    fields.finish()
    return setup


def _lease(raw: object) -> LeaseSpec | None:
    if raw is None:
        return None
    fields = _Fields(raw, "lease")
    lease = LeaseSpec(fields.path("path"), fields.number("checkpoint_before_s"), fields.number("freeze_max_s"))
    fields.finish()
    return lease


def _rlimits(raw: object) -> tuple[tuple[int, int, int], ...]:
    if raw is None:
        return ()
    if not isinstance(raw, dict):
        raise SpecError("rlimits must be an object")
    found = []
    for name, pair in raw.items():
        number = getattr(resource, f"RLIMIT_{name}", None)
        if not isinstance(number, int):
            raise SpecError(f"rlimits: {name!r} is no limit of this system")
        if (
            not isinstance(pair, list)
            or len(pair) != 2
            or not all(type(limit) is int and limit >= -1 for limit in pair)
        ):
            raise SpecError(f"rlimits.{name} must be two integers, soft and hard, -1 for unlimited")
        found.append((number, pair[0], pair[1]))
    return tuple(found)


def _cgroup(raw: object) -> dict[str, Any] | None:
    """Check what ``CgroupSupport.for_task`` made: a name and, by role, the version and the parent directory."""
    if raw is None:
        return None
    fields = _Fields(raw, "cgroup")
    checked: dict[str, Any] = {
        "name": fields.text("name"),
        "cpu_weight_milli": fields.optional_integer("cpu_weight_milli", low=1),
        "cpu_limit_milli": fields.optional_integer("cpu_limit_milli", low=1),
    }
    for role in ROLES:
        place = fields.get(role)
        if place is None:
            continue
        if not isinstance(place, list) or len(place) != 2 or place[0] not in (1, 2) or not isinstance(place[1], str):
            raise SpecError(f"cgroup.{role} must be a version, 1 or 2, and a directory")
        checked[role] = place
    fields.finish()
    return checked


def _notify(fields: _Fields) -> str | None:
    path = fields.optional_text("notify")
    if path is not None and not 0 < len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX:
        raise SpecError(f"notify must be a socket path of at most {SOCKET_PATH_BYTES_MAX} bytes")
    return path


def parse(raw: bytes) -> TaskSpec:
    """Return the specification in ``raw`` (JSON, UTF-8). Raises :class:`SpecError` naming the first wrong field."""
    if len(raw) > SPEC_BYTES_MAX:
        raise SpecError(f"spec.json is larger than {SPEC_BYTES_MAX} bytes")
    try:
        fields = _Fields(json.loads(raw), "")
    except (ValueError, RecursionError) as error:
        raise SpecError(f"spec.json is not readable as a JSON object: {error}") from None
    argv = fields.get("argv")
    script = fields.optional_text("script")
    if (argv is None) == (script is None):
        raise SpecError("exactly one of argv and script must be given")
    grace_s = fields.number("grace_s", 10.0)
    spec = TaskSpec(
        task=fields.text("task"),
        incarnation=fields.integer("incarnation"),
        argv=None if argv is None else _arguments(argv),
        script=script,
        setup=_setup(fields.get("setup")),
        env=_environment(fields.get("env")),
        cwd=fields.path("cwd"),
        log_max_bytes=fields.integer("log_max_bytes", 64 << 20, low=1),
        log_files=fields.integer("log_files", 4, low=1, high=1000),
        max_duration_s=fields.optional_number("max_duration_s"),
        grace_s=grace_s,
        orphan_grace_s=fields.number("orphan_grace_s", min(grace_s, 2.0)),
        checkpoint_signal=_signal_number(fields.get("checkpoint_signal")),
        checkpoint_grace_s=fields.number("checkpoint_grace_s", 0.0),
        lease=_lease(fields.get("lease")),
        cpus=_cpus(fields.get("cpus")),
        cgroup=_cgroup(fields.get("cgroup")),
        memory_mib=fields.optional_integer("memory_mib", low=1),
        notify=_notify(fields),
        oom_score_adj=fields.integer("oom_score_adj", 0, low=-1000, high=1000),
        umask=fields.integer("umask", 0o022, high=0o777),
        rlimits=_rlimits(fields.get("rlimits")),
    )
    fields.finish()
    return spec
