"""`corral receipt` and `corral history` as text."""

from __future__ import annotations

from datetime import UTC
from typing import Any

import msgspec

from corral.cli.render.layout import as_text
from corral.cli.render.receipt import history, receipt, receipt_line
from corral.model import events
from corral.model.files import ReturnKind
from corral.model.ids import DeviceId, JobId, NodeId, TenantId
from corral.model.job import Cause, JobSpec, JobState, StopReason, TaskExit, TaskState
from corral.model.report import Receipt
from corral.model.resources import Demand, DeviceShare, GangShape, Placement
from corral.ports.store import JournalEntry

NOON = 1_764_504_000.0  # 2025-11-30 12:00:00 UTC
JOB = JobId("12")
FULL = Receipt(
    job=JOB,
    name="train\x1b[2J",
    tenant=TenantId("blue"),
    state=JobState.SUCCEEDED,
    submitted_at=NOON,
    started_at=NOON + 42,
    ended_at=NOON + 42 + 5400,
    waited_s=42.0,
    ran_s=5400.0,
    gpu_hours=12.0,
    lost_gpu_hours=1.5,
    idle_share=0.125,
    restarts=2,
    moves=1,
    gangs=1,
    exit_cause="exited",
    exit_code=0,
    nodes=(NodeId("node-0"), NodeId("node-3")),
    cpu_s=9000.0,
    rss_max_mib=2048,
    simulated=True,
)


def test_a_receipt_at_80_columns() -> None:
    assert as_text(receipt(FULL, zone=UTC), width=80) == (
        "receipt of job 12 (train\\x1b[2J), tenant blue: succeeded\n"
        "\n"
        "submitted     2025-11-30 12:00:00\n"
        "started       2025-11-30 12:00:42\n"
        "ended         2025-11-30 13:30:42\n"
        "waited        42s\n"
        "ran           1h30m\n"
        "GPU-hours     12.00 (simulated devices)\n"
        "lost work     1.50 GPU-hours (12.5% of it)\n"
        "idle share    12.5%\n"
        "restarts      2, and 1 move that no fault of the job caused\n"
        "CPU time      2h30m\n"
        "memory, most  2 GiB\n"
        "nodes         node-0, node-3\n"
        "exit          exited, code 0\n"
    )


def test_a_receipt_so_far_says_what_is_not_known() -> None:
    running = msgspec.structs.replace(
        FULL, state=JobState.RUNNING, ended_at=None, idle_share=None, exit_cause="", exit_code=None, gpu_hours=0.0
    )
    lines = as_text(receipt(running, zone=UTC), width=80).splitlines()
    assert lines[0].endswith("running, so far")
    assert "idle share    not measured" in lines
    assert "ended         -" in lines
    assert "exit          not yet" in lines
    assert "lost work     1.50 GPU-hours" in lines


def test_a_receipt_in_one_line() -> None:
    assert receipt_line(FULL) == "waited 42s, ran 1h30m, 12.00 GPU-hours (simulated), 2 restarts, 1 move"
    none = msgspec.structs.replace(FULL, gpu_hours=0.0, restarts=0, moves=0)
    assert receipt_line(none) == "waited 42s, ran 1h30m"


SPEC = JobSpec("train", TenantId("blue"), GangShape(1, Demand()), indices=(0, 1), is_array=True)
PLACED = Placement(0, NodeId("node-0"), (DeviceShare(DeviceId("GPU-0"), 500),), 1000, 0)


def exit_of(cause: Cause, **more: object) -> TaskExit:
    return TaskExit(cause, started_at=NOON + 2, ended_at=NOON + 62, **more)  # type: ignore[arg-type]


def test_a_history_tells_each_fact() -> None:
    gang: dict[str, Any] = {"job": JOB, "gang": 1, "incarnation": 1}
    facts: list[events.Fact] = [
        events.JobSubmitted(at=NOON, job=JOB, spec=SPEC, user="ann"),
        events.GangPlaced(at=NOON + 1.5, placements=(PLACED,), **gang),
        events.TaskStarted(at=NOON + 2, rank=0, pid=4711, **gang),
        events.TaskEnded(at=NOON + 62, rank=0, state=TaskState.FAILED, exit=exit_of(Cause.EXITED, exit_code=3), **gang),
        events.GangRequeued(at=NOON + 62, counted=True, reason="exit code 3", avoid=(NodeId("node-0"),), **gang),
        events.GangStopping(at=NOON + 63, reason=StopReason.NODE_LOST, **gang),
        events.TaskEnded(
            at=NOON + 64, rank=0, state=TaskState.LOST, exit=TaskExit(Cause.NODE_LOST, message="silent"), **gang
        ),
        events.JobCancelRequested(at=NOON + 65, job=JOB, by="ann"),
        events.GangEnded(at=NOON + 66, state=JobState.CANCELLED, **gang),
        events.JobEnded(at=NOON + 67, job=JOB, state=JobState.CANCELLED, reason="cancelled by ann"),
    ]
    entries = [JournalEntry(seq, 1, fact) for seq, fact in enumerate(facts)]
    text = as_text(history(entries, zone=UTC), width=160)
    lines = [" ".join(line.split()).partition(" ")[2].partition(" ")[2] for line in text.splitlines()]
    assert lines == [
        "WHAT",
        "submitted by ann: train, tenant blue, queue default, 2 elements",
        "1.5s gang 1 placed on node-0 (0.5 GPUs) (incarnation 1)",
        "0.50s task 12.1.0 started, pid 4711",
        "1m00s task 12.1.0 failed after 1m00s: exit code 3",
        "0s gang 1 waits again: exit code 3 (counted as a restart, avoids node-0)",
        "1.0s gang 1 is being stopped: a node was lost",
        "1.0s task 12.1.0 lost: its node was lost, silent",
        "1.0s cancel asked for by ann",
        "1.0s gang 1 cancelled",
        "1.0s job cancelled: cancelled by ann",
    ]


def test_of_the_checkpoints_of_a_start_the_last_is_told() -> None:
    def saved(incarnation: int, mib: int, rank: int = 0) -> events.Fact:
        return events.FilesReturned(
            at=NOON,
            job=JOB,
            gang=0,
            incarnation=incarnation,
            rank=rank,
            what=ReturnKind.CHECKPOINT,
            tree="t",
            size_bytes=mib << 20,
        )

    facts = [saved(1, 1), saved(1, 2), saved(1, 3, rank=1), saved(1, 4), saved(2, 5), saved(2, 6)]
    text = as_text(history([JournalEntry(seq, 1, fact) for seq, fact in enumerate(facts)], zone=UTC), width=160)
    assert [line.rpartition("back: ")[2].strip() for line in text.splitlines()[1:]] == ["3.0 MiB", "4.0 MiB", "6.0 MiB"]
