"""Facts and finished jobs that the tests of the store write."""

from __future__ import annotations

from corral.model.events import Fact, GangPlaced, NodeLost, TaskEnded
from corral.model.ids import DeviceId, JobId, NodeId, TenantId
from corral.model.job import Cause, TaskExit, TaskState
from corral.model.resources import DeviceShare, Placement
from corral.ports.store import FinishedJob


def ended(at: float, job: str = "1", rank: int = 0, message: str = "") -> Fact:
    return TaskEnded(
        at=at,
        job=JobId(job),
        gang=0,
        incarnation=1,
        rank=rank,
        state=TaskState.FAILED,
        exit=TaskExit(Cause.EXITED, exit_code=1, message=message),
    )


def placed(at: float, job: str = "1") -> Fact:
    devices = (DeviceShare(DeviceId("GPU-é"), 500),)
    return GangPlaced(
        at=at, job=JobId(job), gang=0, incarnation=1, placements=(Placement(0, NodeId("n1"), devices, 1000, 64),)
    )


def lost(at: float, node: str = "n1") -> Fact:
    return NodeLost(at=at, node=NodeId(node), reason="silent")


def finished(
    number: int,
    *,
    tenant: str = "a",
    name: str = "train",
    state: str = "succeeded",
    ended_at: float = 100.0,
    key: str | None = None,
) -> FinishedJob:
    return FinishedJob(
        id=JobId(str(number)),
        number=number,
        tenant=TenantId(tenant),
        queue="default",
        name=name,
        user="ann",
        state=state,
        submitted_at=1.5,
        started_at=None if state == "cancelled" else 2.25,
        ended_at=ended_at,
        gangs=1,
        restarts=2,
        moves=3,
        used_gpu_milli_s=4000.5,
        lost_gpu_milli_s=0.0,
        idle_share=None,
        idempotency_key=key,
        request_digest=None if key is None else f"digest of {key}",
        ranks=4,
        gpu_milli=2000,
        gpu_model="H100" if number % 2 else None,
        is_array=number % 2 == 1,
        exit_code=None if state == "cancelled" else 0,
        exit_cause=None if state == "cancelled" else "exited",
        message="héllo",
        document=b'{"id": "%d", "name": "\xc3\xa9"}' % number,
    )
