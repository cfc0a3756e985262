"""A machine whose wall clock is wrong: Debian's faketime sets that of one agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from corral.model.job import JobState
from tests import needs
from tests.e2e.netns.crowd import LEASE_S, START_S, Crowd
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.xdist_group("netns")]


def test_a_machine_with_a_wrong_clock_is_named_and_kept_out_and_its_tasks_go_on(crowd: Crowd, clock_file: Path) -> None:
    needs.program("faketime")
    crowd.start("before", "n5", lease=LEASE_S)
    others = [node for node in crowd.pool.nodes if node != "n5"]
    skew = {node.spec.id: node.clock_skew_s for node in crowd.client.nodes()}
    assert all(abs(found or 0.0) < 2.0 for found in skew.values())
    clock_file.write_text("+10")
    try:
        wait_until(
            lambda: "clock" in crowd.pool.corral("head1", "nodes", "--no-devices"), START_S, what="the clock to be seen"
        )
        assert 8.0 < _skew(crowd, "n5") < 12.0
        assert all(abs(_skew(crowd, node)) < 2.0 for node in others)
        assert crowd.states()["n5"] == "up"
        for node in others:
            crowd.client.cordon(node)
        waits = crowd.client.submit(run=["true"], gpus=1, name="waits", workdir=None)
        blocks = wait_until(lambda: _blocks(crowd, waits.id, "n5"), START_S, 0.1, what="the pool to say why")
        assert "clock" in blocks
        # Longer than its lease: leases are durations, whatever time it is.
        assert crowd.outlives("before", LEASE_S + 2)
        assert waits.status().state is JobState.PENDING
    finally:
        clock_file.write_text("+0")
        for node in others:
            crowd.client.uncordon(node)
    assert waits.wait(START_S).state is JobState.SUCCEEDED
    assert crowd.lives("before", 1)


def _skew(crowd: Crowd, node: str) -> float:
    (found,) = [one.clock_skew_s for one in crowd.client.nodes() if one.spec.id == node]
    return found or 0.0


def _blocks(crowd: Crowd, job: str, node: str) -> str:
    return " ".join(
        block for found in crowd.client.why(job).constraints if found.node == node for block in found.blocks
    )
