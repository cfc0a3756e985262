"""Words for tests of the agent: commands, exits, identities."""

from __future__ import annotations

from typing import Any

from corral.agent.core import Identity
from corral.model.ids import DeviceId, JobId, NodeId, TaskKey
from corral.model.job import Cause, TaskExit
from corral.model.messages import Acknowledge, LaunchTask, Peer, StopTask
from corral.model.resources import DeviceShare, DeviceSpec, NodeSpec, Placement

NODE = NodeId("node-1")
GPU = DeviceId("GPU-0")
OTHER_GPU = DeviceId("GPU-1")


def key(job: int = 1, gang: int = 0, rank: int = 0) -> TaskKey:
    return TaskKey(JobId(str(job)), gang, rank)


def launch(task: TaskKey, incarnation: int = 1, *, epoch: int = 1, **changes: Any) -> LaunchTask:
    command: dict[str, Any] = {
        "node": NODE,
        "epoch": epoch,
        "task": task,
        "incarnation": incarnation,
        "placement": Placement(task.rank, NODE, (DeviceShare(GPU, 1000),), 1000, 256),
        "tenant": "default",
        "name": "work",
        "array_index": None,
        "is_gang": False,
        "peers": (Peer(0, NODE, "10.0.0.1"),),
        "master_port": 0,
        "argv": ("true",),
        "script": None,
        "setup": None,
        "envs": {},
        "workdir": None,
        "file_mounts": {},
        "max_duration_s": None,
        "grace_s": 5.0,
        "checkpoint": None,
        "lease_s": None,
    }
    return LaunchTask(**{**command, **changes})


def stop(task: TaskKey, incarnation: int = 1, *, epoch: int = 1, reason: str = "cancelled") -> StopTask:
    return StopTask(node=NODE, epoch=epoch, task=task, incarnation=incarnation, reason=reason, grace_s=3.0)


def acknowledge(task: TaskKey, incarnation: int = 1, *, epoch: int = 1) -> Acknowledge:
    return Acknowledge(node=NODE, epoch=epoch, task=task, incarnation=incarnation)


def exited(code: int = 0, *, started_at: float | None = 10.0) -> TaskExit:
    return TaskExit(Cause.EXITED, exit_code=code, started_at=started_at, ended_at=20.0)


def identity() -> Identity:
    devices = tuple(DeviceSpec(uuid, "H100", "nvidia", 81559, index) for index, uuid in enumerate((GPU, OTHER_GPU)))
    return Identity(NodeSpec(NODE, "host", "10.0.0.1", 8000, 65536, devices), 4711, "start-1")
