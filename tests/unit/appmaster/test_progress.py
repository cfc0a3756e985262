"""From reported progress to speed, time left and checkpoints, and how seldom it has to be told."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.appmaster.core import AppMasterCore
from corral.appmaster.progress import Watch
from corral.model.events import GangPlaced, GangRequeued, JobSubmitted, TaskEnded, TaskStarted
from corral.model.experience import Measurement, WorkSpec
from corral.model.ids import JobId, NodeId, TenantId
from corral.model.job import Cause, Gang, JobSpec, Task, TaskExit, TaskState
from corral.model.messages import Usage
from corral.model.offer import Outlook, Proposal
from corral.model.resources import Demand, GangShape, Placement
from corral.model.transitions import new_job

J = JobId("3")
START = 1_000.0


def master(work: WorkSpec | None = None, ranks: int = 1) -> AppMasterCore:
    spec = JobSpec("train", TenantId("a"), GangShape(ranks, Demand(1000)), argv=("x",), work=work)
    mine = AppMasterCore(new_job(JobSubmitted(at=1.0, job=J, spec=spec)))
    run(mine, 1, START, ranks)
    return mine


def run(mine: AppMasterCore, incarnation: int, at: float, ranks: int = 1) -> None:
    where = tuple(Placement(rank, NodeId("n"), (), 1000, 10) for rank in range(ranks))
    mine.handle(GangPlaced(at=at, job=J, gang=0, incarnation=incarnation, placements=where))
    for rank in range(ranks):
        mine.handle(TaskStarted(at=at, job=J, gang=0, incarnation=incarnation, rank=rank))


def stop(mine: AppMasterCore, at: float) -> None:
    exit_ = TaskExit(Cause.PREEMPTED, exit_code=0)
    ended = TaskEnded(at=at, job=J, gang=0, incarnation=1, rank=0, state=TaskState.CANCELLED, exit=exit_)
    [requeued] = mine.handle(ended)
    assert isinstance(requeued, GangRequeued)
    mine.handle(requeued)


def report(
    mine: AppMasterCore,
    at: float,
    progress: float | None,
    total: float | None = None,
    saved: float | None = None,
    rank: int = 0,
    incarnation: int = 1,
) -> Proposal | None:
    key = mine.job.task_key(0, rank)
    sample = Usage(key, incarnation, progress=progress, progress_total=total, checkpointed_at=saved)
    mine.observe([sample], at)
    return mine.revise(at)


def outlook(said: Proposal | None) -> Outlook:
    assert said is not None
    assert said.bids == ()
    return said.outlooks[0]


def test_without_reports_nothing_is_said() -> None:
    mine = master(WorkSpec(total=100.0))
    assert all(report(mine, START + s, None) is None for s in range(100))


def test_progress_without_a_known_total_says_nothing_until_it_is_a_measurement() -> None:
    mine = master()
    assert report(mine, START + 10, 1.0) is None
    assert report(mine, START + 20, 2.0) is None
    said = report(mine, START + 55, 9.0)
    assert outlook(said) == Outlook()
    # 7 units in 35 seconds: what came before the second report is warm-up.
    assert said is not None
    assert said.measured == (Measurement("train", "", 0, 7.0, 35.0, gang=0, incarnation=1),)


def test_the_first_estimate_compares_the_progress_with_all_the_time_that_it_ran() -> None:
    mine = master(WorkSpec(total=1.0, family="net"))
    said = report(mine, START + 300, 0.25)
    assert outlook(said).remaining_s == pytest.approx(900.0)
    assert said is not None
    assert said.measured == ()


def test_what_the_task_reports_as_its_total_counts_before_what_was_declared() -> None:
    mine = master(WorkSpec(total=1.0))
    assert outlook(report(mine, START + 100, 50.0, total=200.0)).remaining_s == pytest.approx(300.0)


def test_the_window_leaves_the_warm_up_out() -> None:
    mine = master(WorkSpec(total=1_000.0))
    # One step in 100 s while it compiles, then one every second.
    assert outlook(report(mine, START + 100, 1.0)).remaining_s == pytest.approx(99_900.0)
    told = [second for second in range(1, 31) if report(mine, START + 100 + second, 1.0 + second)]
    # A fifth older, it is much faster than was told; then the window is still too short.
    assert told == [20]
    said = report(mine, START + 131, 32.0)
    assert outlook(said).remaining_s == pytest.approx(968.0)
    assert said is not None
    assert said.measured[0].units / said.measured[0].seconds == pytest.approx(1.0)


def test_the_slowest_rank_that_reports_counts() -> None:
    mine = master(WorkSpec(total=100.0), ranks=2)
    report(mine, START + 10, 10.0, rank=0)
    said = report(mine, START + 10, 5.0, rank=1)
    # It was told 90 s a moment ago; the run is not a fifth older yet.
    assert said is None
    assert mine.progress(0, 1) is not None
    assert outlook(report(mine, START + 20, 6.0, rank=1)).remaining_s == pytest.approx(94 * 20 / 6)


def test_a_steady_run_is_told_about_when_it_is_twice_as_old() -> None:
    mine = master(WorkSpec(total=100_000.0))
    said = [second for second in range(1, 40_000) if report(mine, START + second, float(second)) is not None]
    # First estimate, first measurement (30 s after the second report), then each time at twice the age.
    assert said == [1, 32, 64, 128, 256, 512, 1_024, 2_048, 4_096, 8_192, 16_384, 32_768]


def test_measurements_tell_what_was_done_since_the_last_one() -> None:
    mine = master()
    units: list[Measurement] = []
    for second in range(1, 1_000):
        said = report(mine, START + second, float(second))
        units.extend(said.measured if said is not None else ())
    assert [(m.units, m.seconds) for m in units] == [
        (30.0, 30.0),
        (32.0, 32.0),
        (64.0, 64.0),
        (128.0, 128.0),
        (256.0, 256.0),
    ]


def test_a_deviation_is_told_once_the_run_is_a_fifth_older() -> None:
    mine = master(WorkSpec(total=10_000.0))
    for second in range(1, 1_025):
        report(mine, START + second, float(second))
    # Told at 1,024 s: 8,976 s left. From now on it goes at a tenth of the speed.
    said = []
    for second in range(1_025, 1_400):
        found = report(mine, START + second, 1_024.0 + (second - 1_024) / 10)
        if found is not None:
            said.append((second, outlook(found).remaining_s))
    assert [second for second, _ in said] == [1_229]
    # 20.5 units since the told time; the mean over the window is (1,042.5 in 1,227 s).
    assert said[0][1] == pytest.approx((10_000 - 1_044.5) / (1_042.5 / 1_227), rel=1e-3)


def test_a_run_that_hangs_is_told_about_ever_more_seldom() -> None:
    mine = master(WorkSpec(total=10_000.0))
    for second in range(1, 1_001):
        report(mine, START + second, float(second))
    said = [second for second in range(1_001, 100_000) if report(mine, START + second, 1_000.0) is not None]
    assert 1 <= len(said) <= 26


def test_checkpoints_are_told_with_the_time_that_they_are_of() -> None:
    mine = master(WorkSpec(total=10_000.0))
    for second in range(1, 100):
        report(mine, START + second, float(second), saved=0.0)
    told = report(mine, START + 100, 100.0, saved=90.0)
    # It was told at 64 s; a checkpoint at step 90 was made ten seconds ago, and waits until a minute has passed.
    assert told is None
    found = [second for second in range(101, 140) if report(mine, START + second, float(second), saved=90.0)]
    assert found == [124]
    said = report(mine, START + 200, 200.0, saved=190.0)
    assert outlook(said).saved_at == pytest.approx(START + 190)


def test_another_run_is_another_story() -> None:
    mine = master(WorkSpec(total=1_000.0))
    for second in range(1, 501):
        report(mine, START + second, float(second))
    stop(mine, START + 500)
    assert mine.progress(0, 0) is None
    run(mine, 2, 2_000.0)
    # The words of the old run come late.
    assert report(mine, 2_001.0, 500.0, incarnation=1) is None
    # 500 units in 510 s of service of both runs.
    said = report(mine, 2_010.0, 500.0, incarnation=2)
    assert outlook(said).remaining_s == pytest.approx(510.0)


def test_a_task_that_goes_back_by_itself_begins_a_new_window() -> None:
    mine = master()
    for second in range(1, 101):
        report(mine, START + second, float(second))
    units: list[Measurement] = []
    for second in range(101, 400):
        said = report(mine, START + second, float(second - 100) / 2)
        units.extend(said.measured if said is not None else ())
    assert units
    assert all(m.units / m.seconds == pytest.approx(0.5) for m in units)


@given(st.lists(st.tuples(st.floats(0.1, 500.0), st.floats(0.0, 50.0)), min_size=1, max_size=60))
def test_estimates_are_never_negative_and_tellings_few(steps: list[tuple[float, float]]) -> None:
    watch, gang = Watch(), Gang(0, (Task(0, TaskState.RUNNING, started_at=0.0),), incarnation=1)
    now = progress = 0.0
    ages: list[float] = []
    key = new_job(
        JobSubmitted(at=0.0, job=J, spec=JobSpec("t", TenantId("a"), GangShape(1, Demand()), argv=("x",)))
    ).task_key(0, 0)
    for seconds, units in steps:
        now, progress = now + seconds, progress + units
        watch.observe([Usage(key, 1, progress=progress, progress_total=2_000.0)], now)
        outlooks, measured = watch.news({0: gang}, "t", None, now)
        ages.extend(now for _ in outlooks)
        for each in outlooks.values():
            assert each.remaining_s is None or each.remaining_s >= 0
        assert all(m.units > 0 and m.seconds > 0 for m in measured)
    # The first estimate, the first measurement, and then each time the run is a fifth older at least.
    assert len(ages) <= (2 + math.log(ages[-1] / ages[0]) / math.log(1.2) if ages else 0)
