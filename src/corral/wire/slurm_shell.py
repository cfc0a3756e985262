"""What a batch script finds in place of Slurm: its variables, ``srun`` and ``scontrol show hostnames``.

Slurm runs a batch script once, on the first node, and ``srun`` starts the tasks on all. Here every node of a gang runs
the script, and ``srun`` starts the tasks of its own node: together the same tasks with the same numbers. (What stands
outside ``srun`` runs on every node.)
"""

from __future__ import annotations

import shlex

_VARIABLES = """\
export SLURM_JOB_ID=$CORRAL_JOB SLURM_JOBID=$CORRAL_JOB SLURM_JOB_NAME=$CORRAL_JOB_NAME SLURM_CLUSTER_NAME=corral
export SLURM_NNODES=${NNODES:-1} SLURM_JOB_NUM_NODES=${NNODES:-1} SLURM_NODEID=${NODE_RANK:-0} SLURM_LOCALID=0
export SLURM_NTASKS_PER_NODE=@tasks@ SLURM_NTASKS=$((@tasks@ * ${NNODES:-1})) SLURM_CPUS_PER_TASK=@cpus@
export SLURM_NPROCS=$SLURM_NTASKS SLURM_PROCID=$((@tasks@ * ${NODE_RANK:-0})) SLURM_RESTART_COUNT=${CORRAL_RESTARTS:-0}
export SLURMD_NODENAME=${CORRAL_NODE:-localhost} SLURM_GPUS_ON_NODE=@gpus@ SLURM_JOB_PARTITION=@queue@
export SLURM_SUBMIT_DIR=@here@ SLURM_JOB_NODELIST=${MASTER_ADDR:-localhost} SLURM_NODELIST=${MASTER_ADDR:-localhost}
"""
_ARRAY = """\
export SLURM_ARRAY_JOB_ID=$CORRAL_JOB SLURM_ARRAY_TASK_ID=${CORRAL_ARRAY_INDEX:-0} SLURM_ARRAY_TASK_COUNT=@count@
export SLURM_ARRAY_TASK_MIN=@least@ SLURM_ARRAY_TASK_MAX=@most@
"""
_FUNCTIONS = """\
scontrol() {
[ "${1:-} ${2:-}" = "show hostnames" ] || [ "${1:-} ${2:-}" = "show hostname" ] || {
echo "scontrol: corral knows 'scontrol show hostnames' alone" >&2
return 1
}
echo "${SLURM_JOB_NODELIST}"
}
srun() {
local tasks=$SLURM_NTASKS_PER_NODE nodes=$SLURM_NNODES wanted= each= option value i status=0
local -a pids=()
while [ $# -gt 0 ]; do
option=$1
case $option in
--) shift; break;;
--*=*) value=${option#*=}; option=${option%%=*}; shift;;
--label|--unbuffered|--overlap|--exclusive|--exact|--overcommit|--no-kill|--pty|--quiet|--verbose|--preserve-env)
shift; continue;;
--kill-on-bad-exit|-[EHKOQXZeklqsuv]) shift; continue;;
--*|-?) value=${2:-}; shift; shift || true;;
-*) value=${option:2}; option=${option:0:2}; shift;;
*) break;;
esac
case $option in
-n|--ntasks) wanted=$value;;
-N|--nodes) nodes=${value%%-*};;
--ntasks-per-node) each=$value;;
esac
done
[ $# -gt 0 ] || {
echo "srun: there is no command" >&2
return 1
}
if [ "$nodes" = 1 ] && [ "$1" = hostname ]; then
echo "${SLURM_JOB_NODELIST}"
return 0
fi
[ "$SLURM_NODEID" -lt "$nodes" ] || return 0
[ -z "$wanted" ] || tasks=$(((wanted + nodes - 1) / nodes))
[ -z "$each" ] || tasks=$each
for ((i = 0; i < tasks; i++)); do
SLURM_LOCALID=$i SLURM_PROCID=$((SLURM_NODEID * tasks + i)) SLURM_NTASKS=$((tasks * nodes)) command "$@" &
pids+=($!)
done
for i in "${pids[@]}"; do
wait "$i" || status=$?
done
return $status
}
"""
_OPEN = ("{", "do", "then", " in", ";;", "&")
"""What a line of the shell text above ends with when no separator may follow."""


def variables(*, tasks: int, cpus: int, gpus: str, queue: str, here: str, indices: tuple[int, ...] | None) -> str:
    """Return shell lines that set Slurm's variables. ``tasks``, ``cpus`` (of a task) and ``gpus`` are of one node."""
    said = {"tasks": str(tasks), "cpus": str(cpus), "gpus": gpus, "queue": queue, "here": here}
    text = _VARIABLES
    if indices is not None:
        text += _ARRAY
        said |= {"count": str(len(indices)), "least": str(min(indices)), "most": str(max(indices))}
    for name, value in said.items():
        text = text.replace(f"@{name}@", shlex.quote(value))
    return text


def preamble(variable_lines: str) -> str:
    """Return variables and functions on one line: it takes the place of ``#!``, so that line numbers stay true."""
    joined = ""
    for line in (variable_lines + _FUNCTIONS).splitlines():
        joined += line + (" " if line.endswith((*_OPEN, "--preserve-env)")) else "; ")
    return joined
