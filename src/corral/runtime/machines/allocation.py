"""What a batch system gave to this process: Slurm's allocation on this machine, read from the environment.

Only ``slurmd`` sets ``SLURMD_NODENAME``: a shell of ``salloc`` on a login node is in no allocation on its machine.
Variables: srun(1), "OUTPUT ENVIRONMENT VARIABLES".
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

NODE = "SLURMD_NODENAME"
JOB = "SLURM_JOB_ID"


class Allocation(msgspec.Struct, frozen=True, kw_only=True):
    """Slurm's part of this machine. ``None`` is all of it. ``devices`` are uuids, or indices by PCI bus."""

    job: str
    node: str
    cpus_milli: int | None = None
    memory_mib: int | None = None
    devices: tuple[str, ...] | None = None


def allocation(environment: Mapping[str, str] = os.environ) -> Allocation | None:
    """Return what Slurm gave to this process, ``None`` outside of an allocation."""
    job, node = environment.get(JOB, ""), environment.get(NODE, "")
    if not job or not node:
        return None
    cpus = _number(environment.get("SLURM_CPUS_ON_NODE"))
    memory = _number(environment.get("SLURM_MEM_PER_NODE"))
    per_cpu = _number(environment.get("SLURM_MEM_PER_CPU"))
    if memory is None and per_cpu is not None and cpus is not None:
        memory = per_cpu * cpus
    return Allocation(
        job=job,
        node=node,
        cpus_milli=None if cpus is None else cpus * 1000,
        memory_mib=memory,
        devices=_devices(environment),
    )


def _devices(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the devices that a step may use. Slurm says nothing where the job asked for none."""
    for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS"):
        given = environment.get(name)
        if given is not None:
            return tuple(word for word in given.split(",") if word and word != "NoDevFiles")
    return ()


def _number(text: str | None) -> int | None:
    # 0 stands for all memory of the node.
    return int(text) if text is not None and text.isdecimal() and int(text) > 0 else None


def pilot_state_dir(found: Allocation) -> Path:
    """Return the state directory of a pilot: on the machine itself, of this job and this node."""
    return Path(tempfile.gettempdir()) / f"corral-{os.getuid()}-{found.job}-{found.node}"
