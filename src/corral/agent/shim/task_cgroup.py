"""The control groups of one task: made, entered, frozen, killed and removed by its shim.

Kernel interfaces: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/.
"""
# ruff: noqa: PTH102, PTH106, PTH119 -- a shim is forked from a process that never loads pathlib

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

from corral.agent import processes

ROLES = ("memory", "cpu", "freezer")
_CPU_PERIOD_US = 100_000
_REMOVE_PATIENCE_S = 0.5
_FREEZE_PATIENCE_S = 0.2


class TaskCgroup:
    """The groups of one task. Every method works as far as the groups go and never raises for a missing one.

    Attributes:
        warnings: What could not be set up, in words for people.
    """

    def __init__(self, groups: dict[str, tuple[int, str]], warnings: list[str]) -> None:
        self._groups = groups
        self.warnings = warnings

    @classmethod
    def create(cls, wanted: Mapping[str, Any], memory_mib: int | None) -> TaskCgroup:
        """Make the groups that :meth:`CgroupSupport.for_task` described and set their limits."""
        groups, warnings = cls._named(wanted), []
        limits: dict[str, Callable[[int, str], None]] = {
            "memory": lambda version, path: _limit_memory(version, path, memory_mib),
            "cpu": lambda version, path: _limit_cpu(version, path, wanted),
            "freezer": lambda _version, _path: None,
        }
        for role, (version, path) in list(groups.items()):
            try:
                make_group(path)
                limits[role](version, path)
            except OSError as error:
                del groups[role]
                warnings.append(f"no {role} cgroup: {error.strerror} ({path})")
        return cls(groups, warnings)

    @classmethod
    def existing(cls, wanted: Mapping[str, Any]) -> TaskCgroup:
        """Return the groups as they were described, whether they still exist or not: to clean up after a shim."""
        return cls(cls._named(wanted), [])

    @staticmethod
    def _named(wanted: Mapping[str, Any]) -> dict[str, tuple[int, str]]:
        name = os.path.basename(str(wanted["name"]))
        return {role: (int(wanted[role][0]), f"{wanted[role][1]}/{name}") for role in ROLES if role in wanted}

    def has(self, role: str) -> bool:
        """Return whether the role's group was made."""
        return role in self._groups

    def enter(self) -> None:
        """Move the calling process into the groups. Raises ``OSError``."""
        for path in self._paths():
            write_file(f"{path}/cgroup.procs", "0")

    def admit(self, pid: int) -> None:
        """Move another process into the groups, as far as that is possible."""
        for path in self._paths():
            try_write(f"{path}/cgroup.procs", str(pid))

    def pids(self) -> set[int]:
        """Return the processes in any of the groups."""
        found: set[int] = set()
        for path in self._paths():
            raw = processes.read_small(f"{path}/cgroup.procs")
            found.update(map(int, raw.split() if raw else ()))
        return found

    def freeze(self) -> bool:
        """Stop all processes where they are; return whether the kernel says that they are stopped."""
        if "freezer" not in self._groups:
            return False
        version, path = self._groups["freezer"]
        name, word = ("cgroup.freeze", "1") if version == 2 else ("freezer.state", "FROZEN")
        if not try_write(f"{path}/{name}", word):
            return False
        deadline = time.monotonic() + _FREEZE_PATIENCE_S
        while not self.is_frozen():
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.001)
        return True

    def is_frozen(self) -> bool:
        """Return whether all processes of the freezer's group are frozen."""
        if "freezer" not in self._groups:
            return False
        version, path = self._groups["freezer"]
        raw = processes.read_small(f"{path}/{'cgroup.events' if version == 2 else 'freezer.state'}") or b""
        return b"frozen 1" in raw if version == 2 else raw.strip() == b"FROZEN"

    def thaw(self) -> None:
        """Let frozen processes go on."""
        if "freezer" in self._groups:
            version, path = self._groups["freezer"]
            name, word = ("cgroup.freeze", "0") if version == 2 else ("freezer.state", "THAWED")
            try_write(f"{path}/{name}", word)

    def kill(self) -> None:
        """Send SIGKILL to every process in the groups, and thaw them so that they can die."""
        for path in self._paths():
            if try_write(f"{path}/cgroup.kill", "1"):
                break
        found = {pid: processes.start_ticks(pid) for pid in self.pids() - {os.getpid()}}
        # Who is still inside is who was inside: a pid used anew in between would be a stranger's.
        for pid in self.pids() & found.keys():
            ticks = found[pid]
            if ticks is not None:
                processes.send_signal(pid, ticks, signal.SIGKILL)
        self.thaw()

    def oom_kills(self) -> int:
        """Return how often the kernel killed a process of the group for memory."""
        return self._counter("memory", "memory.events", "memory.oom_control", b"oom_kill")

    def anonymous_mib(self) -> float:
        """Return the memory of the group that is no page cache, in MiB."""
        size = self._counter("memory", "memory.stat", "memory.stat", b"anon", b"total_rss")
        return size / (1 << 20)

    def peak_mib(self) -> float:
        """Return the largest use of the group that the kernel noted, in MiB; 0 before Linux 5.19 with cgroup v2."""
        if "memory" not in self._groups:
            return 0.0
        version, path = self._groups["memory"]
        raw = processes.read_small(f"{path}/{'memory.peak' if version == 2 else 'memory.max_usage_in_bytes'}")
        return int(raw) / (1 << 20) if raw else 0.0

    def _counter(self, role: str, name_v2: str, name_v1: str, key_v2: bytes, key_v1: bytes | None = None) -> int:
        if role not in self._groups:
            return 0
        version, path = self._groups[role]
        raw = processes.read_small(f"{path}/{name_v2 if version == 2 else name_v1}") or b""
        key = key_v2 if version == 2 or key_v1 is None else key_v1
        for line in raw.splitlines():
            name, _, value = line.partition(b" ")
            if name == key:
                return int(value)
        return 0

    def remove(self) -> list[str]:
        """Remove the groups; return what is still there because a process in it does not die."""
        left = []
        deadline = time.monotonic() + _REMOVE_PATIENCE_S
        for path in self._paths():
            while not remove_group(path):
                if time.monotonic() >= deadline:
                    left.append(path)
                    break
                self.kill()
                time.sleep(0.002)
        return left

    def _paths(self) -> list[str]:
        return sorted({path for _, path in self._groups.values()})


