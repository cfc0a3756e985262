"""What a machine has beside devices: CPUs, memory, names, and which boot it lives in.

Limits count as what there is: a container with 4 of 64 cores is a node with 4. Both cgroup versions are read, from the
process's own group up to the root, because any ancestor may limit it.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec

from corral.model.resources import MILLI

_ROOT: Final = Path("/")
# A version 1 group without a limit says the largest multiple of the page size in 63 bits.
_NO_LIMIT_BYTES: Final = 1 << 60


class NodeFacts(msgspec.Struct, frozen=True):
    """A machine as corral may use it.

    ``incarnation`` names the boot and the pid namespace: when it changes, no process of before lives.
    """

    hostname: str
    cpus_milli: int
    memory_mib: int
    incarnation: str


def node_facts(root: Path = _ROOT, *, affinity: int | None = None) -> NodeFacts:
    """Return the facts of this machine. ``root`` and ``affinity`` (usable CPUs) stand in for others in tests."""
    return NodeFacts(
        hostname=socket.gethostname(),
        cpus_milli=cpus_milli(root, affinity=affinity),
        memory_mib=memory_total_mib(root),
        incarnation=incarnation(root),
    )


def cpus_milli(root: Path = _ROOT, *, affinity: int | None = None) -> int:
    """Return the usable CPUs in milli-cores: the affinity mask, or the smallest cgroup quota below it."""
    usable = len(os.sched_getaffinity(0)) if affinity is None else affinity
    limits = [usable * MILLI]
    for group in _groups(root, "cpu"):
        quota, _, period = (_read(group / "cpu.max") or "").partition(" ")
        if not quota:
            quota = _read(group / "cpu.cfs_quota_us") or ""
            period = _read(group / "cpu.cfs_period_us") or ""
        if quota.isdigit() and period.isdigit() and int(period) > 0:
            limits.append(int(quota) * MILLI // int(period))
    return max(1, min(limits))


def memory_total_mib(root: Path = _ROOT) -> int:
    """Return the usable memory in MiB: what the machine has, or the smallest cgroup limit below it.

    Raises ``OSError`` when ``/proc/meminfo`` cannot be read.
    """
    lines = (root / "proc/meminfo").read_text().splitlines()
    total_kib = next(int(line.split()[1]) for line in lines if line.startswith("MemTotal:"))
    limits = [total_kib << 10]
    for group in _groups(root, "memory"):
        limit = _read(group / "memory.max") or _read(group / "memory.limit_in_bytes") or ""
        if limit.isdigit() and int(limit) < _NO_LIMIT_BYTES:
            limits.append(int(limit))
    return min(limits) >> 20


def incarnation(root: Path = _ROOT) -> str:
    """Return boot id and pid namespace as one word, ``unknown`` where the kernel tells neither."""
    boot = _read(root / "proc/sys/kernel/random/boot_id") or ""
    namespace = ""
    with contextlib.suppress(OSError):
        namespace = str((root / "proc/self/ns/pid").readlink()).removeprefix("pid:[").removesuffix("]")
    return ".".join(part for part in (boot, namespace) if part) or "unknown"


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the directories of the process's cgroup for a controller, from its own up to the root."""
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            mount = root / "sys/fs/cgroup"
        elif controller in controllers.split(","):
            mounts = [root / "sys/fs/cgroup" / name for name in (controllers, controller)]
            mount = next((mount for mount in mounts if mount.is_dir()), mounts[0])
        else:
            continue
        inside = PurePosixPath(path.lstrip("/"))
        # Without a cgroup namespace a container sees the host's path, but has only its own part mounted.
        for group in dict.fromkeys((mount / inside, *(mount / parent for parent in inside.parents), mount)):
            if group.is_dir():
                yield group


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
