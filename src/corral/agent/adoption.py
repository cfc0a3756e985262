"""What an agent finds of its earlier runs: every task directory that is still there."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from corral.agent import taskdir
from corral.agent.environment import DEVICES_NAME, LEASE_NAME
from corral.agent.inputs import KnownTask
from corral.agent.retention import Kept
from corral.agent.running import Running
from corral.agent.shim import record
from corral.model.ids import DeviceId
from corral.model.messages import TaskPhase
from corral.model.resources import MILLI

_log = logging.getLogger(__name__)


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


def _read_spec(directory: str) -> _Spec:
    try:
        return _spec_decoder.decode(Path(directory, record.SPEC).read_bytes())
    except FileNotFoundError:
        return _Spec()
