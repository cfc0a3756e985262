"""Finding and ending processes without ever hitting a stranger: a pid counts only together with its start time.

Standard library only: the shim, the agent and the local engine use it.
"""
# ruff: noqa: PTH110, PTH115, PTH116, PTH208 -- a shim is forked from a process that never loads pathlib

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import NamedTuple

_READ_BYTES = 1 << 16
# The kernel hands out its files in pages at least: what is shorter was the end.
_PAGE_BYTES = 2048


class ProcessStat(NamedTuple):
    """What ``/proc/PID/stat`` says of a process (proc(5)).

    ``start_ticks`` (field 22) are clock ticks since boot: with the pid they name one process for ever within a boot.
    ``state`` is one letter: R, S, D, T and t (stopped), Z and X (dead). A program whose first thread has ended runs on
    in the others, while the kernel says Z of it: it is described as one of those, whose id ``thread`` is.
    """

    pid: int
    state: str
    ppid: int
    session: int
    start_ticks: int
    rss_pages: int
    thread: int

    @property
    def dead(self) -> bool:
        """Return whether only the entry in the process table is left."""
        return self.state in "ZX"

    @property
    def stopped(self) -> bool:
        """Return whether a signal or a tracer stopped the process."""
        return self.state in "Tt"


class Sweep(NamedTuple):
    """Pids that were killed, and those that were still there when the time was up (uninterruptible, or not ours)."""

    killed: frozenset[int]
    left: frozenset[int]


def read_small(path: str) -> bytes | None:
    """Return the content of a small file, ``None`` when it cannot be read: processes vanish at any moment."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        content = os.read(descriptor, _READ_BYTES)
        if len(content) < _PAGE_BYTES:
            return content
        while piece := os.read(descriptor, _READ_BYTES):
            content += piece
        return content
    except OSError:
        return None
    finally:
        os.close(descriptor)


def read_stat(pid: int) -> ProcessStat | None:
    """Return the state of a process, ``None`` when there is none."""
    fields = _stat_fields(f"/proc/{pid}/stat")
    if not fields:
        return None
    ticks, thread = int(fields[19]), pid
    if fields[0] == b"Z" and int(fields[17]) > 1:
        fields, thread = _of_living_thread(pid) or (fields, pid)
    return ProcessStat(pid, fields[0].decode(), int(fields[1]), int(fields[3]), ticks, int(fields[21]), thread)


def _stat_fields(path: str) -> list[bytes]:
    raw = read_small(path)
    # The name may hold spaces and parentheses: what counts begins after the last one.
    return raw[raw.rindex(b")") + 2 :].split() if raw else []


def _of_living_thread(pid: int) -> tuple[list[bytes], int] | None:
    """Return what the kernel says of a thread that has not ended, one that is not stopped if there is one."""
    found: tuple[list[bytes], int] | None = None
    for thread in _threads(pid):
        fields = _stat_fields(f"/proc/{pid}/task/{thread}/stat")
        if fields and fields[0] not in (b"Z", b"X"):
            found = fields, int(thread)
            if fields[0] not in (b"T", b"t"):
                break
    return found


def _threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def start_ticks(pid: int) -> int | None:
    """Return the start time of a process in clock ticks since boot, ``None`` when there is no such process."""
    stat = read_stat(pid)
    return None if stat is None else stat.start_ticks


def began_s(ticks: int | None) -> float | None:
    """Return a start time in seconds of CLOCK_BOOTTIME, on which the kernel counts it (proc(5))."""
    return None if ticks is None else ticks / os.sysconf("SC_CLK_TCK")


def boot_id() -> str:
    """Return the identifier of this boot: pids and start times of another boot mean nothing."""
    raw = read_small("/proc/sys/kernel/random/boot_id")
    return "" if raw is None else raw.decode().strip()


def process_space() -> str:
    """Return what names this process namespace within a boot: its number, and the start of its first process.

    The number alone does not: the kernel gives it to another namespace once all processes of the first have ended.
    """
    try:
        number = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        number = 0
    return f"{number}:{start_ticks(1)}"


def is_alive(pid: int, ticks: int) -> bool:
    """Return whether the very process that started at ``ticks`` still runs (a zombie does not)."""
    stat = read_stat(pid)
    return stat is not None and stat.start_ticks == ticks and not stat.dead


def open_pidfd(pid: int, ticks: int) -> int | None:
    """Return a pidfd of the very process that started at ``ticks``, ``None`` when it is gone. The caller closes it."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return None
    # The pidfd pins the process it was opened on: a check after the opening holds for as long as it is open.
    if start_ticks(pid) == ticks:
        return descriptor
    os.close(descriptor)
    return None


def send_signal(pid: int, ticks: int, number: int) -> bool:
    """Send a signal to the very process that started at ``ticks``; return whether it was delivered."""
    descriptor = open_pidfd(pid, ticks)
    if descriptor is None:
        return False
    try:
        signal.pidfd_send_signal(descriptor, number)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def all_processes() -> Iterator[ProcessStat]:
    """Yield every process that is visible in ``/proc``."""
    for entry in os.listdir("/proc"):
        if entry.isdecimal() and (stat := read_stat(int(entry))) is not None:
            yield stat


def _children(pid: int) -> list[int]:
    """Return the children of all threads of a process from ``/proc/PID/task/TID/children``."""
    found: list[int] = []
    for thread in _threads(pid):
        raw = read_small(f"/proc/{pid}/task/{thread}/children")
        if raw:
            found.extend(map(int, raw.split()))
    return found


