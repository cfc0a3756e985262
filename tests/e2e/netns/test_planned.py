"""A planned outage: with long leases first, nothing stops while the database and with it every controller is away."""

from __future__ import annotations

import pytest

from bench.machines import Machines
from tests.e2e.netns.crowd import LEASE_S, START_S, Crowd
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.xdist_group("netns")]


def test_a_planned_outage_of_the_database_freezes_nothing(five: Machines, crowd: Crowd) -> None:
    crowd.start("planned", "n1", lease=LEASE_S)
    five.corral(five.leader()[0], "maintenance", "start", "5m", "--reason", "new disks")
    five.hosts["db"].pause()
    try:
        # Twice as long as it could go on without contact.
        assert crowd.outlives("planned", 2 * LEASE_S)
    finally:
        five.hosts["db"].resume()
    for node in five.nodes:
        crowd.await_state(node, "up")
    five.corral(five.leader()[0], "maintenance", "stop")
    # Until every node has told of its usual lease, a change of leader would lengthen what comes after this by minutes.
    wait_until(lambda: _is_over(crowd), START_S, what="the maintenance to be called off, and every long lease with it")
    assert crowd.lives("planned", 1)
    assert crowd.never_twice("planned")


def _is_over(crowd: Crowd) -> bool:
    report = crowd.client.maintenance()
    return not report.active and not report.holding
