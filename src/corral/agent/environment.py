"""The environment of a task: complete, and nothing of the agent's own beyond what every program needs."""

from __future__ import annotations

from collections.abc import Mapping

from corral.agent import replicadir
from corral.agent.config import AgentConfig
from corral.model.ids import DeviceId
from corral.model.messages import LaunchTask

INHERITED = ("PATH", "HOME", "USER", "LANG", "TZ")
DEVICES_NAME = "CORRAL_DEVICES"
LEASE_NAME = "CORRAL_LEASE_S"
_PATH_DEFAULT = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def task_environment(
    command: LaunchTask,
    config: AgentConfig,
    vendors: Mapping[DeviceId, str],
    task_dir: str,
    inherited: Mapping[str, str],
) -> dict[str, str]:
    """Return the environment of one task.

    The user's own variables come last, so they win, except over ``CORRAL_*`` and the ``PORT`` of a replica, which tell
    the truth about the task. Raises ``NotServable``.

    Args:
        command: What is launched.
        config: The agent.
        vendors: The vendor of every device of the node by uuid.
        task_dir: The task's directory.
        inherited: What the task has of the agent's environment: the variables named in ``INHERITED``.
    """
    env = dict(inherited)
    env.setdefault("PATH", _PATH_DEFAULT)
    env |= rendezvous(command)
    env |= devices(command, vendors)
    env |= {name: value for name, value in command.envs.items() if not name.startswith("CORRAL_")}
    env |= identity(command, config, task_dir)
    env |= replicadir.environment(command, task_dir)
    return env


def rendezvous(command: LaunchTask) -> dict[str, str]:
    """Return how the ranks of a gang find each other, in the words of torchrun.

    ``WORLD_SIZE`` counts one process per device on all nodes: that of the size which an elastic job got.
    """
    first = next((peer for peer in command.peers if peer.rank == 0), None)
    nodes, per_node = max(1, len(command.peers)), max(1, len(command.placement.devices))
    meeting = {
        "MASTER_ADDR": first.address if first is not None else "127.0.0.1",
        "MASTER_PORT": str(command.master_port),
    }
    # The one port that a replica without peers has is for its requests.
    alone = command.serving is not None and not command.is_gang
    return ({} if alone else meeting) | {
        "NODE_RANK": str(command.task.rank),
        "NNODES": str(nodes),
        "NPROC_PER_NODE": str(per_node),
        "WORLD_SIZE": str(nodes * per_node),
    }


def devices(command: LaunchTask, vendors: Mapping[DeviceId, str]) -> dict[str, str]:
    """Return which devices a program may see. A task without devices sees none.

    ``CUDA_VISIBLE_DEVICES`` takes uuids (CUDA C++ Programming Guide, environment variables), ``ROCR_VISIBLE_DEVICES``
    as well (ROCm documentation, GPU isolation).
    """
    held = [share.uuid for share in command.placement.devices]
    amd = [uuid for uuid in held if vendors.get(uuid) == "amd"]
    env = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    # HIP honours CUDA_VISIBLE_DEVICES too: an empty one would hide the AMD devices again.
    if not amd:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(held)
    if "amd" in vendors.values():
        env["ROCR_VISIBLE_DEVICES"] = ",".join(amd)
    if any(vendors.get(uuid) == "simulated" for uuid in held):
        env["CORRAL_SIMULATED"] = "1"
    return env


def identity(command: LaunchTask, config: AgentConfig, task_dir: str) -> dict[str, str]:
    """Return what a task may know about itself and where its files go."""
    task = command.task
    job_dir = config.job_dir(task.job)
    held = command.placement.devices
    env = {
        "CORRAL_JOB": task.job,
        "CORRAL_JOB_NAME": command.name,
        "CORRAL_TASK": f"{task}.{command.incarnation}",
        "CORRAL_INCARNATION": str(command.incarnation),
        "CORRAL_GANG": str(task.gang),
        "CORRAL_RANK": str(task.rank),
        "CORRAL_NODE": config.node,
        "CORRAL_TENANT": command.tenant,
        "CORRAL_RESTARTS": str(command.restarts),
        "CORRAL_CHECKPOINT_DIR": f"{job_dir}/checkpoint/{task.gang}",
        "CORRAL_OUTPUT_DIR": f"{task_dir if config.cluster_path else job_dir}/output",
        "CORRAL_DATA_DIR": f"{config.state_dir}/nodes/{config.node}/data",
        "CORRAL_TASK_DIR": task_dir,
        "CORRAL_NUM_NODES": str(max(1, len(command.peers))),
        "CORRAL_NUM_GPUS": str(len(held)),
        "CORRAL_GPU_MILLI": str(sum(share.milli for share in held) if held else 0),
        DEVICES_NAME: ",".join(share.uuid for share in held),
    }
    if command.checkpoint is not None and command.checkpoint.path is not None:
        env["CORRAL_CHECKPOINT_DIR"] = command.checkpoint.path
    if command.array_index is not None:
        env["CORRAL_ARRAY_INDEX"] = str(command.array_index)
    if command.lease_s is not None:
        env[LEASE_NAME] = repr(command.lease_s)
    return env
