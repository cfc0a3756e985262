"""The files that a small private Slurm is configured by, as text. Slurm 22.05 and newer; ``man slurm.conf``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

TUNED: Mapping[str, str] = MappingProxyType({"SchedulerParameters": "batch_sched_delay=0,sched_min_interval=0"})
"""Stock Slurm waits up to 3 s between a submit and its scheduling, and 2 s between two rounds: both set to nothing."""


@dataclass(frozen=True)
class Shape:
    """What the cluster claims to have. ``extra`` are lines of slurm.conf that are added to, or replace, the rest."""

    nodes: int = 4
    gpus_per_node: int = 8
    gpu_model: str = "h100"
    cpus_per_node: int = 64
    memory_per_node_mib: int = 500_000
    extra: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Endpoint:
    """Where a daemon listens. ``hostname`` is what ``gethostname`` says to that daemon."""

    hostname: str
    address: str
    port: int


def node_name(index: int) -> str:
    """Return the name of a node, counted from 0."""
    return f"n{index + 1}"


def node_names(count: int) -> str:
    """Return the names of the first ``count`` nodes in Slurm's notation."""
    return f"n[1-{count}]"


def slurm_conf(directory: Path, shape: Shape, controller: Endpoint, nodes: Sequence[Endpoint]) -> str:
    """Return slurm.conf of a cluster that lives in ``directory``, one endpoint for each node."""
    settings = {
        "ClusterName": "bench",
        "SlurmctldHost": f"{controller.hostname}({controller.address})",
        "SlurmctldPort": str(controller.port),
        "SlurmUser": "root",
        "SlurmdUser": "root",
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={directory}/munge/socket",
        "StateSaveLocation": f"{directory}/state",
        "SlurmdSpoolDir": f"{directory}/spool/%n",
        "SlurmctldPidFile": f"{directory}/pid/slurmctld",
        "SlurmdPidFile": f"{directory}/pid/slurmd-%n",
        "SlurmctldLogFile": f"{directory}/log/slurmctld.log",
        "SlurmdLogFile": f"{directory}/log/slurmd-%n.log",
        # Without cgroups: the same files serve a container that may not make any.
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "JobAcctGatherType": "jobacct_gather/none",
        "AccountingStorageType": "accounting_storage/none",
        "MpiDefault": "none",
        "SwitchType": "switch/none",
        "ReturnToService": "2",
        # Nodes have what is claimed below, whatever the machine has.
        "SlurmdParameters": "config_overrides",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core_Memory",
        "DefMemPerCPU": "1000",
        "GresTypes": "gpu",
        "MaxJobCount": "200000",
        "PriorityType": "priority/multifactor",
        **shape.extra,
    }
    lines = [f"{name}={value}" for name, value in settings.items()]
    sockets = 2 if shape.cpus_per_node % 2 == 0 else 1
    for index, node in enumerate(nodes):
        lines.append(
            f"NodeName={node_name(index)} NodeHostname={node.hostname} NodeAddr={node.address} Port={node.port}"
            f" CPUs={shape.cpus_per_node} Sockets={sockets} CoresPerSocket={shape.cpus_per_node // sockets}"
            f" ThreadsPerCore=1 RealMemory={shape.memory_per_node_mib} Gres=gpu:{shape.gpu_model}:{shape.gpus_per_node}"
        )
    lines.append(f"PartitionName=main Nodes={node_names(shape.nodes)} Default=YES MaxTime=INFINITE OverSubscribe=NO")
    return "\n".join(lines) + "\n"


def gres_conf(directory: Path, shape: Shape) -> str:
    """Return gres.conf: every node has the fake devices of ``directory``."""
    return (
        "AutoDetect=off\n"
        f"NodeName={node_names(shape.nodes)} Name=gpu Type={shape.gpu_model}"
        f" File={directory}/gpu/{device_range(shape.gpus_per_node)}\n"
    )


def device_range(count: int) -> str:
    """Return the file names of ``count`` fake devices in Slurm's notation."""
    return f"gpu[0-{count - 1}]" if count > 1 else "gpu0"


def cgroup_conf() -> str:
    """Return cgroup.conf. slurmd refuses to start where it cannot name the cgroup version, even when it uses none."""
    return "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n"
