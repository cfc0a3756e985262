"""Suspect, lost, replaced: what silence, leases and proofs mean for nodes and for the tasks that run on them.

With ``node_silent_s`` 5, ``node_lost_s`` 10 and a lease of 90 s the margin is 5 + 0.18 s: a node that is heard for the
last time at 0 is suspect from 5, lost from 15, and its exclusive tasks are surely over at 95.18.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from corral.appmaster.core import AppMasterCore
from corral.control.config import ControlConfig
from corral.control.core import ControlCore
from corral.control.inputs import Administer, Cancel, Fenced
from corral.model.events import NodeLost, NodeRemoved, TaskEnded
from corral.model.ids import JobId, NodeId
from corral.model.job import Cause
from corral.ports.store import JournalEntry, Recovered
from tests.unit.control.silent import (
    EXCLUSIVE,
    LEASES,
    UNFENCED,
    again,
    hello_of,
    lost_after,
    pass_time,
    place,
    pool,
    running,
)

# ---- how long each kind of task is waited for ----------------------------------------------------------------------


def test_a_task_without_fencing_is_replaced_when_its_node_is_lost() -> None:
    world = pool()
    home, others = place(world, UNFENCED)
    assert lost_after(world, 60.0, *others) == pytest.approx(15.0, abs=1.1)
    assert again(world)
    assert world.placed_on("1")[0] != home
    assert world.core.book.state.nodes[NodeId(home)].lost


def test_a_broken_connection_is_noticed_at_once() -> None:
    world = pool()
    home, others = place(world, UNFENCED)
    world.gone(home)
    assert lost_after(world, 60.0, *others) == pytest.approx(10.0, abs=1.1)


def test_an_exclusive_task_is_replaced_when_its_lease_is_surely_over() -> None:
    world = pool()
    home, others = place(world, EXCLUSIVE)
    heard_at = world.core.book.observed.contact(NodeId(home)).heard_at
    assert heard_at is not None
    assert lost_after(world, 200.0, *others)
    assert again(world)
    # That the node was given up, eighty seconds before, did not end it.
    [lost] = [fact for fact in world.journal if isinstance(fact, NodeLost)]
    [ended] = [fact for fact in world.journal if isinstance(fact, TaskEnded)]
    assert 95.18 <= ended.at - heard_at <= 95.18 + 1.1
    assert ended.at - lost.at > 79.0
    assert ended.exit.cause is Cause.NODE_LOST
    assert lost.node == home


def test_the_lease_is_the_jobs_own() -> None:
    world = pool()
    _, others = place(world, replace(EXCLUSIVE, lease_s=20.0))
    # 20 + 5 + 0.2
    assert lost_after(world, 60.0, *others) == pytest.approx(25.2, abs=1.1)


def test_without_leases_only_a_proof_ends_anything() -> None:
    world = pool(config=ControlConfig())
    home, others = place(world, UNFENCED)
    assert lost_after(world, 500.0, *others) is None
    world.tell(Fenced(NodeId(home), proven=True))
    assert again(world)


def test_all_ranks_of_a_gang_are_waited_for() -> None:
    world = pool()
    world.submit(replace(EXCLUSIVE, num_nodes=2))
    homes = world.placed_on("1")
    for rank in (0, 1):
        world.start("1", rank=rank)
    others = [name for name in world.specs if name not in homes]
    # One rank's node is heard for half a minute longer than the other's.
    pass_time(world, 30.0, homes[1], *others)
    pass_time(world, 70.0, *others)
    ranks = [fact.rank for fact in world.journal if isinstance(fact, TaskEnded)]
    assert ranks == [0]
    assert world.job("1").gangs[0].incarnation == 1
    pass_time(world, 27.5, *others)
    assert again(world)
    assert not set(world.placed_on("1")) & set(homes)


def test_a_cancelled_job_of_a_silent_node_ends_with_its_lease() -> None:
    world = pool()
    _, others = place(world, EXCLUSIVE)
    pass_time(world, 20.0, *others)
    world.tell(Cancel(JobId("1"), "me"))
    pass_time(world, 70.0, *others)
    assert world.finished == []
    pass_time(world, 8.0, *others)
    assert [row.state for row in world.finished] == ["cancelled"]


# ---- whose fault silence is ----------------------------------------------------------------------------------------


def test_a_controller_that_hears_nobody_gives_nobody_up() -> None:
    world = pool()
    home, others = place(world, UNFENCED)
    pass_time(world, 600.0)
    assert not [fact for fact in world.journal if isinstance(fact, NodeLost | TaskEnded)]
    # The first that come back do not make the others late: these have the usual patience from then on.
    pass_time(world, 9.0, *others)
    assert not [fact for fact in world.journal if isinstance(fact, NodeLost)]
    pass_time(world, 3.0, *others)
    assert [fact.node for fact in world.journal if isinstance(fact, NodeLost)] == [home]
    assert again(world)


def test_a_silence_of_everybody_ends_at_last_so_that_a_dead_pool_can_be_cleared() -> None:
    world = pool("n1")
    world.submit(UNFENCED)
    world.start("1")
    pass_time(world, 3600.0)
    assert not [fact for fact in world.journal if isinstance(fact, NodeLost)]
    world.tell(Cancel(JobId("1"), "me"))
    pass_time(world, 40.0)
    assert [fact.node for fact in world.journal if isinstance(fact, NodeLost)] == ["n1"]
    assert [row.state for row in world.finished] == ["cancelled"]


def test_an_engine_that_breaks_off_all_connections_and_is_back_in_a_minute_costs_nothing() -> None:
    world = pool()
    place(world, UNFENCED)
    place(world, EXCLUSIVE, "2")
    for name in world.specs:
        world.gone(name)
    pass_time(world, 60.0)
    for name in world.specs:
        tasks = [running(task=k) for k, launch in world.launched.items() if launch.node == name]
        hello_of(world, name, *tasks)
        pass_time(world, 1.0, name)
    assert not [fact for fact in world.journal if isinstance(fact, NodeLost | TaskEnded)]
    assert world.stops() == []


def test_a_controller_that_was_held_up_gives_nobody_up() -> None:
    world = pool()
    place(world, UNFENCED)
    # Its disk hung, or it was stopped: no tick for ten minutes. What the nodes said comes after that.
    world.now += 600.0
    world.advance(0.5)
    pass_time(world, 3.0, *world.specs)
    assert not [fact for fact in world.journal if isinstance(fact, NodeLost | TaskEnded)]


def test_when_more_than_half_are_away_they_are_waited_for_twice_as_long() -> None:
    world = pool()
    _, others = place(world, UNFENCED)
    assert lost_after(world, 60.0, others[0]) == pytest.approx(25.0, abs=1.1)


def test_a_new_leader_counts_every_lease_from_its_takeover() -> None:
    world = pool()
    home, others = place(world, EXCLUSIVE)
    pass_time(world, 30.0, *others)
    journal = tuple(JournalEntry(i + 1, 1, fact) for i, fact in enumerate(world.journal))
    world.core = ControlCore(Recovered(0, None, journal), LEASES, AppMasterCore, epoch=2)
    world.journal.clear()
    # It takes the engine four seconds to be heard by the first node.
    pass_time(world, 4.0)
    for name in others:
        hello_of(world, name)
    after = lost_after(world, 200.0, *others)
    assert after is not None
    assert 95.18 <= after + 4.0 <= 95.18 + 1.6
    assert again(world)
    assert world.core.book.state.nodes[NodeId(home)].lost


# ---- proof ---------------------------------------------------------------------------------------------------------


def test_a_fence_that_proves_a_node_dead_ends_all_leases_at_once() -> None:
    world = pool()
    home, others = place(world, EXCLUSIVE)
    pass_time(world, 16.5, *others)
    assert world.fences == [home]
    assert not again(world)
    world.tell(Fenced(NodeId(home), proven=True))
    assert again(world)


def test_a_fence_that_proves_nothing_is_tried_again_while_leases_run() -> None:
    world = pool()
    home, others = place(world, EXCLUSIVE)
    pass_time(world, 16.5, *others)
    world.tell(Fenced(NodeId(home), proven=False))
    pass_time(world, 9.0, *others)
    assert world.fences == [home]
    pass_time(world, 2.0, *others)
    assert world.fences == [home, home]
    assert not again(world)


def test_a_proof_from_before_a_node_was_back_proves_nothing_about_what_it_started_since() -> None:
    world = pool()
    home, others = place(world, EXCLUSIVE)
    pass_time(world, 16.5, *others)
    assert world.fences == [home]
    hello_of(world, home, running())
    pass_time(world, 5.0, home, *others)
    world.gone(home)
    world.tell(Fenced(NodeId(home), proven=True))
    pass_time(world, 11.0, *others)
    assert not [fact for fact in world.journal if isinstance(fact, TaskEnded)]
    # The answer is out of the way: the node is fenced for what it runs now.
    assert world.fences == [home, home]
    world.tell(Fenced(NodeId(home), proven=True))
    assert again(world)


def test_a_node_that_was_restarted_runs_nothing_of_before() -> None:
    world = pool()
    home, others = place(world, EXCLUSIVE)
    pass_time(world, 10.0, *others)
    world.specs[home] = replace(world.specs[home], incarnation="boot-2")
    hello_of(world, home)
    assert again(world)


def test_an_agent_that_is_back_and_does_not_know_a_task_proves_that_it_is_gone() -> None:
    world = pool()
    home, others = place(world, EXCLUSIVE)
    pass_time(world, 10.0, *others)
    hello_of(world, home)
    assert again(world)


def test_a_fence_of_a_node_that_was_removed_proves_nothing_about_the_next_one_of_its_name() -> None:
    world = pool()
    home, others = place(world, EXCLUSIVE)
    pass_time(world, 100.0, *others)
    assert again(world)
    assert world.fences[0] == home
    assert world.tell(Administer(NodeRemoved(at=world.now, node=NodeId(home), by="me"))) is None
    hello_of(world, home)
    for _ in range(3):
        world.submit(EXCLUSIVE)
    [there] = [job for job in ("2", "3", "4") if world.placed_on(job) == [home]]
    world.start(there)
    fences = len(world.fences)
    pass_time(world, 16.0, *others)
    world.tell(Fenced(NodeId(home), proven=True))
    assert world.job(there).gangs[0].live
    # The node that there is now is fenced on its own account.
    pass_time(world, 11.0, *others)
    assert len(world.fences) == fences + 1
    world.tell(Fenced(NodeId(home), proven=True))
    assert world.core.book.state.held[NodeId(home)].gangs == {}


def test_a_node_that_stays_removed_leaves_nothing_behind() -> None:
    world = pool()
    home, others = place(world, EXCLUSIVE)
    pass_time(world, 100.0, *others)
    assert world.tell(Administer(NodeRemoved(at=world.now, node=NodeId(home), by="me"))) is None
    world.tell(Fenced(NodeId(home), proven=True))
    assert NodeId(home) not in world.core.book.observed.contacts
