"""The options of sbatch(1), Slurm 24.05: which take a value, and why some have no effect here."""

from __future__ import annotations

SHORT = {
    "A": "account",
    "a": "array",
    "B": "extra-node-info",
    "b": "begin",
    "C": "constraint",
    "c": "cpus-per-task",
    "D": "chdir",
    "d": "dependency",
    "e": "error",
    "F": "nodefile",
    "G": "gpus",
    "H": "hold",
    "i": "input",
    "J": "job-name",
    "k": "no-kill",
    "L": "licenses",
    "M": "clusters",
    "m": "distribution",
    "N": "nodes",
    "n": "ntasks",
    "O": "overcommit",
    "o": "output",
    "p": "partition",
    "Q": "quiet",
    "q": "qos",
    "S": "core-spec",
    "s": "oversubscribe",
    "t": "time",
    "v": "verbose",
    "W": "wait",
    "w": "nodelist",
    "x": "exclude",
}

_LOG = "corral keeps the log: corral logs JOB"
_BINDING = "corral binds CPUs and devices itself"
_PLACE = "corral chooses the nodes"
_SHAPE = "corral counts CPUs, not sockets and cores"
_ACCOUNT = "the token decides who pays"
_MAIL = "corral sends no mail"
_START = "the job starts as soon as it can"
_SITE = "this is Slurm's own"

IGNORED = {
    "account": _ACCOUNT,
    "acctg-freq": _SITE,
    "batch": _PLACE,
    "bb": _SITE,
    "bbf": _SITE,
    "begin": _START,
    "cluster-constraint": _PLACE,
    "clusters": _SITE,
    "comment": "corral keeps no comments",
    "constraint": f"{_PLACE}; name the device's model in --gres",
    "contiguous": _PLACE,
    "core-spec": _BINDING,
    "cores-per-socket": _SHAPE,
    "cpu-freq": _SITE,
    "cpus-per-gpu": "say --cpus-per-task",
    "deadline": _START,
    "delay-boot": _SITE,
    "distribution": _PLACE,
    "error": _LOG,
    "exclude": _PLACE,
    "exclusive": "the job gets exactly what it asks for",
    "export-file": "say --export",
    "extra": _SITE,
    "extra-node-info": _SHAPE,
    "get-user-env": "say --export",
    "gid": _ACCOUNT,
    "gpu-bind": _BINDING,
    "gpu-freq": _SITE,
    "gpus-per-socket": _SHAPE,
    "gres-flags": _BINDING,
    "hint": _BINDING,
    "hold": _START,
    "ignore-pbs": _SITE,
    "input": "tasks read nothing from a terminal",
    "kill-on-invalid-dep": "a job whose dependency cannot be met ends",
    "licenses": "corral has no licenses",
    "mail-type": _MAIL,
    "mail-user": _MAIL,
    "mcs-label": _SITE,
    "mem-bind": _BINDING,
    "mincpus": _PLACE,
    "network": _SITE,
    "nice": "shares decide the order",
    "no-kill": "a gang ends when one of its nodes is lost",
    "nodefile": _PLACE,
    "nodelist": _PLACE,
    "ntasks-per-core": _SHAPE,
    "ntasks-per-gpu": "say --ntasks-per-node",
    "ntasks-per-socket": _SHAPE,
    "open-mode": _LOG,
    "output": _LOG,
    "overcommit": "the job gets exactly what it asks for",
    "oversubscribe": "the job gets exactly what it asks for",
    "parsable": "say --json to corral",
    "prefer": _PLACE,
    "priority": "shares decide the order",
    "profile": _SITE,
    "propagate": _SITE,
    "qos": "queues and shares decide the order",
    "quiet": _SITE,
    "reboot": _SITE,
    "requeue": "jobs of lost nodes are always queued again",
    "reservation": "corral has no reservations by name",
    "segment": _PLACE,
    "sockets-per-node": _SHAPE,
    "spread-job": _PLACE,
    "switches": _PLACE,
    "test-only": "say corral why after the submit",
    "thread-spec": _BINDING,
    "threads-per-core": _SHAPE,
    "time-min": "the job gets its whole --time",
    "tmp": _PLACE,
    "tres-bind": _BINDING,
    "tres-per-task": "say --gpus-per-task",
    "uid": _ACCOUNT,
    "use-min-nodes": _PLACE,
    "verbose": _SITE,
    "wait": "say --wait to corral",
    "wait-all-nodes": "a gang starts on all its nodes together",
    "wckey": _SITE,
}
"""Option to the reason why it has no effect."""

FLAGS = frozenset(
    {
        "contiguous",
        "hold",
        "ignore-pbs",
        "no-requeue",
        "overcommit",
        "oversubscribe",
        "parsable",
        "quiet",
        "reboot",
        "requeue",
        "spread-job",
        "test-only",
        "use-min-nodes",
        "verbose",
        "wait",
    }
)
"""Options without a value."""

OPTIONAL = frozenset({"exclusive", "get-user-env", "nice", "no-kill", "propagate"})
"""Options whose value, if any, follows ``=``."""

VALUED = (
    (
        frozenset(
            {
                "array",
                "chdir",
                "cpus-per-task",
                "dependency",
                "export",
                "gpus",
                "gpus-per-node",
                "gpus-per-task",
                "gres",
                "job-name",
                "mem",
                "mem-per-cpu",
                "mem-per-gpu",
                "nodes",
                "ntasks",
                "ntasks-per-node",
                "partition",
                "signal",
                "time",
            }
        )
        | set(IGNORED)
    )
    - FLAGS
    - OPTIONAL
)
"""Options with a value."""
