"""Usage by the hour, rows of finished jobs, by values worked out by hand."""

from __future__ import annotations

import msgspec

from corral.control import reports
from corral.control.accounts import finished_row, hours, listed_job, lost_rows, usage_rows
from corral.model.ask import JobAsk
from corral.model.ids import DeviceId, NodeId, TenantId
from corral.model.job import Cause, Gang, Job, Task, TaskState
from corral.model.resources import DeviceShare, Placement
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
    assert list(lost_rows(A, gang, 9_000.0)) == [
        UsageRow(A, 3_600, 0.0, 0.0, 100_000.0),
        UsageRow(A, 7_200, 0.0, 0.0, 50_000.0),
    ]
    assert list(lost_rows(A, Gang(0, tasks), 9_000.0)) == []


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


def test_merging_adds_rows_of_a_tenant_and_hour() -> None:
    b = TenantId("b")
    rows = [UsageRow(b, 0, 1.0, 2.0, 3.0), UsageRow(A, 3_600, 1.0, 1.0), UsageRow(b, 0, 10.0, 20.0, 30.0)]
    assert reports.merge_usage(rows) == (UsageRow(A, 3_600, 1.0, 1.0), UsageRow(b, 0, 11.0, 22.0, 33.0))
