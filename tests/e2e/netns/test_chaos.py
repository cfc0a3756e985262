"""The chaos itself, for a short while: `python -m bench.chaos` goes on for longer."""

from __future__ import annotations

import random

import pytest

from bench.chaos import Chaos, report
from bench.chaos_faults import HEAD_FAULTS, NODE_FAULTS
from bench.chaos_load import Load
from bench.machines import Machines
from bench.witness import Witness
from tests.e2e.netns.crowd import Crowd

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("netns")]

QUICK = ("agent_killed", "shims_killed", "node_cut_short", "daemon_killed", "database_stopped")


def test_quick_faults_lose_nothing_run_nothing_twice_and_change_no_result(five: Machines, crowd: Crowd) -> None:
    load = Load(five.client, crowd.witness.folder, jobs=8, lease_s=12.0, seed=1, steps=(60, 200))
    chaos = Chaos(five, load, Witness(crowd.witness.folder), random.Random(1))
    load.start()
    try:
        chaos.run(20.0, [fault for fault in (*NODE_FAULTS, *HEAD_FAULTS) if fault.name in QUICK])
    finally:
        load.stop()
    chaos.heal()
    said: list[str] = []
    found = report(chaos, load.verdict(said.append), 0.3, 1)
    assert sum(chaos.faults.values()) >= 2
    assert len(load.known()) >= 3
    counts = [found[key] for key in ("lost", "double_runs", "lost_writes", "wrong_results")]
    assert counts == [0, 0, 0, 0], (said, found)
