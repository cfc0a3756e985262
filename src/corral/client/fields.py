"""Jobs and services in keyword arguments: the fields of their files, typed, and ``gpus`` for short."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from corral.client.handle import JobHandle
from corral.model.ask import JobAsk
from corral.model.errors import InvalidField
from corral.wire.document import Checked
from corral.wire.request import ask_of_fields

if TYPE_CHECKING:
    from corral.model.service import ServiceSpec

Scalar = str | int | float | bool
Duration = str | float | timedelta


class JobFields(TypedDict, total=False):
    """What a job may say. What is left out gets the pool's default; ``None`` is the same as left out."""

    run: str | Sequence[Scalar | os.PathLike[str]]
    name: str | None
    tenant: str | None
    queue: str | None
    gpus: str | float | Sequence[int] | None
    num_gpus: str | float | Sequence[int] | None
    gpu_model: str | None
    accelerators: str | float | Sequence[int] | Mapping[str, str | float | Sequence[int]] | None
    cpus: str | float | None
    memory: str | float | None
    num_nodes: int | str | Sequence[int] | None
    setup: str | None
    envs: Mapping[str, Scalar] | None
    workdir: str | os.PathLike[str] | None
    file_mounts: Mapping[str, str | os.PathLike[str]] | None
    array: str | int | Sequence[int] | None
    sweep: Mapping[str, Sequence[Scalar]] | Sequence[Mapping[str, Scalar]] | None
    max_duration: Duration | None
    grace: Duration | None
    max_restarts: int | None
    priority: int | None
    after: str | int | JobHandle | Mapping[str, str] | Sequence[str | int | JobHandle | Mapping[str, str]] | None
    data: str | Sequence[str] | None
    fencing: str | None
    lease: Duration | None
    checkpoint: Mapping[str, Scalar | timedelta] | None
    restart_cost: Duration | None
    work: Mapping[str, Scalar | Mapping[str, float]] | None
    appmaster: str | None
    outputs: str | Sequence[str] | None


class ServiceFields(TypedDict, total=False):
    """What a service may say. What is left out gets its default; ``None`` is the same as left out."""

    run: str | Sequence[Scalar | os.PathLike[str]]
    name: str
    tenant: str | None
    model: str | None
    port: int | None
    replicas: int | str | Mapping[str, int] | None
    startup: str | Mapping[str, object] | None
    startup_within: Duration | None
    readiness: str | Mapping[str, object] | None
    liveness: str | Mapping[str, object] | None
    scaling: Mapping[str, Scalar | timedelta] | None
    rollout: Mapping[str, Scalar | timedelta] | None
    traffic: Mapping[str, Scalar | timedelta | Sequence[str]] | None
    queue: str | None
    gpus: str | float | None
    gpu_model: str | None
    accelerators: str | float | Mapping[str, str | float] | None
    cpus: str | float | None
    memory: str | float | None
    setup: str | None
    envs: Mapping[str, Scalar] | None
    workdir: str | os.PathLike[str] | None
    file_mounts: Mapping[str, str | os.PathLike[str]] | None
    grace: Duration | None
    priority: int | None
    data: str | Sequence[str] | None
    fencing: str | None
    lease: Duration | None
    restart_cost: Duration | None


_RESOURCES = ("accelerators", "cpus", "memory")


def ask_of_keywords(fields: Mapping[str, object]) -> JobAsk:
    """Return the job of keyword arguments. ``workdir`` is the current directory unless it is given.

    Raises what a job file raises; fields are called by their keywords.
    """
    given, names = _document(fields)
    after = given.get("after")
    if isinstance(after, JobHandle):
        given["after"] = after.id
    elif isinstance(after, Iterable) and not isinstance(after, str | Mapping):
        given["after"] = [item.id if isinstance(item, JobHandle) else item for item in after]
    return ask_of_fields(given, _checked(names))


def spec_of_keywords(fields: Mapping[str, object]) -> ServiceSpec:
    """Return the service of keyword arguments, as :func:`ask_of_keywords` does. Raises what a service file raises."""
    from corral.wire.service import spec_of_fields

    given, names = _document(fields)
    return spec_of_fields(given, _checked(names))


def _checked(names: Mapping[str, str]) -> Checked:
    return Checked(base=str(Path.cwd()), on_disk=True, names=names)


def _document(fields: Mapping[str, object]) -> tuple[dict[str, object], dict[str, str]]:
    """Return keyword arguments as the fields of a file, and how each path in them is called."""
    given = dict(fields)
    given.setdefault("workdir", str(Path.cwd()))
    names = {f"resources.{name}": name for name in _RESOURCES}
    if given.get("gpus") is not None or given.get("gpu_model") is not None:
        names["resources.accelerators"] = "gpus"
        for other in ("accelerators", "num_gpus"):
            if given.get(other) is not None:
                raise InvalidField(f"says the same as {other}", field="gpus", hint="leave one out")
        gpus, model = given.get("gpus"), given.get("gpu_model")
        count = 1 if gpus is None else gpus
        given["accelerators"] = {model: count} if model is not None else count
    given.pop("gpus", None)
    given.pop("gpu_model", None)
    resources = {name: given.pop(name) for name in _RESOURCES if name in given}
    if resources:
        given["resources"] = resources
    return given, names
