"""The world: nothing is lost, nothing is held twice, and the same seed of everything gives the same course."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from corral.model.errors import CorralError, SimulationStuck
from corral.sim.policies.registry import POLICIES
from corral.sim.workload import CANNOT, TraceJob
from tests.unit.sim.worlds import ends, job, workload, world

MIXED = tuple(
    job(f"j{i}", 37.0 * i, (1, 2, 1, 4)[i % 4], 60.0 + 90.0 * (i * 7 % 11), steps=i % 2 == 0) for i in range(40)
)


@pytest.mark.parametrize("policy", list(POLICIES))
def test_all_work_is_done_once_and_no_device_is_held_twice(policy: str) -> None:
    made = world(policy, "2x4xX", workload(*MIXED))
    state = made.core.book.state
    while made.finished < len(MIXED):
        assert made.step()
        held: dict[str, int] = {}
        for one in state.jobs.values():
            for placement in (p for gang in one.gangs.values() for p in gang.placements):
                for share in placement.devices:
                    held[share.uuid] = held.get(share.uuid, 0) + share.milli
        assert all(milli <= 1_000 for milli in held.values())
        assert sum(held.values()) == pytest.approx(made.held * 1_000)
    runs = list(made.truth.runs.values())
    assert not state.jobs
    assert made.held == 0
    for run in runs:
        # What it was at work is its work at speed 1, and 10 s for each start after the first (less where it was
        # stopped while it still loaded).
        least = run.job.work * run.job.devices[0]
        assert least - 1e-6 <= run.busy_s <= least + 10.0 * (run.starts - 1) * run.job.devices[0] + 1e-6
        assert run.starts == run.preemptions + 1
    area = sum(
        before.held * (after.at - before.at)
        for before, after in zip(made.record.moments, made.record.moments[1:], strict=False)
    )
    assert area == pytest.approx(sum(run.busy_s for run in runs))


def test_a_preempted_job_goes_on_from_where_it_was() -> None:
    made = world("srtf-oracle", "1xX", workload(job("a", 0, 1, 250), job("b", 50, 1, 20)))
    made.run()
    a = next(run for run in made.truth.runs.values() if run.job.name == "a")
    # 100 s, then b; 10 s of loading and the other 150 s from 200 on.
    assert (a.ended_at, a.starts, a.preemptions, a.service_s) == (360.0, 2, 1, 260.0)


def test_a_round_of_whole_steps_leaves_its_rest_idle() -> None:
    steps = TraceJob("a", 0, (1,), 7.0, {"*": 0.03}, steps=True)
    late = TraceJob("b", 10, (1,), 1.0, {"*": 0.1}, steps=True)
    made = world("fifo", "1xX", workload(steps, late, whole_steps=True, restart_cost_s=0.0), "blind")
    made.run()
    runs = {run.job.name: run for run in made.truth.runs.values()}
    # 3 steps of 33.3 s fit into 100 s: rounds begin at 0, 100, 200; the seventh step ends at 233.3 s, and the device
    # is idle until that round ends with the last of those who run in it, at the same time.
    assert runs["a"].ended_at == pytest.approx(7 / 0.03)
    assert runs["b"].ended_at == pytest.approx(7 / 0.03 + 10)
    assert runs["a"].busy_s == pytest.approx(7 / 0.03)


def test_in_whole_steps_a_device_that_comes_free_waits_for_the_round() -> None:
    long = TraceJob("long", 0, (1,), 30.0, {"*": 0.1}, steps=True)
    short = TraceJob("short", 0, (1,), 2.0, {"*": 0.1}, steps=True)
    next_ = TraceJob("next", 5, (1,), 1.0, {"*": 0.1}, steps=True)
    made = world("fifo", "2xX", workload(long, short, next_, whole_steps=True, restart_cost_s=0.0), "blind")
    made.run()
    runs = {run.job.name: run for run in made.truth.runs.values()}
    assert (runs["short"].ended_at, runs["next"].first_start, runs["next"].ended_at) == (20.0, 100.0, 110.0)


def test_gangs_larger_than_a_node_take_several() -> None:
    assert ends("fifo", "3x4xX", [job("a", 0, 12, 10), job("b", 0, 6, 10)]) == {"a": 10, "b": 20}


def test_shares_of_devices_run_side_by_side() -> None:
    assert ends("fill", "1xX", [job(f"j{i}", 0, 1, 10, milli=500) for i in range(3)]) == {"j0": 10, "j1": 10, "j2": 20}


def test_a_job_that_never_fits_is_refused_as_in_production() -> None:
    with pytest.raises(CorralError, match="more than the pool can ever run"):
        world("fifo", "2xX", workload(job("a", 0, 3, 10))).run()


def test_a_policy_that_lets_jobs_wait_for_ever_is_told() -> None:
    stuck = world("las", "1xX", workload(job("a", 0, 1, 10)))
    stuck._timeline.due(1e9)
    with pytest.raises(SimulationStuck, match="1 of 1 jobs wait for ever"):
        stuck.run()


def test_a_job_that_was_put_where_it_cannot_run_is_told_where_nothing_moves_it() -> None:
    slow = job("a", 0, 1, 10, speeds={"FAST": 1.0, "SLOW": CANNOT}, steps=True)
    with pytest.raises(SimulationStuck, match="b was put where it cannot run"):
        world("fill", "1xFAST,1xSLOW", workload(slow, job("b", 0, 1, 10, speeds=slow.speeds, steps=True))).run()


SCRIPT = """
import sys
from tests.unit.sim.test_world import digest
print(digest(sys.argv[1]))
"""


def digest(policy: str) -> str:
    made = world(policy, "2x4xX", workload(*MIXED), "oracle")
    made.run()
    course = [
        [list(moment) if isinstance(moment, tuple) else [moment.at, moment.held, moment.waiting]]
        for moment in made.record.moments
    ]
    ended = [(run.job.name, run.ended_at, run.starts) for run in made.truth.runs.values()]
    return hashlib.sha256(json.dumps([course, ended]).encode()).hexdigest()


@pytest.mark.parametrize("policy", ["corral", "las", "easy"])
def test_the_course_does_not_depend_on_the_seed_of_hashes(policy: str) -> None:
    root = Path(__file__).parents[3]
    found = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT, policy],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": f"{root}{os.pathsep}{root / 'src'}"},
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1
