"""Stop commands: who may save itself first, and for how long."""

from __future__ import annotations

import pytest

from corral.control.launching import stops
from corral.model.ids import JobId, NodeId, TenantId
from corral.model.job import CheckpointSpec, Gang, Job, JobSpec, JobState, StopReason, Task, TaskState
from corral.model.resources import Demand, GangShape, Placement

SHAPE = GangShape(2, Demand(1_000))


def saving(reason: StopReason, checkpoint: CheckpointSpec | None, *, pool_stops: bool = False) -> list[float]:
    tasks = tuple(Task(rank, TaskState.RUNNING, Placement(rank, NodeId("n"), (), 1_000, 64)) for rank in range(2))
    gang = Gang(0, tasks, JobState.RUNNING, 1)
    job = Job(
        JobId("1"), JobSpec("x", TenantId("a"), SHAPE, ("x",), checkpoint=checkpoint, grace_s=3.0), 0.0, {0: gang}
    )
    orders = stops(job, gang, reason, epoch=1, pool_stops=pool_stops)
    assert [order.grace_s for order in orders] == [3.0, 3.0]
    return [order.saving_s for order in orders]


@pytest.mark.parametrize("grace_s", [0.0, 45.0, 600.0])
def test_who_is_preempted_has_its_whole_grace_to_save_itself(grace_s: float) -> None:
    assert saving(StopReason.PREEMPTED, CheckpointSpec("USR1", grace_s)) == [grace_s] * 2


def test_a_pool_that_stops_waits_a_minute_at_most() -> None:
    assert saving(StopReason.PREEMPTED, CheckpointSpec("USR1", 600.0), pool_stops=True) == [60.0] * 2
    assert saving(StopReason.PREEMPTED, CheckpointSpec("USR1", 5.0), pool_stops=True) == [5.0] * 2


@pytest.mark.parametrize("reason", [reason for reason in StopReason if reason is not StopReason.PREEMPTED])
def test_who_is_stopped_for_good_or_broke_is_not_asked(reason: StopReason) -> None:
    assert saving(reason, CheckpointSpec("USR1", 600.0)) == [0.0] * 2


def test_who_saves_nothing_is_not_asked() -> None:
    assert saving(StopReason.PREEMPTED, None) == [0.0] * 2
