"""Turns on small clusters, worked out by hand: rounds of 100 s, a restart costs 10 s unless said otherwise."""

from __future__ import annotations

import pytest

from corral.model.errors import InvalidField
from corral.model.offer import Bid
from corral.model.resources import Demand, GangShape
from corral.sim.information import Information
from corral.sim.policies.gavel import rates_of
from corral.sim.policies.registry import policy_named
from tests.unit.sim.worlds import ends, job, workload, world


def test_equal_shares_take_turns() -> None:
    # a in [0, 100), b in [100, 200); level again, so a, which came first, loads for 10 s and does its last 50.
    assert ends("max-min", "1xX", [job("a", 0, 1, 150), job("b", 0, 1, 150)]) == {"a": 260, "b": 360}


def test_who_comes_after_the_shares_were_computed_waits_for_the_next_ones() -> None:
    jobs = [job("a", 0, 1, 5_000), job("b", 50, 1, 5_000), job("c", 150, 1, 10)]
    # Shares are computed at 0, at 100 for b (those of the first round stand no longer), and 1,920 s later: at 2,100.
    assert ends("max-min", "3xX", jobs) == {"a": 5_000, "b": 5_100, "c": 2_110}


def test_two_gangs_swap_their_models() -> None:
    speeds = {"FAST": 2.0, "SLOW": 1.0}
    jobs = [job(name, 0, 1, 300, speeds=speeds, steps=True) for name in "ab"]
    made = world("max-min-perf", "1xFAST,1xSLOW", workload(*jobs, restart_cost_s=0.0))
    made.run()
    # Half of the time on each: 200 + 100 units in two rounds, the other way round for the other.
    assert {run.job.name: run.ended_at for run in made.truth.runs.values()} == {"a": 200, "b": 200}
    assert {run.preemptions for run in made.truth.runs.values()} == {1}


def test_fifo_lets_the_head_block_what_would_fit() -> None:
    jobs = [job("a", 0, 1, 50), job("b", 0, 2, 50), job("c", 0, 1, 50)]
    # b needs both devices and waits for the round at 100; c is behind it.
    assert ends("fifo-gavel", "2xX", jobs) == {"a": 50, "b": 150, "c": 2_150}


def test_finish_time_fairness_needs_declared_work() -> None:
    with pytest.raises(InvalidField, match="needs durations"):
        policy_named("finish-time-fairness").level(Information.BLIND)


def test_rates_are_those_of_bids_that_name_the_model() -> None:
    def bid(model: str | None, rate: float) -> Bid:
        return Bid(GangShape(2, Demand(1000, model)), throughput=rate)

    # The last one is for devices of several models together, which no gang of these policies gets.
    bids = (bid("A", 4.0), bid("B", 2.0), bid("C", 4e-6), bid(None, 2.0))
    assert rates_of(bids, ["A", "B", "C"]) == {"A": 4.0, "B": 2.0, "C": 0.0}
    assert rates_of((bid(None, 1.0),), ["A", "B"]) == {"A": 1.0, "B": 1.0}
