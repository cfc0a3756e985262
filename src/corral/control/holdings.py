"""What running gangs hold: to a round with how far they are and what giving way would cost, and on one node."""

from __future__ import annotations

from msgspec.structs import replace

from corral.control.outlooks import remaining_now
from corral.model.ids import GangKey, JobId, NodeId
from corral.model.job import Gang, Job, Task
from corral.model.offer import Holding, Kin, Proposal
from corral.model.state import PoolState
from corral.policy.bidding import tenure_of
from corral.policy.config import SchedulingConfig

GANGS_MAX = 100_000


def order_of(job: Job, gang: Gang) -> int:
    """Return the position of a gang in the order of submission."""
    return int(job.id) * GANGS_MAX + gang.index


def kin_of(job: Job) -> Kin | None:
    """Return which gangs a job's gang keeps away from: other replicas of its service."""
    serving = job.spec.serving
    return Kin(serving.service, serving.port) if serving is not None else None


def tenure_s(job: Job, gang: Gang, config: SchedulingConfig) -> float:
    """Return how long a gang runs undisturbed after its placement.

    The bid that won may lower the restart cost that the job declared, and the tenure; it raises neither.
    """
    bid, spec = gang.bid, job.spec
    if bid is not None and bid.restart_cost_s > 0:
        spec = replace(spec, restart_cost_s=min(spec.restart_cost_s, bid.restart_cost_s))
    tenure = tenure_of(spec, config)
    return min(tenure, bid.tenure_s) if bid is not None and bid.tenure_s > 0 else tenure


def stop_s(job: Job) -> float:
    """Return how long a gang may take to stop: it saves itself or finishes its requests, then it is terminated."""
    checkpoint, serving = job.spec.checkpoint, job.spec.serving
    drain_s = serving.drain_s if serving is not None else 0.0
    return job.spec.grace_s + max(drain_s, checkpoint.grace_s if checkpoint is not None else 0.0)


def holding_of(job: Job, gang: Gang, proposal: Proposal | None, config: SchedulingConfig) -> Holding:
    """Return what a gang that was placed holds. ``proposal`` is its job's last."""
    started = gang.placed_at if gang.placed_at is not None else job.submitted_at
    limit = job.spec.max_duration_s
    bids = proposal.bids if proposal is not None else ()
    outlook = proposal.outlooks.get(gang.index) if proposal is not None else None
    saved = outlook.saved_at if outlook is not None else None
    remaining_s, known_at = remaining_now(gang, bids, outlook, started)
    return Holding(
        key=GangKey(job.id, gang.index),
        tenant=job.spec.tenant,
        placements=gang.placements,
        started_at=started,
        ends_at=None if limit is None else started + limit + job.spec.grace_s,
        incarnation=gang.incarnation,
        queue=job.spec.queue,
        priority=job.spec.priority,
        order=order_of(job, gang),
        submitted_at=job.submitted_at,
        bids=bids or ((gang.bid,) if gang.bid is not None else ()),
        won=gang.bid,
        saved_at=saved if saved is not None and saved >= started else None,
        attained_s=gang.attained_s,
        remaining_s=remaining_s,
        known_at=known_at,
        tenure_until=started + tenure_s(job, gang, config),
        stopping=gang.stopping is not None,
        kin=kin_of(job),
    )


def tasks_on(state: PoolState, node: NodeId) -> list[tuple[Job, Gang, Task]]:
    """Return the tasks that hold something on a node."""
    held = state.held.get(node)
    found: list[tuple[Job, Gang, Task]] = []
    for name in list(held.gangs) if held is not None else ():
        number, index = name.split(".")
        job = state.jobs.get(JobId(number))
        gang = job.gangs.get(int(index)) if job is not None else None
        if job is None or gang is None:
            continue
        found.extend(
            (job, gang, task)
            for task in gang.tasks
            if task.state.holds and task.placement is not None and task.placement.node == node
        )
    return found
