"""The batch script of a pilot: an allocation of Slurm whose machines join a pool for as long as it lasts."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence

STOP_S = 60
"""How long a machine may take to leave beside the time that its tasks have to save themselves."""

SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=corral
#SBATCH --ntasks-per-node=1
#SBATCH --signal=B:TERM@{leave_s}
# Every machine of this allocation joins the pool, with the CPUs, memory and GPUs that Slurm gives. The join token comes
# from the environment in which sbatch is called (CORRAL_JOIN_TOKEN). Before the time limit, and on
# `scancel --batch --signal=TERM JOB`, they leave: their tasks save themselves and go on elsewhere.
set -u
on_every_node() {{
    srun --overlap --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_ON_NODE" --cpu-bind=none --kill-on-bad-exit=0 "$@"
}}
leave() {{
    on_every_node {corral} leave --drain-timeout {drain_s}s
}}
trap leave TERM
on_every_node {corral} join {join} --block --drain-timeout {drain_s}s &
while [ -n "$(jobs -pr)" ]; do wait; done
"""


def pilot_script(corral: Sequence[str], join: Sequence[str], drain_s: float) -> str:
    """Return the script. ``corral`` is how the command is started on the machines, ``join`` its arguments.

    Tasks have ``drain_s`` seconds to save themselves, and the machines leave so much earlier.
    """
    whole_s = math.ceil(drain_s)
    return SCRIPT.format(corral=shlex.join(corral), join=shlex.join(join), drain_s=whole_s, leave_s=whole_s + STOP_S)
