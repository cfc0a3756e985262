"""The task directories of a node as the agent uses them: names, and what the shim wrote there."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from corral.agent.shim import record
from corral.model.ids import TaskKey
from corral.model.job import Cause, TaskExit

PROGRESS = "progress"
LEASE = "lease"
WORK = "work"


class ShimFile(msgspec.Struct, frozen=True):
    """``shim.json``: who the shim and its main child are. ``child_pid`` is set when the user's process was forked."""

    pid: int
    start_ticks: int
    boot_id: str
    child_pid: int | None = None
    child_start_ticks: int | None = None
    started_at: float = 0.0


class StatusFile(msgspec.Struct, frozen=True):
    """``status.json``: how the task ended. Sizes in bytes and MiB, times in seconds (since the epoch for ``_at``)."""

    cause: str
    exit_code: int | None = None
    signal: int | None = None
    message: str = ""
    started_at: float | None = None
    ended_at: float | None = None
    cpu_s: float | None = None
    max_rss_mib: float | None = None
    log_bytes: int | None = None
    log_lost_bytes: int = 0

    def task_exit(self) -> TaskExit:
        """Return the same in the model's words."""
        try:
            cause = Cause(self.cause)
        except ValueError:
            cause = Cause.SHIM_LOST
        # For these the shim only says in words what the other fields say.
        message = "" if cause in (Cause.EXITED, Cause.SIGNAL) else self.message
        lost = f"{self.log_lost_bytes} bytes of the log were lost: the disk was full" if self.log_lost_bytes else ""
        return TaskExit(
            cause=cause,
            exit_code=self.exit_code,
            signal=self.signal,
            message="; ".join(part for part in (message, lost) if part),
            started_at=self.started_at,
            ended_at=self.ended_at,
            cpu_s=self.cpu_s,
            rss_max_mib=None if self.max_rss_mib is None else round(self.max_rss_mib),
            log_bytes=self.log_bytes,
        )


class Datagram(msgspec.Struct, frozen=True):
    """What a shim tells the agent: ``started`` and ``exited`` (with the content of ``status.json``), and others."""

    event: str
    task: str
    incarnation: int
    at: float = 0.0
    shim_pid: int | None = None
    child_pid: int | None = None


_shim_decoder = msgspec.json.Decoder(ShimFile)
_status_decoder = msgspec.json.Decoder(StatusFile)


def marker(task: TaskKey, incarnation: int) -> str:
    """Return the name of a task's directory, which is also its CORRAL_TASK."""
    return f"{task.job}.{task.gang}.{task.rank}.{incarnation}"


def parse_marker(name: str) -> tuple[TaskKey, int]:
    """Return the task and incarnation of a directory's name. Raises ``ValueError``."""
    task, _, incarnation = name.rpartition(".")
    return TaskKey.parse(task), int(incarnation)


def read_shim(directory: str | Path) -> ShimFile | None:
    """Return ``shim.json``, ``None`` while there is none."""
    raw = _read(directory, record.SHIM)
    return None if raw is None else _shim_decoder.decode(raw)


def read_status(directory: str | Path) -> StatusFile | None:
    """Return ``status.json``, ``None`` while the task has not ended."""
    raw = _read(directory, record.STATUS)
    return None if raw is None else _status_decoder.decode(raw)


def write_json(directory: str | Path, name: str, content: object) -> None:
    """Replace a file of a task directory; it is whole or not there, but not flushed. Raises ``OSError``."""
    replace_file(f"{directory}/{name}", msgspec.json.encode(content) + b"\n")


def replace_file(path: str, content: bytes) -> None:
    """Replace a file at once. Raises ``OSError``."""
    head, _, name = path.rpartition("/")
    temporary = f"{head}/.{name}.agent"
    write_file(temporary, content)
    os.rename(temporary, path)  # noqa: PTH104 - strings all along


def renew_file(path: str, content: bytes) -> None:
    """Replace a file at once, and where the disk is full write over it: that takes no room. Raises ``OSError``."""
    try:
        replace_file(path, content)
    except OSError:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.pwrite(descriptor, content, 0)
            os.ftruncate(descriptor, len(content))
        finally:
            os.close(descriptor)


def write_file(path: str, content: bytes, mode: int = 0o644) -> None:
    """Write a small file in place. Raises ``OSError``."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        while content:
            content = content[os.write(descriptor, content) :]
    finally:
        os.close(descriptor)


def record_end(directory: str | Path, task: TaskKey, incarnation: int, exit_: TaskExit) -> None:
    """Write ``status.json`` for a task that has no shim to do it. Raises ``OSError``."""
    status = StatusFile(
        cause=exit_.cause,
        exit_code=exit_.exit_code,
        signal=exit_.signal,
        message=exit_.message,
        started_at=exit_.started_at,
        ended_at=exit_.ended_at,
        cpu_s=exit_.cpu_s,
        max_rss_mib=exit_.rss_max_mib,
        log_bytes=exit_.log_bytes,
    )
    content = {"task": str(task), "incarnation": incarnation, **msgspec.structs.asdict(status)}
    write_json(directory, record.STATUS, content)


def is_prepared(directory: str | Path) -> bool:
    """Return whether the directory holds all that a shim needs, or the end of its task."""
    return any(os.path.exists(f"{directory}/{name}") for name in (record.SPEC, record.STATUS))  # noqa: PTH110


def forbid_fork(directory: str | Path) -> bool:
    """Take the place of a shim that was never forked, so that none ever is; return whether it was free."""
    try:
        os.close(os.open(f"{directory}/{record.FORKED}", os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644))
    except FileExistsError:
        return False
    return True


def _read(directory: str | Path, name: str) -> bytes | None:
    try:
        descriptor = os.open(f"{directory}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        pieces = []
        while piece := os.read(descriptor, 1 << 16):
            pieces.append(piece)
        return b"".join(pieces)
    finally:
        os.close(descriptor)
