"""Stopping the pool of this machine, or one of several heads: then the pool goes on at the others."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from corral.agent.nodefiles import NodeFiles
from corral.client import Client
from corral.model.errors import CorralError, DaemonNotRunning, DaemonStartFailed, JobsRunning, Unavailable
from corral.runtime.options import StopReport
from corral.runtime.paths import StatePaths
from corral.runtime.poolfile import PoolFile, load_pool
from corral.runtime.starting.launcher import running_supervisor
from corral.runtime.starting.topology import running_tasks

STOP_S = 30.0
ANNOUNCED_S = 5.0
TOLD_S = 15.0
POLL_S = 0.02


def stop_pool(state_dir: Path, *, force: bool, leave_tasks: bool) -> StopReport:
    """Stop the pool. Running tasks need ``force`` (stopped and queued again) or ``leave_tasks`` (they run on).

    Of a head that shares its database with others only the tasks on its own machine count, and nothing else ends: the
    pool is not this head's to stop. Raises ``DaemonNotRunning`` and ``JobsRunning``.
    """
    paths = StatePaths(state_dir.absolute())
    pid = running_supervisor(paths)
    if pid is None:
        raise DaemonNotRunning(f"no pool runs on {paths.root}")
    shared = _shared(paths)
    if shared is not None:
        left = _quiesce_here(paths, shared, force=force, leave_tasks=leave_tasks)
    else:
        # A daemon that has just started, or whose file was removed, writes it in a moment.
        until = time.monotonic() + ANNOUNCED_S
        while not paths.daemon.exists() and time.monotonic() < until:
            time.sleep(POLL_S)
        left = _quiesce(paths, force=force, leave_tasks=leave_tasks)
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_S
    while running_supervisor(paths) is not None:
        if time.monotonic() > deadline:
            raise DaemonStartFailed(f"the supervisor (pid {pid}) does not end", hint=f"see {paths.logs}")
        time.sleep(POLL_S)
    paths.daemon.unlink(missing_ok=True)
    if not left:
        paths.clear_short()
    return StopReport(tasks_left=left, forced=force, one_head=shared is not None)


def _shared(paths: StatePaths) -> PoolFile | None:
    """Return what a head was started with that shares its database with others, ``None`` for any other pool."""
    try:
        asked = load_pool(paths.pool)
    except CorralError:
        return None
    return asked if asked.store is not None else None


def _quiesce_here(paths: StatePaths, asked: PoolFile, *, force: bool, leave_tasks: bool) -> int:
    """Have nothing run on this machine, or let it run on; return how many tasks do.

    The API is not asked: what it stops is the pool, and whoever leads it.
    """
    running = _running_here(paths, asked)
    if running and not force and not leave_tasks:
        raise JobsRunning(
            f"{running} {'task runs' if running == 1 else 'tasks run'} on this head's machine",
            hint="--force stops them, and their jobs go on elsewhere; --leave-tasks lets them run on",
        )
    if running and force:
        for node in asked.agents:
            NodeFiles().fence(paths.nodes / node)
        _wait_told(paths, asked)
    return _running_here(paths, asked)


def _running_here(paths: StatePaths, asked: PoolFile) -> int:
    return sum(running_tasks(paths, node) for node in asked.agents)


def _wait_told(paths: StatePaths, asked: PoolFile) -> None:
    """Wait until the agent, which the supervisor starts anew, has told that its tasks are gone.

    That is the proof with which the leader may start their jobs elsewhere at once; without it they wait for the lease.
    """
    deadline = time.monotonic() + TOLD_S
    with contextlib.suppress(CorralError, OSError), Client(state_dir=paths.root, retry_s=TOLD_S) as client:
        while time.monotonic() < deadline:
            if not any(report.gangs for report in client.nodes() if report.spec.id in asked.agents):
                return
            time.sleep(POLL_S * 5)


def _quiesce(paths: StatePaths, *, force: bool, leave_tasks: bool) -> int:
    try:
        with Client(state_dir=paths.root, retry_s=0.0) as client:
            return client.stop("stop" if force else "leave" if leave_tasks else "refuse")
    except JobsRunning as error:
        raise JobsRunning(
            error.refusal.message, hint="--force stops them and queues their jobs again, --leave-tasks lets them run on"
        ) from None
    except (CorralError, OSError) as error:
        if force or leave_tasks:
            return 0
        if isinstance(error, DaemonNotRunning):
            raise Unavailable(
                f"the pool of {paths.root} runs, but does not answer", hint="`corral down --force` ends it all the same"
            ) from None
        raise
