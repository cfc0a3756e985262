"""A job as a user asks for it, before defaults and admission turn it into a :class:`corral.model.job.JobSpec`."""

from __future__ import annotations

import msgspec

from corral.model.experience import WorkSpec
from corral.model.files import JobFiles
from corral.model.job import CheckpointSpec, DependencyKind, Fencing


class AfterAsk(msgspec.Struct, frozen=True):
    """A dependency by job number or by name (of a live or finished job of the tenant, or of the same submission)."""

    ref: str
    kind: DependencyKind = DependencyKind.SUCCEEDED


class JobAsk(msgspec.Struct, frozen=True):
    """What the job file, the flags or the SDK said. ``None`` is "not said": the pool's default applies.

    ``gpu_milli`` is per node (per rank). ``points`` are the parameters of each array element, ``indices`` its indices.
    An elastic job names the whole GPUs per node (``gpu_counts``) or the numbers of nodes (``node_counts``) that it can
    run with; ``gpu_milli`` and ``num_nodes`` are then the largest of them.
    """

    name: str | None = None
    tenant: str | None = None
    queue: str | None = None
    argv: tuple[str, ...] = ()
    script: str | None = None
    setup: str | None = None
    gpu_milli: int = 0
    gpu_model: str | None = None
    cpus_milli: int | None = None
    memory_mib: int | None = None
    num_nodes: int = 1
    envs: dict[str, str] = {}
    workdir: str | None = None
    file_mounts: dict[str, str] = {}
    indices: tuple[int, ...] | None = None
    points: tuple[dict[str, str], ...] = ()
    max_duration_s: float | None = None
    grace_s: float | None = None
    max_restarts: int | None = None
    priority: int = 0
    after: tuple[AfterAsk, ...] = ()
    data: tuple[str, ...] = ()
    fencing: Fencing | None = None
    lease_s: float | None = None
    checkpoint: CheckpointSpec | None = None
    restart_cost_s: float | None = None
    gpu_counts: tuple[int, ...] = ()
    node_counts: tuple[int, ...] = ()
    work: WorkSpec | None = None
    appmaster: str | None = None
    files: JobFiles | None = None
    outputs: tuple[str, ...] = ()
    user: str = ""
