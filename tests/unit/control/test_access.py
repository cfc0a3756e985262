"""What a tenant may see of facts that name another tenant."""

from __future__ import annotations

import pytest

from corral.control.access import seen_by
from corral.model.events import GangStopping, JobCancelRequested
from corral.model.ids import JobId, TenantId
from corral.model.job import StopReason
from corral.model.market import Preemption, PreemptionKind
from corral.ports.store import JournalEntry

MINE, OTHER = TenantId("a"), TenantId("b")


def stopping(preemption: Preemption | None) -> JournalEntry:
    fact = GangStopping(
        at=1.0, job=JobId("1"), gang=0, incarnation=1, reason=StopReason.PREEMPTED, preemption=preemption
    )
    return JournalEntry(7, 1, fact)


def test_the_number_of_another_tenant_s_job_is_not_told() -> None:
    entry = stopping(Preemption(PreemptionKind.RECLAIM, JobId("5"), OTHER, 3.0))
    assert seen_by(entry, MINE) == stopping(Preemption(PreemptionKind.RECLAIM, JobId("-"), OTHER, 3.0))


@pytest.mark.parametrize(
    "entry,viewer",
    [
        (stopping(Preemption(PreemptionKind.RECLAIM, JobId("5"), OTHER, 3.0)), OTHER),
        (stopping(Preemption(PreemptionKind.RECLAIM, JobId("5"), OTHER, 3.0)), None),
        (stopping(Preemption(PreemptionKind.RESIZE)), MINE),
        (stopping(None), MINE),
        (JournalEntry(1, 1, JobCancelRequested(at=1.0, job=JobId("1"), by="x")), MINE),
    ],
)
def test_everything_else_is_told_as_it_is(entry: JournalEntry, viewer: TenantId | None) -> None:
    assert seen_by(entry, viewer) == entry