def descendants(root: int) -> list[ProcessStat]:
    """Return all living descendants of a process, parents before children; zombies are left out.

    Processes come and go while this reads: who needs completeness repeats it until nothing is left.
    """
    own = os.getpid()
    if not os.path.exists(f"/proc/{own}/task/{own}/children"):
        return _descendants_by_scan(root)
    found: list[ProcessStat] = []
    seen = {root}
    todo = [root]
    while todo:
        parent = todo.pop(0)
        for child in _children(parent):
            stat = read_stat(child) if child not in seen else None
            # An orphan goes to the root when that is a subreaper; any other parent means that the pid was used anew.
            if stat is None or stat.ppid not in (parent, root):
                continue
            seen.add(child)
            todo.append(child)
            if not stat.dead:
                found.append(stat)
    return found


def _descendants_by_scan(root: int) -> list[ProcessStat]:
    """Do the same on a kernel without CONFIG_PROC_CHILDREN."""
    by_parent: dict[int, list[ProcessStat]] = {}
    for stat in all_processes():
        by_parent.setdefault(stat.ppid, []).append(stat)
    found: list[ProcessStat] = []
    todo = [root]
    while todo:
        for stat in by_parent.get(todo.pop(0), []):
            todo.append(stat.pid)
            if not stat.dead:
                found.append(stat)
    return found


def with_environment(wanted: dict[str, str]) -> list[ProcessStat]:
    """Return the living processes that were started with all of these environment variables; never this process."""
    needles = [b"\0" + os.fsencode(f"{name}={value}") + b"\0" for name, value in wanted.items()]
    found = []
    for stat in all_processes():
        if stat.dead or stat.pid == os.getpid():
            continue
        raw = read_small(f"/proc/{stat.pid}/task/{stat.thread}/environ")
        if raw and all(needle in b"\0" + raw + b"\0" for needle in needles):
            found.append(stat)
    return found


def with_variable(name: str, prefix: str) -> list[tuple[ProcessStat, str]]:
    """Return the living processes that were started with a variable which begins so, and the rest of its value.

    Never this process.
    """
    needle = b"\0" + os.fsencode(f"{name}={prefix}")
    found = []
    for stat in all_processes():
        if stat.dead or stat.pid == os.getpid():
            continue
        raw = read_small(f"/proc/{stat.pid}/task/{stat.thread}/environ") or b""
        _, there, rest = (b"\0" + raw).partition(needle)
        if there:
            found.append((stat, os.fsdecode(rest.partition(b"\0")[0])))
    return found


def writing_to(pipe: str) -> list[ProcessStat]:
    """Return the living processes whose standard output or error is ``pipe`` (``pipe:[inode]``); never this process.

    A pipe's inode number is not given away while anybody holds it, and comes round after 2^32 pipes only.
    """
    return [
        stat
        for stat in all_processes()
        if not stat.dead and stat.pid != os.getpid() and pipe in (_target(stat, 1), _target(stat, 2))
    ]


def _target(stat: ProcessStat, descriptor: int) -> str | None:
    try:
        return os.readlink(f"/proc/{stat.pid}/task/{stat.thread}/fd/{descriptor}")
    except OSError:
        return None


def kill_tree(pid: int, ticks: int, *, timeout_s: float = 5.0) -> frozenset[int]:
    """Kill a process and all its descendants; return the pids that were still there after ``timeout_s``.

    Everything is stopped first, again and again until nothing new appears, so that nobody forks away.
    """
    root = read_stat(pid)
    if root is None or root.start_ticks != ticks:
        return frozenset()
    caught: dict[int, int] = {}
    fresh = True
    while fresh:
        fresh = False
        for stat in (root, *descendants(pid)):
            if stat.pid not in caught and stat.pid != os.getpid():
                send_signal(stat.pid, stat.start_ticks, signal.SIGSTOP)
                caught[stat.pid] = stat.start_ticks
                fresh = True
    for victim, victim_ticks in caught.items():
        send_signal(victim, victim_ticks, signal.SIGKILL)
    deadline = time.monotonic() + timeout_s
    while left := frozenset(victim for victim, victim_ticks in caught.items() if is_alive(victim, victim_ticks)):
        if time.monotonic() >= deadline:
            return left
        time.sleep(0.002)
    return frozenset()


def sweep(marker: str, *, task_dir: str | None = None, log_pipe: str | None = None, timeout_s: float = 5.0) -> Sweep:
    """Kill what a dead shim left of its task, until a search finds nothing more.

    Args:
        marker: ``<task>.<incarnation>``, the value of CORRAL_TASK in the environment of every process of the task.
        task_dir: The value of CORRAL_TASK_DIR as well: it tells tasks of two pools on one machine apart.
        log_pipe: The pipe of the task's log (``pipe:[inode]``): who still writes to it is swept too, for programs
            that overwrite their environment (setproctitle does) or start others with an empty one.
        timeout_s: When to give up on processes that do not die.
    """
    wanted = {"CORRAL_TASK": marker}
    if task_dir is not None:
        wanted["CORRAL_TASK_DIR"] = task_dir
    killed: set[int] = set()
    deadline = time.monotonic() + timeout_s
    while True:
        found = with_environment(wanted)
        if log_pipe is not None:
            found += writing_to(log_pipe)
        if not found or time.monotonic() >= deadline:
            return Sweep(frozenset(killed), frozenset(stat.pid for stat in found))
        for stat in found:
            if send_signal(stat.pid, stat.start_ticks, signal.SIGKILL):
                killed.add(stat.pid)
        time.sleep(0.005)
