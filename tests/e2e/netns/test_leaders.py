"""Leaders are lost: cut from their database but not from the nodes, or switched off with their machine."""

from __future__ import annotations

import pytest

from bench.machines import Machines
from corral.model.errors import CorralError
from tests.e2e.netns.crowd import LEASE_S, START_S, Crowd
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.xdist_group("netns")]


def await_leader(pool: Machines, after: int) -> str:
    """Wait for a leader of a later epoch; return its name."""

    def look() -> str | None:
        try:
            # Short: a head that is gone holds up every question.
            name, epoch = pool.leader(timeout_s=0.5)
        except CorralError:
            return None
        return name if epoch > after else None

    found = wait_until(look, START_S, 0.1, what=f"a leader after epoch {after}")
    assert found is not None
    return found


def test_a_leader_cut_from_its_database_but_not_from_the_nodes_lets_nothing_run_twice(
    five: Machines, crowd: Crowd
) -> None:
    deposed, epoch = five.leader()
    crowd.start("led", "n1", lease=LEASE_S)
    crowd.start("cut", "n2", lease=LEASE_S)
    five.hosts.part(five.hosts[deposed], five.hosts["db"])
    five.hosts["n2"].cut()
    try:
        leader = await_leader(five, epoch)
        assert leader != deposed
        crowd.await_again("cut")
        assert crowd.never_twice("led", "cut")
        # Both would command the nodes; these listen to the newer one, whose acknowledgements renew the lease.
        assert crowd.outlives("led", LEASE_S + 2)
    finally:
        five.hosts.rejoin(five.hosts[deposed], five.hosts["db"])
        five.hosts["n2"].mend()
    crowd.await_state("n2", "up")
    crowd.await_no_tasks("n2")
    assert crowd.never_twice("led", "cut")
    assert five.leader()[0] == leader


def test_a_leader_that_is_switched_off_is_followed_by_another_and_no_task_notices(five: Machines, crowd: Crowd) -> None:
    lost, epoch = five.leader()
    crowd.start("goes-on", "n3")
    before = crowd.client.submit(run=["echo", "before"], name="before", workdir=None)
    five.hosts[lost].kill()
    try:
        leader = await_leader(five, epoch)
        assert leader != lost
        for node in five.nodes:
            crowd.await_state(node, "up", timeout_s=2 * START_S)
        assert before.wait(START_S).exit_code == 0
        assert crowd.client.submit(run=["echo", "after"], name="after", workdir=None).wait(START_S).exit_code == 0
        assert crowd.lives("goes-on", 1)
    finally:
        five.hosts[lost].start()
        five.start_head(lost)
    assert five.leader()[0] == leader
