"""What an agent does with a task directory: see how far the task is, stop it, clean up after a shim that died."""

from __future__ import annotations

import fcntl
import json
import os
import signal
from pathlib import Path
from typing import Any

from corral.agent import processes
from corral.agent.shim import record
from corral.agent.shim.log_reader import LogPiece, read_log
from corral.agent.shim.task_cgroup import TaskCgroup


class TaskHandle:
    """One task directory ``.../tasks/<task>.<incarnation>/``. Holds nothing open; every call looks anew."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def write_spec(self, spec: dict[str, object]) -> None:
        """Write ``spec.json``, making the directory where it is missing. Raises ``OSError``."""
        self.directory.mkdir(parents=True, exist_ok=True)
        _replace(self.directory / record.SPEC, json.dumps(spec))

    def was_forked(self) -> bool:
        """Return whether a shim was forked here; there will never be a second one."""
        return (self.directory / record.FORKED).exists()

    def shim_lives(self) -> bool:
        """Return whether the shim of this directory lives now: it holds the lock on ``forked`` while it does.

        Once this is false after :meth:`was_forked` was true it stays false, and ``status.json`` will not appear any
        more: without one the shim was killed, and what it left is to be swept.
        """
        try:
            file = os.open(self.directory / record.FORKED, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(file)
        return False

    def shim(self) -> dict[str, Any] | None:
        """Return ``shim.json``, ``None`` before the shim has written it. ``child_pid`` is null until there is one."""
        return _read(self.directory / record.SHIM)

    def status(self) -> dict[str, Any] | None:
        """Return ``status.json``: how the task ended; ``None`` while it has not, or when its shim was killed."""
        return _read(self.directory / record.STATUS)

    def stop(self, reason: str, grace_s: float, saving_s: float = 0.0, message: str = "") -> bool:
        """Order the task to end: SIGTERM, ``grace_s`` seconds, SIGKILL. Return whether the shim was told.

        With ``saving_s`` above 0 it is first asked for a checkpoint, and has so long to end by itself; one without a
        checkpoint signal is left alone so long. ``message`` explains the reason.
        It was not when it is gone, or so young that it has not written ``shim.json``: then ask again while it lives.
        A later order with less grace shortens the first one.
        """
        order = {"reason": reason, "grace_s": grace_s, "saving_s": saving_s, "message": message}
        _replace(self.directory / record.STOP, json.dumps(order))
        return self._signal(signal.SIGTERM)

    def checkpoint(self) -> bool:
        """Ask the task for a checkpoint now; return whether the shim was told."""
        return self._signal(signal.SIGUSR1)

    def read_log(self, offset: int, limit: int) -> LogPiece:
        """Return up to ``limit`` bytes of the log from ``offset``, which counts from the task's first byte."""
        return read_log(self.directory, offset, limit)

    def cgroup(self) -> TaskCgroup | None:
        """Return the control groups that the task was to have, ``None`` when it was to have none."""
        spec = _read(self.directory / record.SPEC) or {}
        return TaskCgroup.existing(spec["cgroup"]) if spec.get("cgroup") else None

    def sweep(self, *, timeout_s: float = 5.0) -> processes.Sweep:
        """Kill everything that is left of the task and remove its control groups. For after the shim's death.

        Found by the environment that every task has (CORRAL_TASK, CORRAL_TASK_DIR), by the log pipe, and by the
        groups: a program that hides from one is found by another. Calling it again does no harm.
        """
        spec = _read(self.directory / record.SPEC) or {}
        shim = self.shim() or {}
        cgroup = self.cgroup()
        in_groups = frozenset[int]()
        if cgroup is not None:
            in_groups = frozenset(cgroup.pids())
            cgroup.kill()
        found = processes.sweep(
            f"{spec.get('task')}.{spec.get('incarnation')}",
            task_dir=str(self.directory),
            # Inodes of pipes mean something within one boot only.
            log_pipe=shim.get("log_pipe") if shim.get("boot_id") == processes.boot_id() else None,
            timeout_s=timeout_s,
        )
        if cgroup is not None:
            cgroup.remove()
        return processes.Sweep(found.killed | in_groups, found.left)

    def _signal(self, number: int) -> bool:
        shim = self.shim()
        if shim is None or shim["boot_id"] != processes.boot_id() or not self.shim_lives():
            return False
        return processes.send_signal(shim["pid"], shim["start_ticks"], number)


def write_lease(path: Path, deadline_boottime_s: float) -> None:
    """Write the deadline of a lease (CLOCK_BOOTTIME seconds) for the shims that look at ``path``."""
    text = f"{deadline_boottime_s:.6f}\n"
    try:
        _replace(path, text)
    except OSError:
        # A full disk has no room for another file, but what is there may be overwritten: no contact was lost.
        with path.open("r+") as file:
            file.write(text)
            file.truncate()


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    temporary.write_text(text)
    temporary.replace(path)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    return content if isinstance(content, dict) else None
