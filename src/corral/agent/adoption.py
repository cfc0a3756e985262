"""What an agent finds of its earlier runs: every task directory that is still there."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Container, Mapping
from pathlib import Path

import msgspec

from corral.agent import processes, replicadir, taskdir
from corral.agent.environment import DEVICES_NAME, LEASE_NAME
from corral.agent.inputs import KnownTask
from corral.agent.probecommand import PROBE_NAME
from corral.agent.retention import Kept
from corral.agent.running import Running
from corral.agent.shim import record
from corral.model.ids import DeviceId
from corral.model.messages import TaskPhase
from corral.model.resources import MILLI

_log = logging.getLogger(__name__)

_AGAIN_S = 0.005


class Found(msgspec.Struct):
    """All tasks that were found: as the core knows them, those to watch again, and those that are acknowledged."""

    known: list[KnownTask] = []
    running: list[Running] = []
    kept: list[Kept] = []


class _Spec(msgspec.Struct, frozen=True):
    """The part of ``spec.json`` that the agent needs again."""

    env: dict[str, str] = {}
    cpus: tuple[int, ...] | None = None
    grace_s: float = 10.0


_spec_decoder = msgspec.json.Decoder(_Spec)


def scan(tasks_dir: Path, acknowledged: Mapping[str, Kept]) -> Found:
    """Read all task directories. A directory with another name, or one that cannot be read, is left alone."""
    found = Found([], [], [])
    for name in os.listdir(tasks_dir):  # noqa: PTH208 - names are all that is wanted
        try:
            _take(found, tasks_dir, name, acknowledged.get(name))
        except (ValueError, OSError, msgspec.MsgspecError) as error:
            _log.warning("%s is no task directory: %s", tasks_dir / name, error)
    return found


def _take(found: Found, tasks_dir: Path, name: str, kept: Kept | None) -> None:
    task, incarnation = taskdir.parse_marker(name)
    directory = f"{tasks_dir}/{name}"
    if kept is not None:
        found.known.append(KnownTask(task, incarnation, TaskPhase.ENDED, acknowledged=True))
        found.kept.append(kept)
        return
    spec = _read_spec(directory)
    devices = tuple(DeviceId(uuid) for uuid in spec.env.get(DEVICES_NAME, "").split(",") if uuid)
    lease = spec.env.get(LEASE_NAME)
    shim = taskdir.read_shim(directory)
    began = shim is not None and shim.child_pid is not None
    replica = _read_replica(directory)
    found.known.append(
        KnownTask(
            task,
            incarnation,
            TaskPhase.RUNNING if began else TaskPhase.STARTING,
            pid=shim.child_pid if shim is not None else None,
            started_at=shim.started_at if shim is not None and began else None,
            devices=devices,
            lease_s=None if lease is None else float(lease),
            grace_s=spec.grace_s,
            serving=None if replica is None else replica.serving,
            began_boottime_s=None if shim is None else processes.began_s(shim.child_start_ticks),
            started_up=replicadir.has_started_up(directory),
        )
    )
    found.running.append(
        Running(
            task,
            incarnation,
            name,
            directory,
            devices,
            cpus=spec.cpus,
            cpus_milli=MILLI * len(spec.cpus or ()),
            began=began,
        )
    )


def clear(tasks_dir: Path, running: Container[str], *, timeout_s: float = 5.0) -> processes.Sweep:
    """Kill what runs of tasks that are not among ``running`` (names of directories), until nothing more is found.

    Whose directory was removed, damaged or taken back to an older state is not known to any agent: that would be taken
    for a proof that nothing of the task runs here. Commands by which an earlier agent asked replicas go too.
    """
    killed: set[int] = set()
    deadline = time.monotonic() + timeout_s
    while True:
        left = [
            stat
            for stat, name in processes.with_variable("CORRAL_TASK_DIR", f"{tasks_dir}/")
            if name.partition("/")[0] not in running
        ]
        left += [stat for stat, _ in processes.with_variable(PROBE_NAME, f"{tasks_dir}/") if stat not in left]
        if not left or time.monotonic() >= deadline:
            return processes.Sweep(frozenset(killed), frozenset(stat.pid for stat in left))
        for stat in left:
            if processes.send_signal(stat.pid, stat.start_ticks, signal.SIGKILL):
                killed.add(stat.pid)
        time.sleep(_AGAIN_S)


def _read_replica(directory: str) -> replicadir.ServingFile | None:
    """Return what a replica is asked; one whose file means nothing to this release runs on, and is asked nothing."""
    try:
        return replicadir.read(directory)
    except msgspec.MsgspecError as error:
        _log.error("%s/%s cannot be read, so the replica is not asked: %s", directory, replicadir.SERVING, error)
        return None


def _read_spec(directory: str) -> _Spec:
    try:
        return _spec_decoder.decode(Path(directory, record.SPEC).read_bytes())
    except FileNotFoundError:
        return _Spec()
