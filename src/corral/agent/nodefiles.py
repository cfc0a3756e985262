"""What others than the agent do with a node's directory on the same machine: read logs, and fence.

Needs no living agent. The local engine gets these as an object, for it does not know this room.
"""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import time
from pathlib import Path

import msgspec

from corral.agent import adoption, leaders, processes, pulse, taskdir
from corral.agent.claim import LOCK_NAME
from corral.agent.machine import machine_of
from corral.agent.main import PID_NAME
from corral.agent.shim import record
from corral.agent.shim.handle import TaskHandle
from corral.agent.shim.log_reader import LogPiece, read_log

_log = logging.getLogger(__name__)

AGENT_PATIENCE_S = 5.0
SHIM_PATIENCE_S = 2.0
_AGAIN_S = 0.005


class _AgentFile(msgspec.Struct, frozen=True):
    pid: int
    start_ticks: int
    boot_id: str


class NodeFiles:
    """Implements what ``engines.local`` needs of a node's files. Every method blocks."""

    def read_log(self, directory: Path, offset: int, limit: int) -> LogPiece:
        """Return up to ``limit`` bytes of a task's log, the offset of the first and the offset after the newest."""
        return read_log(directory, offset, limit)

    def has_ended(self, directory: Path) -> bool:
        """Return whether a task writes nothing any more: its end is recorded, or its shim is dead."""
        if (directory / record.STATUS).exists():
            return True
        handle = TaskHandle(directory)
        return handle.was_forked() and not handle.shim_lives()

    def fence(self, node_dir: Path, machine: str = "", epoch: int | None = None) -> bool | None:
        """Kill a node's agent and everything of its tasks; return whether it is proven that nothing is left.

        No agent can start meanwhile, and no task directory that is there gets a shim afterwards. ``machine`` is the id
        of the machine that the node is: any other one, which may have its name by now, is left alone and proves
        nothing, and so does one that has lost the node's directory. Without it the node can only be here.
        ``epoch`` is that of the leader who asks (``None``: this machine itself does): a node that has heard a newer one
        is left alone, and after this it refuses older ones. No leader's word kills an agent that lives: the way to it
        was broken, perhaps a moment ago. It says hello when there is one, and until then its tasks keep to their
        leases. The answer is ``None`` then.
        """
        if machine and machine_of(node_dir.parent.parent) != machine:
            return False
        if not node_dir.is_dir():
            return not machine
        if epoch is not None and epoch < leaders.newest_epoch(node_dir):
            return False
        if epoch is not None and pulse.is_felt(node_dir):
            _log.warning("node %s is not fenced: its agent lives", node_dir.name)
            return None
        lock = os.open(node_dir / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if not _take_agents_place(node_dir, lock):
                return False
            if epoch is not None and not leaders.admit(node_dir, epoch):
                # The agent heard of a newer leader in its last moment. Its tasks are that one's.
                return False
            tasks_dir = node_dir / "tasks"
            directories = [path for path in tasks_dir.iterdir() if path.is_dir()] if tasks_dir.is_dir() else []
            live = [path for path in directories if not (path / record.STATUS).exists()]
            # One that cannot be cleared does not spare the others; nor does one that has lost its directory.
            cleared = {_clear(path) for path in live} <= {True}
            return not adoption.clear(tasks_dir, ()).left and cleared
        finally:
            os.close(lock)


def _take_agents_place(node_dir: Path, lock: int) -> bool:
    """Kill the agent, whoever restarts it, until its lock is ours."""
    deadline = time.monotonic() + AGENT_PATIENCE_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass
        else:
            return True
        if time.monotonic() >= deadline:
            return False
        try:
            agent = msgspec.json.decode((node_dir / PID_NAME).read_bytes(), type=_AgentFile)
        except (FileNotFoundError, msgspec.MsgspecError):
            agent = None
        if agent is not None and agent.boot_id == processes.boot_id():
            processes.send_signal(agent.pid, agent.start_ticks, signal.SIGKILL)
        time.sleep(_AGAIN_S)


def _clear(directory: Path) -> bool:
    """Kill a task with its shim; return whether nothing of it is left and nothing can come."""
    taskdir.forbid_fork(directory)
    handle = TaskHandle(directory)
    deadline = time.monotonic() + SHIM_PATIENCE_S
    while handle.shim_lives():
        shim = taskdir.read_shim(directory)
        if shim is not None and processes.kill_tree(shim.pid, shim.start_ticks):
            return False
        if time.monotonic() >= deadline:
            return False
        # A shim that was just forked says who it is in a moment; the lock of one that was killed goes with it.
        time.sleep(_AGAIN_S)
    return not handle.sweep().left
