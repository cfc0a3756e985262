"""``srun`` and ``scontrol`` as programs for batch scripts: real files, so that ``timeout srun`` finds them as well."""

from __future__ import annotations

SCONTROL = """\
#!/usr/bin/env bash
[ "${1:-} ${2:-}" = "show hostnames" ] || [ "${1:-} ${2:-}" = "show hostname" ] || {
    echo "scontrol: corral knows 'scontrol show hostnames' alone" >&2
    exit 1
}
echo "$SLURM_JOB_NODELIST"
"""

SRUN = """\
#!/usr/bin/env bash
tasks=$SLURM_NTASKS_PER_NODE nodes=$SLURM_NNODES wanted='' each='' status=0
ignored=()
pids=()
while [ $# -gt 0 ]; do
    option=$1 value='' given=$1
    case $option in
        --) shift; break ;;
        --*=*) value=${option#*=} option=${option%%=*}; shift ;;
        --contiguous | --disable-status | --exact | --exclusive | --hold | --immediate | --kill-on-bad-exit | \\
        --label | --multi-prog | --nice | --no-allocate | --no-kill | --overcommit | --overlap | --oversubscribe | \\
        --parsable | --preserve-env | --propagate | --pty | --quiet | --quit-on-interrupt | --reboot | --spread-job | \\
        --test-only | --unbuffered | --use-min-nodes | --verbose | -[EHIKOQXZklqsuv]) shift ;;
        --* | -?) value=${2:-} given="$1 ${2:-}"; shift; shift || true ;;
        -*) value=${option:2} option=${option:0:2}; shift ;;
        *) break ;;
    esac
    case $option in
        -n | --ntasks) wanted=$value ;;
        -N | --nodes) nodes=${value%%-*} ;;
        --ntasks-per-node) each=$value ;;
        *) ignored+=("$given") ;;
    esac
done
[ ${#ignored[@]} -eq 0 ] || echo "srun: no effect in corral: ${ignored[*]}" >&2
[ $# -gt 0 ] || {
    echo "srun: there is no command" >&2
    exit 1
}
if [ "$nodes" = 1 ] && [ "$1" = hostname ]; then
    echo "$SLURM_JOB_NODELIST"
    exit 0
fi
[ "$SLURM_NODEID" -lt "$nodes" ] || exit 0
[ -z "$wanted" ] || tasks=$(((wanted + nodes - 1) / nodes))
[ -z "$each" ] || tasks=$each
told=0
trap 'told=1; kill -TERM "${pids[@]}" 2>/dev/null' INT TERM
for ((i = 0; i < tasks; i++)); do
    SLURM_LOCALID=$i SLURM_PROCID=$((SLURM_NODEID * tasks + i)) SLURM_NTASKS=$((tasks * nodes)) "$@" &
    pids+=($!)
done
# A signal may have come before the last task was in the list.
[ $told = 0 ] || kill -TERM "${pids[@]}" 2>/dev/null
for i in "${pids[@]}"; do
    wait "$i" || status=$?
done
wait
exit $status
"""