def _limit_memory(version: int, path: str, memory_mib: int | None) -> None:
    if memory_mib is None:
        return
    size = str(memory_mib << 20)
    if version == 2:
        write_file(f"{path}/memory.max", size)
        try_write(f"{path}/memory.swap.max", "0")
        try_write(f"{path}/memory.oom.group", "1")
    else:
        write_file(f"{path}/memory.limit_in_bytes", size)
        # Missing where swap accounting is off: then swap is not limited.
        try_write(f"{path}/memory.memsw.limit_in_bytes", size)


def _limit_cpu(version: int, path: str, wanted: Mapping[str, Any]) -> None:
    weight, limit = wanted.get("cpu_weight_milli"), wanted.get("cpu_limit_milli")
    if weight is not None:
        shares = min(max(2, weight * 1024 // 1000), 262_144)
        if version == 2:
            # The conversion of the OCI runtimes: [2, 262144] onto [1, 10000].
            write_file(f"{path}/cpu.weight", str(1 + (shares - 2) * 9999 // 262_142))
        else:
            write_file(f"{path}/cpu.shares", str(shares))
    if limit is not None:
        quota_us = max(1000, limit * _CPU_PERIOD_US // 1000)
        if version == 2:
            write_file(f"{path}/cpu.max", f"{quota_us} {_CPU_PERIOD_US}")
        else:
            write_file(f"{path}/cpu.cfs_period_us", str(_CPU_PERIOD_US))
            write_file(f"{path}/cpu.cfs_quota_us", str(quota_us))


def make_group(path: str) -> None:
    """Make a group that may exist already. Raises ``OSError``."""
    try:
        os.mkdir(path)
    except FileExistsError:
        return


def remove_group(path: str) -> bool:
    """Remove a group; return whether it is gone."""
    error = attempt(lambda: os.rmdir(path))
    return error is None or error.errno == errno.ENOENT


def write_file(path: str, text: str) -> None:
    """Write to a file of the kernel in one call. Raises ``OSError``."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def attempt(action: Callable[[], None]) -> OSError | None:
    """Return the error with which ``action`` failed, ``None`` when it did not."""
    try:
        action()
    except OSError as error:
        return error
    return None


def try_write(path: str, text: str) -> bool:
    """Write to a file of the kernel; return whether that worked."""
    return attempt(lambda: write_file(path, text)) is None
