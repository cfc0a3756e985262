"""The live tasks of a node as the agent's shell holds them, and where their news come from."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec.structs import replace

from corral.agent import processes, taskdir
from corral.agent.outputs import Record
from corral.agent.shim import record
from corral.agent.shim.handle import TaskHandle, write_lease
from corral.agent.taskdir import LEASE, Datagram, ShimFile, StatusFile
from corral.model.ids import DeviceId, TaskKey
from corral.model.job import Cause, TaskExit

_log = logging.getLogger(__name__)

_DATAGRAM_BYTES_MAX = 1 << 16
_DATAGRAMS_PER_TURN = 512

_datagram_decoder = msgspec.json.Decoder(Datagram)
_status_decoder = msgspec.json.Decoder(StatusFile)


class StopOrder(msgspec.Struct):
    """A stop that was asked for.

    ``kill_at`` is the monotonic time after which the shim itself is killed, set when it was told; it is not later than
    ``kill_before``.
    """

    reason: str
    grace_s: float
    saving_s: float = 0.0
    message: str = ""
    kill_at: float | None = None
    kill_before: float | None = None


class Running(msgspec.Struct):
    """One live task. ``asked``: the fork server was asked and has not answered yet; ``ending``: its end is at work.

    ``deadline_s`` is the end of its lease (CLOCK_BOOTTIME), ``None`` without one; ``guarded``: it is being looked at
    whether the shim kept to it.
    """

    task: TaskKey
    incarnation: int
    marker: str
    directory: str
    devices: tuple[DeviceId, ...] = ()
    cpus: tuple[int, ...] | None = None
    cpus_milli: int = 0
    asked: bool = False
    asked_at: float = 0.0
    shim_pid: int | None = None
    pidfd: int | None = None
    began: bool = False
    ending: bool = False
    stop: StopOrder | None = None
    deadline_s: float | None = None
    guarded: bool = False

    @property
    def path(self) -> Path:
        """Return the task's directory."""
        return Path(self.directory)


class News(msgspec.Struct, frozen=True):
    """A datagram of a shim; ``status`` is set when it tells the end."""

    datagram: Datagram
    status: StatusFile | None


class NotifySocket:
    """The socket to which the shims of this node send their news."""

    def __init__(self, path: str, on_news: Callable[[list[News]], None]) -> None:
        self._path = path
        self._on_news = on_news
        self._socket: socket.socket | None = None

    def open(self) -> None:
        """Bind it in place of an earlier agent's. Raises ``OSError``."""
        Path(self._path).unlink(missing_ok=True)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        mask = os.umask(0o177)
        try:
            sock.bind(self._path)
        except OSError:
            sock.close()
            raise
        finally:
            os.umask(mask)
        self._socket = sock
        asyncio.get_running_loop().add_reader(sock.fileno(), self._readable)

    def close(self) -> None:
        """Stop listening; datagrams that come meanwhile are in the task directories too."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def _readable(self) -> None:
        news: list[News] = []
        while self._socket is not None and len(news) < _DATAGRAMS_PER_TURN:
            try:
                raw = self._socket.recv(_DATAGRAM_BYTES_MAX)
            except BlockingIOError:
                break
            try:
                datagram = _datagram_decoder.decode(raw)
                status = _status_decoder.decode(raw) if datagram.event == "exited" else None
            except (msgspec.MsgspecError, RecursionError) as error:
                _log.warning("a datagram that no shim sends: %s", error)
                continue
            news.append(News(datagram, status))
        if news:
            self._on_news(news)


def watch_shim(running: Running, shim: ShimFile, on_death: Callable[[Running], None]) -> bool:
    """Have ``on_death`` called when the shim is gone; return whether it still lives."""
    descriptor = processes.open_pidfd(shim.pid, shim.start_ticks)
    if descriptor is None:
        return False
    running.pidfd = descriptor
    running.shim_pid = shim.pid
    asyncio.get_running_loop().add_reader(descriptor, on_death, running)
    return True


def unwatch_shim(running: Running) -> None:
    """Stop watching the shim."""
    if running.pidfd is not None:
        asyncio.get_running_loop().remove_reader(running.pidfd)
        os.close(running.pidfd)
        running.pidfd = None


def extend_lease(running: Running) -> None:
    """Write down the end of a task's lease as it is now."""
    assert running.deadline_s is not None, "only who has a lease has it extended"
    try:
        write_lease(running.path / LEASE, running.deadline_s)
    except OSError as error:
        _log.error("the lease of task %s cannot be extended: %s", running.marker, error)


def record_end(tasks_dir: Path, order: Record) -> None:
    """Write down an end that no shim writes, and let no shim be forked there any more."""
    directory = tasks_dir / taskdir.marker(order.task, order.incarnation)
    try:
        directory.mkdir(exist_ok=True)
        if taskdir.forbid_fork(directory) or not TaskHandle(directory).shim_lives():
            taskdir.record_end(directory, order.task, order.incarnation, order.exit)
    except OSError as error:
        _log.error("the end of task %s cannot be written: %s", directory.name, error)
        # Without it no shim can be forked there, neither now nor after a restart of this agent.
        (directory / record.SPEC).unlink(missing_ok=True)


def with_problem(exit_: TaskExit, problem: str | None) -> TaskExit:
    """Return an end that tells of a problem beside."""
    if problem is None:
        return exit_
    return replace(exit_, message="; ".join(part for part in (exit_.message, problem) if part))


def end_without_shim(running: Running, killed: int) -> TaskExit:
    """Return the end of a task whose shim is dead; ``killed`` processes were left."""
    message = "its shim was killed or crashed" + (f"; {killed} processes that it left were killed" if killed else "")
    cause = Cause.SHIM_LOST
    # A peer's end stops the gang, often before this death is seen: it must not hide that the shim was lost.
    if running.stop is not None and running.stop.reason != Cause.GANG_STOPPED:
        cause, message = Cause(running.stop.reason), f"stopped; {message}"
    shim = taskdir.read_shim(running.directory)
    return TaskExit(
        cause=cause,
        message=message,
        started_at=shim.started_at if shim is not None and shim.child_pid is not None else None,
        ended_at=time.time(),
    )
