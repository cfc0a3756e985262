"""Jobs as rows."""

from __future__ import annotations

from msgspec.structs import replace

from corral.cli.render.jobs import TOLD_MAX, jobs, state_words
from corral.cli.render.layout import as_text
from corral.model.ids import JobId, TenantId
from corral.model.job import JobState
from corral.model.report import JobRows, JobSummary

FAILED = JobSummary(JobId("7"), "train", TenantId("ml"), "default", JobState.FAILED, 0.0, message="the reason " * 20)


def test_a_long_reason_is_cut_unless_all_of_it_is_wanted() -> None:
    rows = JobRows((FAILED,), None, 0)
    cut = as_text(jobs(rows, now=10.0), width=10_000)
    assert max(map(len, cut.splitlines())) <= 150
    assert "failed: the reason the reason" in cut
    assert "…" in cut
    assert FAILED.message.strip() in as_text(jobs(rows, now=10.0, told_max=None), width=10_000)


def test_what_is_done_of_a_job_is_told_while_it_is_not_over() -> None:
    running = JobSummary(JobId("8"), "x", TenantId("ml"), "default", JobState.RUNNING, 0.0, progress=0.4299)
    assert state_words(running, "") == "running 42 %"
    waiting = replace(running, state=JobState.PENDING)
    assert state_words(waiting, "no devices") == "pending 42 %: no devices"
    assert state_words(replace(running, state=JobState.SUCCEEDED), "") == "succeeded"


def test_a_reason_that_just_fits_stays_whole() -> None:
    pending = JobSummary(JobId("8"), "x", TenantId("ml"), "default", JobState.PENDING, 0.0)
    assert state_words(pending, "a" * TOLD_MAX, TOLD_MAX) == f"pending: {'a' * TOLD_MAX}"
    longer = "b" * (TOLD_MAX + 1)
    assert state_words(pending, longer, TOLD_MAX) == f"pending: {'b' * (TOLD_MAX - 1)}…"


def test_of_an_array_that_failed_is_told_how_much_of_it_did() -> None:
    some = replace(FAILED, is_array=True, elements=10, message="1 of 10 elements failed (2); element 2: rank 0 died")
    assert state_words(some, "").startswith("failed (1 of 10): ")
    assert state_words(replace(some, state=JobState.SUCCEEDED, message=""), "") == "succeeded (10 elements)"
