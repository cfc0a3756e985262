"""Schedules of the baselines that were worked out by hand: rounds of 100 s, a restart costs 10 s."""

from __future__ import annotations

import pytest

from corral.model.errors import InvalidField
from corral.model.ids import TenantId
from corral.sim.information import Information
from corral.sim.policies.registry import POLICIES, policy_named
from tests.unit.sim.worlds import ends, job, workload, world


def test_fifo_blocks_behind_the_first_that_does_not_fit() -> None:
    jobs = [job("a", 0, 1, 50), job("b", 1, 2, 10), job("c", 2, 1, 5)]
    # b needs both devices and waits for a; c would fit beside a but stands behind b.
    assert ends("fifo", "2xX", jobs) == {"a": 50, "b": 60, "c": 65}


def test_fifo_starts_at_the_moment_of_an_arrival_or_an_end() -> None:
    assert ends("fifo", "1xX", [job("a", 3.5, 1, 10), job("b", 4, 1, 1)]) == {"a": 13.5, "b": 14.5}


def test_easy_fills_in_what_ends_before_the_reservation() -> None:
    jobs = [job("a", 0, 1, 50), job("b", 1, 2, 10), job("c", 2, 1, 48), job("d", 3, 1, 48)]
    # b is promised 50 s; c ends at 50 and may run, d comes when c has taken the device and waits for b.
    assert ends("easy", "2xX", jobs) == {"a": 50, "b": 60, "c": 50, "d": 108}


def test_easy_lets_long_jobs_use_what_the_head_leaves() -> None:
    jobs = [job("a", 0, 2, 50), job("b", 1, 3, 10), job("c", 2, 1, 1_000), job("d", 3, 1, 1_000)]
    # Of four devices b needs three at 50 s: one is extra, for c but not for d too.
    assert ends("easy", "4xX", jobs) == {"a": 50, "b": 60, "c": 1_002, "d": 1_060}


def test_easy_takes_declared_durations_where_they_are_all_it_knows() -> None:
    declared = [
        job("a", 0, 1, 50, declared_s=60), job("b", 1, 2, 10, declared_s=20), job("c", 2, 1, 48, declared_s=1_000)
    ]  # fmt: skip
    # c says that it takes 1,000 s, so it may not go before b.
    assert ends("easy", "2xX", declared, "declared") == {"a": 50, "b": 60, "c": 108}


def test_easy_refuses_to_guess() -> None:
    with pytest.raises(InvalidField, match="easy needs durations"):
        policy_named("easy").level(Information.BLIND)


def test_drf_lets_the_tenant_that_holds_least_take_next() -> None:
    a, b = TenantId("a"), TenantId("b")
    jobs = [
        job("a1", 0, 1, 10, tenant=a), job("a2", 0, 1, 10, tenant=a), job("a3", 0, 1, 10, tenant=a),
        job("b1", 0, 1, 10, tenant=b), job("b2", 0, 1, 10, tenant=b),
    ]  # fmt: skip
    # Two devices each although a came first with three jobs.
    assert ends("drf", "4xX", jobs) == {"a1": 10, "a2": 10, "b1": 10, "b2": 10, "a3": 20}


def test_las_serves_who_had_least_and_only_at_rounds() -> None:
    jobs = [job("a", 0, 1, 250), job("b", 50, 1, 50)]
    # a runs in [0, 100); b had nothing and takes over at 100, ends at 150; the device is idle until 200, then a loads
    # its checkpoint for 10 s and does the other 150.
    assert ends("las", "1xX", jobs) == {"a": 360, "b": 150}


def test_las_counts_service_in_device_seconds() -> None:
    jobs = [job("wide", 0, 2, 200), job("thin", 0, 1, 200), job("late", 250, 1, 50)]
    # At 0 the wide one arrived first and takes two of three, the thin one the third; both end at 200.
    assert ends("las", "3xX", jobs) == {"wide": 200, "thin": 200, "late": 350}


def test_srtf_puts_the_shortest_first_whatever_jobs_tell() -> None:
    jobs = [job("a", 0, 1, 250), job("b", 0, 1, 100), job("c", 150, 1, 20)]
    # b in [0, 100), a from 100; at 200 a has 150 left and gives way to c (20 s), and goes on at 300 after 10 s.
    assert ends("srtf-oracle", "1xX", jobs, "blind") == {"b": 100, "c": 220, "a": 460}


def test_a_gang_is_not_moved_when_others_give_way() -> None:
    made = world("srtf-oracle", "2xX", workload(job("a", 0, 1, 350), job("b", 0, 1, 400), job("c", 50, 1, 100)))
    made.run()
    runs = {run.job.name: run for run in made.truth.runs.values()}
    assert (runs["a"].preemptions, runs["b"].preemptions, runs["c"].preemptions) == (0, 1, 0)


def test_devices_that_a_job_cannot_use_are_left_alone() -> None:
    slow = job("a", 0, 1, 10, speeds={"FAST": 1.0, "SLOW": 1e-6}, steps=True)
    assert ends("fifo", "1xFAST,1xSLOW", [slow, job("b", 0, 1, 10, speeds=slow.speeds, steps=True)]) == {
        "a": 10,
        "b": 20,
    }


def test_every_policy_is_found_by_its_name() -> None:
    assert all(policy_named(name).name == name for name in POLICIES)
    with pytest.raises(InvalidField, match="known: corral, fill, fifo"):
        policy_named("best")
