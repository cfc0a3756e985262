"""What a batch script finds in place of Slurm: its variables, ``srun`` and ``scontrol show hostnames``.

Slurm runs a batch script once, on the first node, and ``srun`` starts the tasks on all. Here every node of a gang runs
the script, and ``srun`` starts the tasks of its own node: together the same tasks with the same numbers. (What stands
outside ``srun`` runs on every node.)
"""

from __future__ import annotations

import shlex

from corral.wire.slurm_commands import SCONTROL, SRUN

_VARIABLES = """\
export SLURM_JOB_ID=$CORRAL_JOB SLURM_JOBID=$CORRAL_JOB SLURM_JOB_NAME=$CORRAL_JOB_NAME SLURM_CLUSTER_NAME=corral
export SLURM_NNODES=${NNODES:-1} SLURM_JOB_NUM_NODES=${NNODES:-1} SLURM_NODEID=${NODE_RANK:-0} SLURM_LOCALID=0
export SLURM_NTASKS_PER_NODE=@tasks@ SLURM_NTASKS=$((@tasks@ * ${NNODES:-1})) SLURM_CPUS_PER_TASK=@cpus@
export SLURM_NPROCS=$SLURM_NTASKS SLURM_PROCID=$((@tasks@ * ${NODE_RANK:-0})) SLURM_RESTART_COUNT=${CORRAL_RESTARTS:-0}
export SLURMD_NODENAME=${CORRAL_NODE:-localhost} SLURM_GPUS_ON_NODE=@gpus@ SLURM_JOB_PARTITION=@queue@
export SLURM_CPUS_ON_NODE=@node-cpus@ SLURM_SUBMIT_DIR=@here@
SLURM_JOB_CPUS_PER_NODE=@node-cpus@; [ "${NNODES:-1}" = 1 ] || SLURM_JOB_CPUS_PER_NODE+="(x$NNODES)"
export SLURM_JOB_CPUS_PER_NODE SLURM_JOB_NODELIST=${MASTER_ADDR:-localhost} SLURM_NODELIST=${MASTER_ADDR:-localhost}
"""
_ARRAY = """\
export SLURM_ARRAY_JOB_ID=$CORRAL_JOB SLURM_ARRAY_TASK_ID=${CORRAL_ARRAY_INDEX:-0} SLURM_ARRAY_TASK_COUNT=@count@
export SLURM_ARRAY_TASK_MIN=@least@ SLURM_ARRAY_TASK_MAX=@most@
"""
_MEMORY = """\
export SLURM_MEM_PER_NODE=@memory@
"""
_COMMANDS = """\
SLURM_CORRAL_BIN=$CORRAL_TASK_DIR/slurm; mkdir -p "$SLURM_CORRAL_BIN"
printf %s @srun@ > "$SLURM_CORRAL_BIN/srun"; printf %s @scontrol@ > "$SLURM_CORRAL_BIN/scontrol"
chmod +x "$SLURM_CORRAL_BIN/srun" "$SLURM_CORRAL_BIN/scontrol"; export PATH="$SLURM_CORRAL_BIN:$PATH"
"""


def surrounding(
    *, tasks: int, cpus: int, gpus: str, memory_mib: str | None, queue: str, here: str, indices: tuple[int, ...] | None
) -> str:
    """Return shell lines that set Slurm's variables and put its commands first on PATH.

    ``tasks``, ``cpus`` (of a task), ``gpus`` and ``memory_mib`` (``None``: not asked for) are of one node.
    """
    said = {"tasks": str(tasks), "cpus": str(cpus), "node-cpus": str(tasks * cpus), "gpus": gpus, "queue": queue}
    said["here"] = here
    text = _VARIABLES
    if memory_mib is not None:
        text += _MEMORY
        said["memory"] = memory_mib
    if indices is not None:
        text += _ARRAY
        said |= {"count": str(len(indices)), "least": str(min(indices)), "most": str(max(indices))}
    for name, value in said.items():
        text = text.replace(f"@{name}@", shlex.quote(value))
    commands = _COMMANDS.replace("@srun@", _on_one_line(SRUN)).replace("@scontrol@", _on_one_line(SCONTROL))
    return text + commands


def on_first_line(lines: str) -> str:
    """Return shell lines on one line: it takes the place of ``#!``, so that line numbers stay true."""
    return "".join(f"{line}; " for line in lines.splitlines())


def _on_one_line(text: str) -> str:
    """Quote a text for bash as ``$'...'``."""
    quoted = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"$'{quoted}'"
