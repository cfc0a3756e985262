"""What control groups can do for tasks here: version 2 where a subtree can be written, version 1, or some of both.

A task's groups are made directly under the group that this process is in (or the nearest above it that may have
children), so that every limit set from above still holds. Where nothing can be made, tasks are held by CPU affinity and
by watching (see ``shim/memory.py``). ``shim/task_cgroup.py`` is the other half: the groups of one task.
"""
# ruff: noqa: PTH110, PTH120 -- stays as light as the shim's modules

from __future__ import annotations

import binascii
import os
from typing import Any, NamedTuple

from corral.agent import processes
from corral.agent.shim.task_cgroup import ROLES, attempt, make_group, remove_group, try_write, write_file

# The file whose presence in a new group shows that the role works there, by version.
_FILES = {
    ("memory", 2): "memory.max",
    ("cpu", 2): "cpu.max",
    ("freezer", 2): "cgroup.freeze",
    ("memory", 1): "memory.limit_in_bytes",
    ("cpu", 1): "cpu.shares",
    ("freezer", 1): "freezer.state",
}


class Controller(NamedTuple):
    """Where groups for one role are made: the version of the hierarchy and the parent directory."""

    version: int
    parent: str


class CgroupSupport:
    """What control groups can do for tasks here.

    Attributes:
        controllers: The usable roles out of ``memory``, ``cpu`` and ``freezer``.
        missing: For every other role the reason, in words for people.
    """

    __slots__ = ("controllers", "missing")

    def __init__(self, controllers: dict[str, Controller], missing: dict[str, str]) -> None:
        self.controllers = controllers
        self.missing = missing

    def describe(self) -> str:
        """Return in one line what is enforced how: for people."""
        works = ", ".join(f"{role} (v{place.version})" for role, place in sorted(self.controllers.items()))
        lacks = "; ".join(f"no {role}: {reason}" for role, reason in sorted(self.missing.items()))
        return "; ".join(part for part in (works, lacks) if part)

    def for_task(
        self,
        marker: str,
        task_dir: str,
        *,
        memory: bool = False,
        freezer: bool = False,
        cpu_weight_milli: int | None = None,
        cpu_limit_milli: int | None = None,
    ) -> dict[str, Any] | None:
        """Return the ``cgroup`` object of a task's ``spec.json``, ``None`` when nothing that is asked for is usable.

        Args:
            marker: ``<task>.<incarnation>``.
            task_dir: The task's directory: it makes the name unique among the pools of a machine.
            memory: Whether ``memory_mib`` of the specification is to be the kernel's limit.
            freezer: Whether the task may have to be frozen.
            cpu_weight_milli: Share of the CPUs under contention, 1000 for one CPU.
            cpu_limit_milli: CPU time per time at most, 1000 for one CPU.
        """
        wanted = {
            "memory": memory,
            "freezer": freezer,
            "cpu": cpu_weight_milli is not None or cpu_limit_milli is not None,
        }
        used = {role: list(self.controllers[role]) for role in ROLES if wanted[role] and role in self.controllers}
        if not used:
            return None
        name = f"corral-{marker}-{binascii.crc32(os.fsencode(task_dir)):08x}"
        return {"name": name, "cpu_weight_milli": cpu_weight_milli, "cpu_limit_milli": cpu_limit_milli, **used}


def probe(*, make_room: bool = False) -> CgroupSupport:
    """Find out by trying what control groups can do for tasks of this process. Leaves nothing behind.

    Args:
        make_room: On version 2 a group that hands controllers to children may hold no processes itself. With this,
            a process that is alone in its group with its descendants (a systemd unit with ``Delegate=yes``) moves
            them all to a child group ``corral-daemon`` first.
    """
    mounts = _mounts()
    own = _own_groups()
    found, missing = _probe_v2(mounts, own, make_room=make_room)
    for role in ROLES:
        if role in found or role not in mounts or role not in own:
            continue
        parent = _directory(mounts[role], own[role])
        reason = _try_out(parent, 1, role)
        if reason is None:
            found[role] = Controller(1, parent)
        else:
            missing[role] = reason
    return CgroupSupport(found, {role: reason for role, reason in missing.items() if role not in found})


