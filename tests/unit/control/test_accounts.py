"""Usage by the hour, rows of finished jobs, by values worked out by hand."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from corral.control import reports
from corral.control.accounts import finished_row, hours, listed_job, lost_rows, usage_rows, with_checkpoint
from corral.control.inputs import Cancel
from corral.model.ask import JobAsk
from corral.model.events import GangEnded, GangRequeued
from corral.model.ids import DeviceId, JobId, NodeId, TenantId
from corral.model.job import Cause, CheckpointSpec, Gang, Job, JobSpec, JobState, StopReason, Task, TaskState
from corral.model.offer import Outlook, Proposal
from corral.model.resources import Demand, DeviceShare, GangShape, Placement
from corral.ports.store import UsageRow
from tests.unit.control.world import World

A = TenantId("a")


def test_seconds_are_split_at_whole_hours() -> None:
    assert list(hours(7_100.0, 10_900.0)) == [(3_600, 100.0), (7_200, 3_600.0), (10_800, 100.0)]
    assert list(hours(7_200.0, 7_200.0)) == []
    assert list(hours(9.0, 8.0)) == []
    share = Placement(0, NodeId("n"), (DeviceShare(DeviceId("d"), 250),), 2_000, 10)
    assert list(usage_rows(A, share, 7_190.0, 7_210.0)) == [
        UsageRow(A, 3_600, 2_500.0, 20_000.0),
        UsageRow(A, 7_200, 2_500.0, 20_000.0),
    ]


def test_lost_use_counts_what_each_rank_held_until_it_ended() -> None:
    device = (DeviceShare(DeviceId("d"), 1_000),)
    tasks = (
        Task(0, TaskState.LOST, Placement(0, NodeId("n"), device, 1, 1), ended_at=7_250.0),
        Task(1, TaskState.FAILED, Placement(1, NodeId("n"), (), 1, 1), ended_at=7_250.0),
        Task(2, TaskState.PENDING),
    )
    gang = Gang(0, tasks, placed_at=7_100.0)
    again = GangRequeued(at=9_000.0, job=JobId("1"), gang=0, incarnation=1, counted=False, reason="x")
    assert list(lost_rows(A, gang, again)) == [
        UsageRow(A, 3_600, 0.0, 0.0, 100_000.0),
        UsageRow(A, 7_200, 0.0, 0.0, 50_000.0),
    ]
    assert list(lost_rows(A, Gang(0, tasks), again)) == []
    # Saved at 7,220: what came after is lost. A checkpoint of an earlier run changes nothing.
    assert list(lost_rows(A, gang, replace(again, saved_at=7_220.0))) == [UsageRow(A, 7_200, 0.0, 0.0, 30_000.0)]
    assert len(list(lost_rows(A, gang, replace(again, saved_at=10.0)))) == 2


@pytest.mark.parametrize(
    "saved_at, saves, stopping, expected",
    [
        (None, False, None, None),
        (150.0, False, None, 150.0),
        (150.0, False, StopReason.PREEMPTED, 150.0),
        (50.0, False, None, None),
        (250.0, False, None, None),
        (150.0, True, StopReason.PREEMPTED, 200.0),
        (150.0, True, StopReason.RANK_ENDED, 150.0),
    ],
    ids=["unknown", "reported", "preempted", "of an earlier run", "of tomorrow", "saves when told to", "had no time"],
)
def test_a_requeued_gang_keeps_what_it_saved_in_this_run(
    saved_at: float | None, saves: bool, stopping: StopReason | None, expected: float | None
) -> None:
    spec = JobSpec(name="j", tenant=A, shape=GangShape(1, Demand(1000)), checkpoint=CheckpointSpec() if saves else None)
    gang = Gang(0, (Task(0, TaskState.LOST),), JobState.RUNNING, 1, placed_at=100.0, stopping=stopping)
    job = Job(JobId("1"), spec, 1.0, {0: gang})
    fact = GangRequeued(at=200.0, job=job.id, gang=0, incarnation=1, counted=False, reason="x")
    proposal = Proposal(job.id, 1, (), {0: Outlook(saved_at=saved_at)})
    assert with_checkpoint(fact, job, proposal) == replace(fact, saved_at=expected)
    ended = GangEnded(at=200.0, job=job.id, gang=0, incarnation=1, state=JobState.FAILED)
    assert with_checkpoint(ended, job, proposal) is ended
    assert with_checkpoint(fact, None, None) is fact


def test_what_a_restart_threw_away_is_in_the_usage_of_its_hour() -> None:
    world = World(n1=4)
    rows: list[UsageRow] = []
    drain = world.core.drain

    def watched() -> object:
        outcome = drain()
        rows.extend(outcome.usage)
        return outcome

    world.core.drain = watched  # type: ignore[method-assign, assignment]
    world.submit(JobAsk(argv=("x",), gpu_milli=2000, cpus_milli=1000, max_restarts=1))
    world.start("1")
    world.now += 60.0
    world.end("1", code=1)
    world.now += 30.0
    world.end("1", code=0)
    (total,) = reports.merge_usage(rows)
    assert (total.gpu_milli_s, total.cpus_milli_s, total.lost_gpu_milli_s) == (180_000.0, 90_000.0, 120_000.0)
    (row,) = world.finished
    assert (row.used_gpu_milli_s, row.lost_gpu_milli_s, row.restarts) == (180_000.0, 120_000.0, 1)


def test_a_finished_row_lists_as_the_job_that_it_was() -> None:
    world = World(n1=4)
    world.submit(JobAsk(name="sweep", argv=("x",), gpu_milli=500, gpu_model="H100", indices=(3, 5)))
    world.end("1", 0)
    world.end("1", 1, code=2)
    (row,) = world.finished
    whole, listed = msgspec.json.decode(row.document, type=Job), listed_job(row)
    assert (listed.spec.name, listed.spec.gangs, listed.spec.is_array, listed.exit_code) == ("sweep", 2, True, 2)
    assert listed.exit_cause is Cause.EXITED
    same = ("id", "state", "submitted_at", "started_at", "ended_at", "message", "exit_code", "exit_cause", "user")
    assert [getattr(listed, name) for name in same] == [getattr(whole, name) for name in same]
    assert finished_row(whole, 0.25) == msgspec.structs.replace(row, idle_share=0.25)


def test_an_elastic_job_that_has_ended_lists_with_its_last_size() -> None:
    world = World(n1=4)
    world.submit(JobAsk(argv=("x",), gpu_milli=3000))
    world.submit(JobAsk(argv=("x",), gpu_milli=4000, gpu_counts=(1, 4)))
    world.start("2")
    world.end("2")
    world.submit(JobAsk(argv=("x",), gpu_milli=4000, gpu_counts=(2, 4)))
    world.tell(Cancel(JobId("3"), "me"))
    ran, never_ran = world.finished
    assert (ran.ranks, ran.gpu_milli) == (1, 1000)
    assert (never_ran.ranks, never_ran.gpu_milli) == (1, 4000)
    assert listed_job(ran).size == GangShape(1, Demand(1000))


def test_merging_adds_rows_of_a_tenant_and_hour() -> None:
    b = TenantId("b")
    rows = [UsageRow(b, 0, 1.0, 2.0, 3.0), UsageRow(A, 3_600, 1.0, 1.0), UsageRow(b, 0, 10.0, 20.0, 30.0)]
    assert reports.merge_usage(rows) == (UsageRow(A, 3_600, 1.0, 1.0), UsageRow(b, 0, 11.0, 22.0, 33.0))
