"""What tasks report of their progress, as a share of the whole job."""

from __future__ import annotations

import pytest

from corral.control.observed import Observed
from corral.model.experience import WorkSpec
from corral.model.ids import JobId, TaskKey, TenantId
from corral.model.job import Gang, Job, JobSpec, JobState
from corral.model.messages import Usage
from corral.model.resources import Demand, GangShape

JOB = JobId("1")


def job(*states: JobState, total: float | None = None) -> Job:
    work = WorkSpec(total) if total is not None else None
    spec = JobSpec("x", TenantId("a"), GangShape(2, Demand()), ("x",), work=work, indices=tuple(range(len(states))))
    return Job(JOB, spec, 0.0, {i: Gang(i, (), state) for i, state in enumerate(states)})


def said(gang: int, step: float | None, total: float | None = None, rank: int = 0) -> Usage:
    return Usage(TaskKey(JOB, gang, rank), 1, progress=step, progress_total=total)


@pytest.mark.parametrize(
    "usage,states,total,share",
    [
        ([], "r", None, None),
        ([said(0, None)], "r", None, None),
        ([said(0, 25.0)], "r", None, None),
        ([said(0, 25.0, 100.0)], "r", None, 0.25),
        ([said(0, 25.0)], "r", 50.0, 0.5),
        ([said(0, 25.0, 100.0)], "r", 50.0, 0.25),
        ([said(0, 250.0, 100.0)], "r", None, 1.0),
        ([said(0, 25.0, 100.0), said(0, 75.0, 100.0)], "r", None, 0.75),
        ([said(0, 25.0, 100.0), said(0, 75.0, 100.0, rank=1)], "r", None, 0.25),
        # Of four elements one is done, one half done, two have not begun.
        ([said(1, 5.0, 10.0)], "srpp", None, 0.375),
        ([said(1, 5.0, 10.0), said(2, 5.0)], "srrp", None, None),
    ],
)
def test_the_share_is_over_all_gangs(usage: list[Usage], states: str, total: float | None, share: float | None) -> None:
    observed = Observed()
    observed.hear_progress(usage, {JOB})
    known = {"r": JobState.RUNNING, "p": JobState.PENDING, "s": JobState.SUCCEEDED}
    assert observed.done_share(job(*[known[letter] for letter in states], total=total)) == share


def test_nothing_is_kept_of_jobs_that_are_over() -> None:
    observed = Observed()
    observed.hear_progress([said(0, 1.0, 2.0)], set())
    assert observed.done_share(job(JobState.RUNNING)) is None
    observed.hear_progress([said(0, 1.0, 2.0)], {JOB})
    observed.forget_job(JOB)
    assert observed.done_share(job(JobState.RUNNING)) is None
