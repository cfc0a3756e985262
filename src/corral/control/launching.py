"""From facts to commands: what an agent is told when a gang is placed or stopped."""

from __future__ import annotations

from corral.model.ids import NodeId
from corral.model.job import Cause, Gang, Job, JobSpec, StopReason, Task
from corral.model.messages import LaunchTask, Peer, StopTask
from corral.model.resources import NodeSpec
from corral.model.service import ReplicaPhase, Secrets
from corral.model.state import Node, PoolState


def peers_of(gang: Gang, nodes: dict[NodeId, Node]) -> tuple[Peer, ...]:
    """Return where all ranks of a placed gang run."""
    return tuple(
        Peer(task.rank, task.placement.node, _address(nodes[task.placement.node].spec))
        for task in gang.tasks
        if task.placement is not None
    )


def _address(spec: NodeSpec) -> str:
    return spec.address or spec.hostname


def launch(job: Job, gang: Gang, task: Task, state: PoolState, *, epoch: int, leases: bool) -> LaunchTask:
    """Return the command that starts one rank of a placed gang."""
    spec = job.spec
    placement = task.placement
    if placement is None:
        raise ValueError(f"task {job.id}.{gang.index}.{task.rank} is not placed")
    rank0 = gang.tasks[0].placement
    return LaunchTask(
        node=placement.node,
        epoch=epoch,
        task=job.task_key(gang.index, task.rank),
        incarnation=gang.incarnation,
        placement=placement,
        tenant=spec.tenant,
        name=spec.name,
        array_index=spec.indices[gang.index] if spec.is_array else None,
        is_gang=spec.shape.ranks > 1,
        peers=peers_of(gang, state.nodes),
        master_port=(rank0.port if rank0 is not None else None) or 0,
        argv=spec.argv,
        script=spec.script,
        setup=spec.setup,
        envs={**spec.envs, **spec.point(gang.index)},
        workdir=spec.workdir,
        file_mounts=spec.file_mounts,
        max_duration_s=spec.max_duration_s,
        grace_s=spec.grace_s,
        checkpoint=spec.checkpoint,
        lease_s=spec.lease_s if leases and spec.fencing == "exclusive" else None,
        restarts=gang.restarts + gang.moves,
        files=spec.files,
        outputs=spec.outputs,
        restore=tuple(dict.fromkeys(saved.tree for saved in gang.saved)),
        serving=spec.serving,
        secrets=_secrets(spec, state),
    )


def _secrets(spec: JobSpec, state: PoolState) -> Secrets | None:
    """Return what a replica knows front ends by, ``None`` for every other task."""
    service = state.services.get(spec.serving.service) if spec.serving is not None else None
    return None if service is None else service.secrets.for_replica()


STOP_CAUSE = {
    StopReason.CANCELLED: Cause.CANCELLED,
    StopReason.RANK_ENDED: Cause.GANG_STOPPED,
    StopReason.DEVICE_FAILED: Cause.DEVICE_FAILED,
    StopReason.PREEMPTED: Cause.PREEMPTED,
    StopReason.NODE_LOST: Cause.GANG_STOPPED,
}
"""What the end of a task is put down to when its gang was stopped."""


POOL_STOP_SAVING_MAX_S = 60.0
"""So long at most a pool that is stopped waits for the checkpoints of its jobs; who takes devices away waits longer."""

KEEPER = "its service"
"""Who ends replicas that serve nobody any more."""

_DRAINED = frozenset({StopReason.CANCELLED, StopReason.PREEMPTED})
"""Stops that can wait: of others the node or the device is gone."""


def serves(job: Job, gang: Gang, state: PoolState) -> bool:
    """Return whether front ends send requests to a replica."""
    service = state.services.get(job.spec.serving.service) if job.spec.serving is not None else None
    replica = service.replicas.get(job.id) if service is not None else None
    return replica is not None and replica.phase is ReplicaPhase.SERVING and replica.incarnation == gang.incarnation


def draining_s(job: Job, gang: Gang, reason: StopReason, state: PoolState) -> float:
    """Return how long a stopped replica may go on with the requests that it has: it gets no new ones meanwhile.

    It is told to end sooner when there are none left. One that its service ends has been emptied already.
    """
    if job.spec.serving is None or reason not in _DRAINED or job.cancelled_by == KEEPER:
        return 0.0
    service = state.services.get(job.spec.serving.service)
    replica = service.replicas.get(job.id) if service is not None else None
    served = replica is not None and replica.incarnation == gang.incarnation
    return job.spec.serving.drain_s if served else 0.0


def stops(
    job: Job, gang: Gang, reason: StopReason, *, epoch: int, pool_stops: bool = False, draining_s: float = 0.0
) -> list[StopTask]:
    """Return the commands that stop every live rank of a gang.

    One that is to go on elsewhere may save itself first, and a replica goes on for ``draining_s`` with what it has.
    """
    saving_s = draining_s
    if reason is StopReason.PREEMPTED and job.spec.checkpoint is not None:
        saving_s = max(saving_s, job.spec.checkpoint.grace_s)
    if pool_stops:
        saving_s = min(saving_s, POOL_STOP_SAVING_MAX_S)
    return [
        StopTask(
            node=task.placement.node,
            epoch=epoch,
            task=job.task_key(gang.index, task.rank),
            incarnation=gang.incarnation,
            reason=STOP_CAUSE[reason],
            grace_s=job.spec.grace_s,
            saving_s=saving_s,
        )
        for task in gang.tasks
        if task.state.holds and task.placement is not None
    ]