def _probe_v2(
    mounts: dict[str, tuple[str, str]], own: dict[str, str], *, make_room: bool
) -> tuple[dict[str, Controller], dict[str, str]]:
    """Return what version 2 can do. All roles have one parent, for a process is in one group of it only."""
    missing = dict.fromkeys(ROLES, "no cgroup file system is mounted")
    if "" not in mounts or "" not in own:
        return {}, missing
    top = mounts[""][0]
    directory = _directory(mounts[""], own[""])
    if make_room:
        _make_room(directory)
    best: dict[str, Controller] = {}
    # The own group first, then those above it: the nearest that can do most is taken.
    for parent in _upwards(directory, top):
        reasons = {role: _try_out(parent, 2, role) for role in ROLES}
        usable = {role: Controller(2, parent) for role, reason in reasons.items() if reason is None}
        if len(usable) > len(best):
            best = usable
        missing.update({role: reason for role, reason in reasons.items() if reason is not None})
    return best, missing


def _upwards(directory: str, top: str) -> list[str]:
    found = [directory]
    while directory != top and directory.startswith(top):
        directory = os.path.dirname(directory)
        found.append(directory)
    return found


def _mounts() -> dict[str, tuple[str, str]]:
    """Return mount point and mounted root of every cgroup hierarchy, by controller; "" is version 2."""
    mounts: dict[str, tuple[str, str]] = {}
    for line in (processes.read_small("/proc/self/mountinfo") or b"").decode(errors="surrogateescape").splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        root, point = before.split(" ")[3:5]
        if kind == "cgroup2":
            mounts.setdefault("", (point, root))
        elif kind == "cgroup":
            for option in options.split(","):
                mounts.setdefault(option, (point, root))
    return mounts


def _own_groups() -> dict[str, str]:
    """Return the group of this process in every hierarchy, by controller; "" is version 2."""
    groups: dict[str, str] = {}
    for line in (processes.read_small("/proc/self/cgroup") or b"").decode(errors="surrogateescape").splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            groups[name] = path
    return groups


def _directory(mount: tuple[str, str], group: str) -> str:
    """Return the directory of a group, which a container may have mounted from its own root."""
    point, root = mount
    inside = group.removeprefix(root.rstrip("/")).strip("/")
    return f"{point}/{inside}".rstrip("/")


def _make_room(directory: str) -> None:
    """Move this process and its descendants to a child group when nobody else is in ``directory``."""
    raw = processes.read_small(f"{directory}/cgroup.procs")
    inside = set(map(int, raw.split() if raw else ()))
    ours = {os.getpid(), *(stat.pid for stat in processes.descendants(os.getpid()))}
    if not inside or not inside <= ours:
        return
    leaf = f"{directory}/corral-daemon"
    if attempt(lambda: make_group(leaf)) is None:
        for pid in inside:
            try_write(f"{leaf}/cgroup.procs", str(pid))


def _try_out(parent: str, version: int, role: str) -> str | None:
    """Make and remove a group under ``parent``; return why the role does not work there, ``None`` when it does."""
    if version == 2 and role != "freezer":
        raw = processes.read_small(f"{parent}/cgroup.controllers") or b""
        if role.encode() not in raw.split():
            return f"the {role} controller is not handed down to {parent}"
        enabled = (processes.read_small(f"{parent}/cgroup.subtree_control") or b"").split()
        if role.encode() not in enabled:
            error = attempt(lambda: write_file(f"{parent}/cgroup.subtree_control", f"+{role}"))
            if error is not None:
                return f"cannot hand the {role} controller down from {parent}: {error.strerror}"
    # On version 2 a process may be moved only by who may write the procs file of the common ancestor.
    if not os.access(f"{parent}/cgroup.procs", os.W_OK):
        return f"{parent} is not ours to write"
    trial = f"{parent}/corral-probe-{os.getpid()}"
    error = attempt(lambda: make_group(trial))
    if error is not None:
        return f"cannot make a group in {parent}: {error.strerror}"
    works = os.path.exists(f"{trial}/{_FILES[role, version]}")
    remove_group(trial)
    return None if works else f"{parent} has no {role} controller"
