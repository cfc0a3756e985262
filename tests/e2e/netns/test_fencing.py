"""Machines are lost in every way, and no two incarnations of an exclusive task ever run at the same time.

The tasks say so themselves, before a witness that no fault reaches.
"""

from __future__ import annotations

import os
import signal

import pytest

from bench.machines import Machines, kill
from tests.e2e.netns.crowd import LEASE_S, START_S, Crowd
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.xdist_group("netns")]


def test_cut_off_tasks_stop_in_time_even_under_a_stopped_shim(five: Machines, crowd: Crowd) -> None:
    one, two = five.hosts["n1"], five.hosts["n2"]
    crowd.start("cut", "n1", lease=LEASE_S)
    crowd.start("unfenced", "n1", fencing="none")
    frozen = crowd.start("frozen", "n2", lease=LEASE_S)
    shim, program = five.shim("n2", f"{frozen.id}.0.0.1")
    os.kill(shim, signal.SIGSTOP)
    one.cut()
    two.cut()
    try:
        crowd.await_state("n1", "suspect", "lost")
        crowd.await_again("cut", "unfenced", "frozen")
        assert crowd.never_twice("cut", "frozen")
        assert crowd.states()["n1"] == "lost"
        wait_until(lambda: not crowd.never_twice("unfenced"), what="what is not fenced to go on without contact")
    finally:
        one.mend()
        two.mend()
    for node in ("n1", "n2"):
        crowd.await_state(node, "up")
    # The ghosts are gone: the frozen ones were not thawed, and the one that went on was stopped.
    crowd.await_no_tasks("n1")
    crowd.await_no_tasks("n2")
    assert program not in five.hosts["n2"].processes()
    assert crowd.never_twice("cut", "frozen")


def test_neither_a_stopped_agent_nor_a_paused_machine_lets_a_task_run_twice(five: Machines, crowd: Crowd) -> None:
    crowd.start("alone", "n3", lease=LEASE_S)
    crowd.start("paused", "n4", lease=LEASE_S)
    agent = five.agent("n3")
    os.kill(agent, signal.SIGSTOP)
    five.hosts["n4"].pause()
    try:
        crowd.await_again("alone", "paused")
        assert crowd.never_twice("alone", "paused")
    finally:
        # An agent that hangs for so long may have been ended by its machine, and started anew.
        kill(agent, signal.SIGCONT)
        five.hosts["n4"].resume()
    for node in ("n3", "n4"):
        crowd.await_state(node, "up")
        crowd.await_no_tasks(node)
    assert crowd.never_twice("alone")
    # A machine that hangs as a whole cannot look at its clock: its tasks go on for a moment before they are frozen.
    assert crowd.overlap_s("paused") <= 1.0


def test_a_machine_that_was_switched_off_and_on_proves_that_its_tasks_are_dead(five: Machines, crowd: Crowd) -> None:
    crowd.start("proven", "n1", lease=600)
    five.hosts["n1"].kill()
    five.hosts["n1"].start()
    five.start_node("n1")
    # Its lease is far longer than this test may last: only the proof lets it run again.
    crowd.await_again("proven")
    assert crowd.never_twice("proven")


def test_what_is_reached_again_within_its_lease_goes_on(five: Machines, crowd: Crowd) -> None:
    """The engine reaches the machine before its agent has said hello: that is no proof that the agent hangs."""
    crowd.start("cut", "n1", lease=600)
    crowd.start("bereft", "n2", lease=600)
    one, two = five.hosts["n1"], five.hosts["n2"]
    one.cut()
    two.cut()
    try:
        for pid in five.named("n2", "raylet/raylet"):
            os.kill(pid, signal.SIGKILL)
        for node in ("n1", "n2"):
            crowd.await_state(node, "lost")
    finally:
        one.mend()
        two.mend()
    for node in ("n1", "n2"):
        crowd.await_state(node, "up")
    assert crowd.outlives("cut", 5)
    assert crowd.outlives("bereft", 5)


def test_a_killed_shim_moves_its_task_and_a_killed_agent_does_not(five: Machines, crowd: Crowd) -> None:
    moves = crowd.start("moves", "n2", lease=600)
    crowd.start("stays", "n3", lease=LEASE_S)
    before = five.agent("n3")
    os.kill(before, signal.SIGKILL)
    os.kill(five.shim("n2", f"{moves.id}.0.0.1")[0], signal.SIGKILL)
    crowd.await_again("moves")
    wait_until(lambda: five.named("n3", "corral.runtime.agent") not in ([], [before]), START_S, what="another agent")
    # Longer than its lease: the new agent renews it.
    assert crowd.outlives("stays", LEASE_S + 2)
    assert crowd.never_twice("moves", "stays")
