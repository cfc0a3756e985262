"""Figures against numbers worked out by hand."""

from __future__ import annotations

import pytest

from corral.sim.metrics import Contention, JobResult, measure, percentile, results
from corral.sim.record import Moment, Record
from corral.sim.workload import TraceJob
from tests.unit.sim.worlds import job, workload, world


def test_percentiles_interpolate_linearly() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([0.0, 10.0], 0.99) == pytest.approx(9.9)
    assert percentile([7.0], 0.99) == 7.0


def test_contention_is_the_average_number_of_unfinished_jobs() -> None:
    contention = Contention([Moment(0, 0, 0, 1), Moment(10, 0, 0, 3), Moment(20, 0, 0, 0)])
    assert contention.average(0, 20) == 2.0
    assert contention.average(5, 15) == 2.0
    assert contention.average(0, 10) == 1.0
    assert contention.average(20, 30) == 1.0


def test_figures_of_two_jobs() -> None:
    jobs = [
        JobResult("a", 1, 0, 0, 3_600, 3_600, 1.0, 0, 0),
        JobResult("b", 1, 0, 3_600, 10_800, 7_200, 1.5, 1, 2),
    ]
    found = measure(jobs, 10_800.0, 2)
    assert (found.avg_jct_h, found.p50_jct_h, found.makespan_h) == (2.0, 2.0, 3.0)
    assert found.p99_jct_h == pytest.approx(2.98)
    assert found.utilisation == 0.5
    assert found.worst_ftr == 1.5
    assert found.p95_ftr == pytest.approx(1.475)
    assert (found.preemptions, found.restarts) == (1, 2)


def test_the_time_alone_of_a_rigid_job_is_its_own_on_the_best_model() -> None:
    rigid = TraceJob("a", 0, (4,), 100.0, {"FAST:4": 10.0, "SLOW": 2.0})
    assert rigid.alone_s(("FAST", "SLOW"), 4) == 10.0
    assert rigid.alone_s(("SLOW",), 4) == 50.0


def test_the_time_alone_of_an_elastic_job_is_that_on_its_fair_share() -> None:
    elastic = TraceJob("a", 0, (8, 4, 2), 80.0, {"*:8": 8.0, "*:4": 4.0, "*:2": 2.0})
    assert [elastic.alone_s(("X",), share) for share in (16, 7, 2, 1)] == [10.0, 20.0, 40.0, 40.0]


def test_finish_time_ratios_of_a_world() -> None:
    made = world("fifo", "1xX", workload(job("a", 0, 1, 100), job("b", 0, 1, 50)))
    made.run()
    found = {one.name: one for one in results(list(made.truth.runs.values()), made.record.moments, ("X",), 1)}
    assert (found["a"].ftr, found["b"].ftr) == (1.0, 3.0)
    assert (found["b"].started_s, found["b"].ended_s, found["b"].jct_s) == (100.0, 150.0, 150.0)


def test_a_record_keeps_the_last_word_about_an_instant_and_no_repetition() -> None:
    record = Record()
    for moment in ((0, 1, 0, 1), (0, 2, 0, 2), (5, 2, 0, 2), (6, 1, 0, 1)):
        record.note(*moment)
    assert record.moments == [Moment(0, 2, 0, 2), Moment(6, 1, 0, 1)]
