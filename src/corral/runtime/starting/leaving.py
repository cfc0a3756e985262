"""`corral leave`: a node stops being one. What runs there saves itself first, unless it is told otherwise."""

from __future__ import annotations

import contextlib
import signal
import time
from pathlib import Path

from corral.agent.nodefiles import NodeFiles
from corral.client.discovery import JOIN_ANEW
from corral.model.errors import (
    Conflict,
    CorralError,
    DaemonNotRunning,
    HeadUnreachable,
    JobsRunning,
    Unavailable,
)
from corral.model.ids import NodeId
from corral.runtime.machines.cluster import load_cluster
from corral.runtime.machines.heads import leave_at
from corral.runtime.machines.rejoining import read_secret
from corral.runtime.options import DRAIN_S, StopReport
from corral.runtime.paths import StatePaths
from corral.runtime.starting.launcher import end_running_supervisor, only_start, running_supervisor
from corral.runtime.starting.orphans import end_orphans
from corral.runtime.starting.topology import counted_tasks, is_node, running_tasks

TOLD_S = 15.0
LEFT_S = 3.0
POLL_S = 0.1
LOOK_S = 0.5


def leave(state_dir: Path, *, force: bool = False, leave_tasks: bool = False, drain_s: float = DRAIN_S) -> StopReport:
    """Take this machine out of its pool.

    Its tasks are asked for checkpoints, and their jobs go on elsewhere; what has not ended after ``drain_s`` seconds
    is killed. With ``force`` they are killed at once; with ``leave_tasks`` they run on, and are taken over when the
    machine joins again in time. Raises ``DaemonNotRunning``, ``Conflict`` (it is no node), ``JobsRunning`` (the node
    does not run, but tasks of it do) and ``HeadUnreachable`` (nobody asks for checkpoints): it stays a node then.
    """
    paths = StatePaths(state_dir.absolute())
    pid = running_supervisor(paths)
    if pid is None and not (is_node(state_dir) and paths.node_token.exists()):
        raise DaemonNotRunning(f"no node runs on {paths.root}", hint=JOIN_ANEW)
    if not is_node(state_dir):
        raise Conflict("this machine is no node of another's pool", hint="`corral down` stops its own pool")
    node = NodeId(load_cluster(paths.cluster).node)
    if pid is None:
        killed = _leave_dead(paths, node, force=force, leave_tasks=leave_tasks)
    else:
        killed = 0 if leave_tasks else _empty(paths, node, 0.0 if force else drain_s)
    if leave_tasks:
        _ask_heads(paths, node, drain=False)
    left = running_tasks(paths, node)
    end_running_supervisor(paths)
    drop_secrets(paths)
    if not left:
        paths.clear_short()
    return StopReport(tasks_left=left, forced=force, tasks_killed=killed)


def hold(state_dir: Path, pid: int, drain_s: float = DRAIN_S) -> int:
    """Stay until the node leaves, and return 0. SIGTERM and SIGINT make it leave: tasks have ``drain_s`` seconds.

    For those who end what they started together with its first process, as batch systems do. Raises ``Unavailable``
    when the node ends and has not left.
    """
    asked = False

    def ask(_number: int, _frame: object) -> None:
        nonlocal asked
        asked = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, ask)
    paths = StatePaths(state_dir.absolute())
    while running_supervisor(paths) == pid and not asked:
        time.sleep(POLL_S)
    if asked:
        try:
            leave(state_dir, drain_s=drain_s)
        except DaemonNotRunning:
            # Somebody else made it leave.
            pass
        except CorralError:
            # It ends in any case, and with it all that would save itself.
            leave(state_dir, force=True)
        return 0
    # Somebody else who makes it leave drops them as the last thing.
    deadline = time.monotonic() + LEFT_S
    while paths.node_token.exists():
        if time.monotonic() > deadline:
            raise Unavailable("the node has ended", hint=f"see {paths.logs / 'supervisor.log'}")
        time.sleep(POLL_S)
    return 0


def drop_secrets(paths: StatePaths) -> None:
    """Leave nothing behind that opens other machines; joining again brings it anew."""
    for file in (paths.daemon, paths.ray_token, paths.node_token):
        file.unlink(missing_ok=True)


def _leave_dead(paths: StatePaths, node: NodeId, *, force: bool, leave_tasks: bool) -> int:
    """End what is left of a node whose supervisor is dead; return how many tasks were killed."""
    running = running_tasks(paths, node)
    if running and not force and not leave_tasks:
        raise JobsRunning(
            f"node {node} does not run, but {counted_tasks(running)} on it",
            hint="plain `corral join` starts it again, then `corral leave` lets them save themselves; "
            "--force kills them, --leave-tasks lets them run on",
        )
    with only_start(paths):
        end_orphans(paths)
        if force and running:
            NodeFiles().fence(paths.nodes / node)
    # Nobody there could carry out what a drain asks for.
    _ask_heads(paths, node, drain=False)
    return running if force else 0


def _empty(paths: StatePaths, node: NodeId, drain_s: float) -> int:
    """Have the heads empty this node, and kill what has not ended in time; return how many tasks that were.

    Raises ``HeadUnreachable`` when tasks run and nobody asked them to save themselves, unless there is no time for it.
    """
    deadline, heard, busy = time.monotonic() + drain_s, False, False
    while True:
        left, running = _ask_heads(paths, node, drain=drain_s > 0), running_tasks(paths, node)
        heard, busy = heard or left is not None, busy or bool(left or running)
        # What has just ended here is over for the heads when they say so: else they would wait for its lease.
        if not running and (left == 0 or not busy):
            return 0
        if time.monotonic() >= deadline:
            break
        time.sleep(LOOK_S)
    if not heard and drain_s > 0:
        raise HeadUnreachable(
            f"no head answers that would ask the tasks of node {node} for checkpoints",
            hint="--force kills them, --leave-tasks lets them run on",
        )
    if running:
        NodeFiles().fence(paths.nodes / node)
    # The agent, which its supervisor starts anew, tells that they are gone: with this proof the heads may start their
    # jobs elsewhere at once.
    deadline = time.monotonic() + TOLD_S
    while time.monotonic() < deadline and _ask_heads(paths, node, drain=False):
        time.sleep(POLL_S)
    return running


def _ask_heads(paths: StatePaths, node: NodeId, *, drain: bool) -> int | None:
    """Tell the heads that the node leaves; return how many gangs it has by their account, ``None`` if none answers."""
    for head in load_cluster(paths.cluster).heads:
        with contextlib.suppress(CorralError):
            return leave_at(head, read_secret(paths), node, drain=drain)
    return None
