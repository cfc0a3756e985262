from __future__ import annotations

import msgspec
import pytest

from corral.control.ledger import ENTRIES_KEPT, HOURS_KEPT, Ledger, LedgerImage
from corral.model.events import GangStopping
from corral.model.ids import JobId, NodeId, TenantId
from corral.model.job import Gang, Job, JobSpec, StopReason, Task, TaskState
from corral.model.market import Preemption, PreemptionKind
from corral.model.resources import MILLI, Demand, DeviceShare, GangShape, Placement

A, B = TenantId("a"), TenantId("b")
HOUR = 3_600.0
START = 100 * HOUR


def running(tenant: TenantId, gpus: int, job: str = "7") -> Job:
    shares = tuple(DeviceShare(f"gpu{i}", MILLI) for i in range(gpus))  # type: ignore[arg-type]
    placed = Placement(0, NodeId("n0"), shares, 1_000, 1_024)
    gang = Gang(0, (Task(0, TaskState.RUNNING, placed),))
    return Job(JobId(job), JobSpec("train", tenant, GangShape(1, Demand(gpus * MILLI)), ("true",)), 1.0, {0: gang})


def stopping(at: float, preemption: Preemption | None, job: str = "7") -> GangStopping:
    return GangStopping(
        at=at, job=JobId(job), gang=0, incarnation=1, reason=StopReason.PREEMPTED, preemption=preemption
    )


def test_shares_are_accounted_as_they_held_since_the_last_sample() -> None:
    ledger = Ledger()
    ledger.sample(START, {A: 0.5, B: 0.5}, {A: 1.0})
    ledger.sample(START + 1_800, {A: 0.5, B: 0.5}, {A: 0.25, B: 0.75})
    ledger.sample(START + 3_000, {}, {})
    a, b = ledger.lines(START, gpus=8)
    # a: half an hour with all 8 GPUs and 20 minutes with 2, due half of 8 for 50 minutes.
    assert a.received_gpu_hours == pytest.approx(8 * 0.5 + 2 / 3)
    assert a.due_gpu_hours == pytest.approx(4 * 5 / 6)
    assert a.balance_gpu_hours == pytest.approx(a.received_gpu_hours - a.due_gpu_hours)
    assert b.received_gpu_hours == pytest.approx(6 / 3)
    assert b.active_s == pytest.approx(3_000)


def test_time_is_split_at_full_hours() -> None:
    ledger = Ledger()
    ledger.sample(START + 3_000, {A: 1.0}, {A: 1.0})
    ledger.sample(START + 3_000 + HOUR, {A: 1.0}, {A: 1.0})
    assert [line.received_gpu_hours for line in ledger.lines(START + HOUR, gpus=1)] == [pytest.approx(3_000 / HOUR)]
    assert [line.received_gpu_hours for line in ledger.lines(START, gpus=1)] == [pytest.approx(1.0)]


def test_nobody_is_owed_for_a_time_in_which_the_pool_did_not_run() -> None:
    ledger = Ledger()
    ledger.sample(START, {A: 1.0}, {})
    again = Ledger(msgspec.msgpack.decode(msgspec.msgpack.encode(ledger.image), type=LedgerImage))
    again.sample(START + HOUR, {A: 1.0}, {})
    assert again.lines(START, gpus=1) == ()


def test_old_hours_and_old_entries_are_dropped() -> None:
    ledger = Ledger()
    ledger.sample(START, {A: 1.0}, {A: 1.0})
    ledger.sample(START + 10, {B: 1.0}, {})
    ledger.sample(START + (HOURS_KEPT + 2) * HOUR, {}, {})
    assert [line.tenant for line in ledger.lines(0.0, gpus=1)] == [B]
    job = running(A, 1)
    for i in range(ENTRIES_KEPT + 5):
        ledger.preempted(job, stopping(START + i, Preemption(PreemptionKind.ROOM)))
    entries = ledger.entries(0.0)
    assert len(entries) == ENTRIES_KEPT
    assert entries[0].at == START + 5


def test_the_lines_say_who_gave_way_for_whom_and_what_it_cost() -> None:
    ledger = Ledger()
    ledger.sample(START, {A: 0.5, B: 0.5}, {A: 1.0})
    ledger.sample(START + 60, {A: 0.5, B: 0.5}, {A: 1.0})
    job = running(A, 4)
    ledger.preempted(job, stopping(START + 60, Preemption(PreemptionKind.RECLAIM, JobId("9"), B, lost_s=900.0)))
    ledger.preempted(job, stopping(START + 70, Preemption(PreemptionKind.MOVE, lost_s=900.0)))
    ledger.preempted(job, stopping(START + 80, None))
    a, b = ledger.lines(START, gpus=4)
    assert (a.preempted, a.preempted_by_others, a.preempted_others) == (2, 1, 0)
    assert a.lost_gpu_hours == pytest.approx(2 * 900 * 4 / HOUR)
    assert (b.preempted, b.preempted_others) == (0, 1)
    assert [entry.preemption.kind for entry in ledger.entries(START + 65)] == [PreemptionKind.MOVE]


def test_a_removed_tenant_has_no_account_any_more() -> None:
    ledger = Ledger()
    ledger.sample(START, {A: 0.5, B: 0.5}, {A: 1.0})
    ledger.sample(START + 60, {A: 0.5, B: 0.5}, {A: 1.0})
    ledger.forget(A)
    ledger.sample(START + 120, {B: 1.0}, {})
    assert [line.tenant for line in ledger.lines(START, gpus=1)] == [B]
