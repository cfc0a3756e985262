"""Stopping the pool of this machine, or one of several heads: then the pool goes on at the others."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path

import msgspec

from corral.agent.nodefiles import NodeFiles
from corral.client import Client
from corral.model.errors import CorralError, DaemonNotRunning, JobsRunning, Unavailable
from corral.model.state import STOPPED
from corral.runtime.machines.cluster import Head
from corral.runtime.machines.heads import is_there
from corral.runtime.options import DRAIN_S, StopReport
from corral.runtime.paths import StatePaths
from corral.runtime.poolfile import PoolFile, load_pool
from corral.runtime.starting.launcher import end_running_supervisor, only_start, running_supervisor
from corral.runtime.starting.orphans import end_orphans, orphans
from corral.runtime.starting.topology import counted_tasks, running_tasks
from corral.runtime.wholefile import write_whole

ANNOUNCED_S = 5.0
TOLD_S = 15.0
POLL_S = 0.02
LOOK_S = 0.5


def stop_pool(
    state_dir: Path, *, force: bool = False, leave_tasks: bool = False, drain_s: float = DRAIN_S
) -> StopReport:
    """Stop the pool, or this head of it.

    Running tasks need ``force`` (they save themselves for a minute at most, and their jobs wait for the next start) or
    ``leave_tasks`` (they run on).

    While another head of the same database answers, nothing but this head ends: the pool is not this one's to stop.
    The jobs of tasks on its own machine go on elsewhere: they have ``drain_s`` seconds to save themselves, with
    ``force`` none, and what has not ended then is killed; with ``leave_tasks`` they run on.

    Raises ``DaemonNotRunning``, ``JobsRunning`` and ``Unavailable`` (nobody can ask the tasks for checkpoints).
    """
    paths = StatePaths(state_dir.absolute())
    if running_supervisor(paths) is None:
        return _stop_dead(paths, force=force, leave_tasks=leave_tasks)
    # A daemon that has just started, or whose file was removed, writes it in a moment.
    until = time.monotonic() + ANNOUNCED_S
    while not paths.daemon.exists() and time.monotonic() < until:
        time.sleep(POLL_S)
    shared = _shared(paths)
    others = [] if shared is None else _others_there(paths)
    one_head = bool(others)
    killed, quiesced = 0, None
    if shared is not None and one_head:
        if not leave_tasks:
            killed = _empty_here(paths, shared, 0.0 if force else drain_s)
        left = _running_here(paths, shared)
    else:
        quiesced = _quiesce(paths, force=force, leave_tasks=leave_tasks)
        left = _all_running_here(paths) if quiesced is None else quiesced
    end_running_supervisor(paths)
    if force and not one_head and quiesced is None:
        killed, left = _kill_here(paths)
    paths.daemon.unlink(missing_ok=True)
    if others:
        # By this, commands on this machine go on to find the pool.
        write_whole(paths.daemon, msgspec.json.encode({**others[0], "pid": os.getpid(), "heads": others[1:]}))
    if not left:
        paths.clear_short()
    return StopReport(
        tasks_left=left,
        forced=force,
        one_head=one_head,
        last_head=shared is not None and not one_head,
        tasks_killed=killed,
    )


# ---- a pool whose supervisor was killed ----------------------------------------------------------------------------


def _stop_dead(paths: StatePaths, *, force: bool, leave_tasks: bool) -> StopReport:
    """End what is left of a pool whose supervisor is dead. Raises ``DaemonNotRunning`` when nothing is."""
    running = _all_running_here(paths)
    if not running and not orphans(paths):
        raise DaemonNotRunning(f"no pool runs on {paths.root}")
    if running and not force and not leave_tasks:
        raise JobsRunning(
            f"the pool of {paths.root} does not run, but {counted_tasks(running)} on this machine",
            hint="its next start takes them over; --force kills them, --leave-tasks lets them run on",
        )
    with only_start(paths):
        end_orphans(paths)
        killed, left = _kill_here(paths) if force else (0, running)
    paths.daemon.unlink(missing_ok=True)
    return StopReport(tasks_left=left, forced=force, tasks_killed=killed)


def _nodes_here(paths: StatePaths) -> list[str]:
    return [place.name for place in paths.nodes.iterdir()] if paths.nodes.is_dir() else []


def _all_running_here(paths: StatePaths) -> int:
    return sum(running_tasks(paths, node) for node in _nodes_here(paths))


def _kill_here(paths: StatePaths) -> tuple[int, int]:
    """Kill the tasks of this machine, whose agents do not run; return how many were killed, and how many are left."""
    running = _all_running_here(paths)
    for node in _nodes_here(paths):
        NodeFiles().fence(paths.nodes / node)
    left = _all_running_here(paths)
    return running - left, left


# ---- one of several heads ------------------------------------------------------------------------------------------


def _shared(paths: StatePaths) -> PoolFile | None:
    """Return what a head was started with that shares its database with others, ``None`` for any other pool."""
    try:
        asked = load_pool(paths.pool)
    except CorralError:
        return None
    return asked if asked.store is not None else None


def _others_there(paths: StatePaths) -> list[dict[str, str | None]]:
    """Return the other heads as ``daemon.json`` names them, those that answer first; none when none does.

    While one answers, the pool goes on.
    """
    try:
        known = json.loads(paths.daemon.read_text())["heads"]
        heads = [Head(one["url"], Path(one["tls_cert"]).read_text() if one["tls_cert"] else "") for one in known]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    there = [is_there(head) for head in heads]
    if not any(there):
        return []
    first = sorted(range(len(known)), key=lambda index: not there[index])
    return [{"url": known[index]["url"], "tls_cert": known[index]["tls_cert"]} for index in first]


def _empty_here(paths: StatePaths, asked: PoolFile, drain_s: float) -> int:
    """Have the leader empty this machine's own node, and kill what has not ended in time; return how many tasks.

    The API is asked for nothing else: what it stops is the pool, and whoever leads it. Raises ``Unavailable`` when
    tasks run and nobody asked them to save themselves, unless there is no time for it.
    """
    if not asked.agents:
        return 0
    deadline, asking = time.monotonic() + drain_s, _running_here(paths, asked) > 0
    with Client(state_dir=paths.root, retry_s=TOLD_S if asking else 0.0) as client:
        try:
            for node in asked.agents:
                client.cordon(node, STOPPED, drain=drain_s > 0)
        except (CorralError, OSError) as error:
            if asking and drain_s > 0:
                raise Unavailable(
                    f"nobody asks the tasks of this head's machine for checkpoints: {error}",
                    hint="--force kills them, --leave-tasks lets them run on",
                ) from None
        left = _left(client, asked)
        while (left or _running_here(paths, asked)) and time.monotonic() < deadline:
            time.sleep(LOOK_S)
            left = _left(client, asked)
        killed = _running_here(paths, asked)
        if killed:
            for node in asked.agents:
                NodeFiles().fence(paths.nodes / node)
        # The agent, which its supervisor starts anew, tells that they are gone: with this proof the leader may start
        # their jobs elsewhere at once.
        deadline = time.monotonic() + TOLD_S
        while killed and time.monotonic() < deadline and _left(client, asked):
            time.sleep(POLL_S * 5)
    return killed


def _left(client: Client, asked: PoolFile) -> int:
    """Return how many gangs have tasks on this machine by the leader's account; 0 when nobody answers."""
    with contextlib.suppress(CorralError, OSError):
        return sum(len(report.gangs) for report in client.nodes() if report.spec.id in asked.agents)
    return 0


def _running_here(paths: StatePaths, asked: PoolFile) -> int:
    return sum(running_tasks(paths, node) for node in asked.agents)


# ---- the whole pool ------------------------------------------------------------------------------------------------


def _quiesce(paths: StatePaths, *, force: bool, leave_tasks: bool) -> int | None:
    """Ask the pool to end; return how many tasks of it go on, ``None`` when nobody answers what is to end anyhow."""
    try:
        with Client(state_dir=paths.root, retry_s=0.0) as client:
            return client.stop("stop" if force else "leave" if leave_tasks else "refuse")
    except JobsRunning as error:
        raise JobsRunning(
            error.refusal.message,
            hint="--force stops them, after a checkpoint, and queues their jobs again; --leave-tasks lets them run on",
        ) from None
    except (CorralError, OSError) as error:
        if force or leave_tasks:
            return None
        if isinstance(error, DaemonNotRunning):
            raise Unavailable(
                f"the pool of {paths.root} runs, but does not answer", hint="`corral down --force` ends it all the same"
            ) from None
        raise
