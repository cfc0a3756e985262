"""Machines that say they are one node: which of them is, and when the other may be.

The numbers are those of ``test_silence``: an exclusive task is surely over 95.18 s after its node was heard.
"""

from __future__ import annotations

from msgspec.structs import replace

from corral.control.notes import node_notes
from corral.model.ids import NodeId
from corral.model.messages import (
    AcknowledgeHeartbeat,
    SayHello,
)
from corral.model.resources import NodeSpec
from tests.unit.control.silent import EXCLUSIVE, LEASES, again, hello_of, pass_time, place, running
from tests.unit.control.world import World, node_spec


def test_another_machine_under_the_same_name_proves_nothing() -> None:
    world = World(LEASES)
    for name in ("n1", "n2", "n3"):
        world.specs[name] = replace(node_spec(name), machine=f"machine-of-{name}")
        hello_of(world, name)
    home, others = place(world, EXCLUSIVE)
    pass_time(world, 1.0, *world.specs)
    world.gone(home)
    world.specs[home] = replace(world.specs[home], machine="a-new-one", incarnation="boot-9", hostname="stranger")
    before = len(world.commands)
    for _ in range(90):
        hello_of(world, home)
        pass_time(world, 1.0, *world.specs)
    assert not again(world)
    assert len([words for words in world.notices if "stranger" in words]) == 1
    to_it = [command for command in world.commands[before:] if command.node == home]
    assert to_it
    assert {type(command) for command in to_it} == {SayHello}
    # When the lease of the task of the first machine is over, the name is free.
    pass_time(world, 8.0, *others)
    assert again(world)
    hello_of(world, home)
    assert world.core.book.state.nodes[NodeId(home)].spec.hostname == "stranger"


def test_a_machine_that_cannot_tell_who_it_is_proves_nothing() -> None:
    world = World(LEASES)
    for name in ("n1", "n2", "n3"):
        world.specs[name] = replace(node_spec(name), machine=f"machine-of-{name}")
        hello_of(world, name)
    home, _ = place(world, EXCLUSIVE)
    world.gone(home)
    world.specs[home] = replace(world.specs[home], machine="", incarnation="boot-9")
    hello_of(world, home)
    assert not again(world)


def copied(world: World, home: str) -> NodeSpec:
    """Return what a machine says of itself that was started from a copy of a node's disk."""
    return replace(world.specs[home], incarnation="boot-9", hostname="copy", address="10.0.0.99")


def identified() -> World:
    world = World(LEASES)
    for name in ("n1", "n2", "n3"):
        world.specs[name] = replace(node_spec(name), machine=f"machine-of-{name}")
        hello_of(world, name)
    return world


def test_a_copy_of_a_machine_is_kept_out_while_the_machine_is_heard() -> None:
    world = identified()
    pass_time(world, 1.0, *world.specs)
    own = world.specs["n1"]
    for _ in range(5):
        world.specs["n1"] = copied(world, "n1")
        hello_of(world, "n1")
        assert world.core.book.state.nodes[NodeId("n1")].spec == own
        assert node_notes(world.core, NodeId("n1"), world.now) == ("machine copy says that it is this node, too",)
        before = len(world.commands)
        world.heartbeat("n1")
        assert [type(command) for command in world.commands[before:]] == [SayHello]
        # The two take turns on the one connection: it is the machine that is there for long.
        world.specs["n1"] = own
        hello_of(world, "n1")
        pass_time(world, 1.0, *world.specs)
        assert world.core.book.observed.contact(NodeId("n1")).answering
    # Silent, and without any task that could be lost: it may as well have been started anew.
    world.gone("n1")
    pass_time(world, 4.0, "n2", "n3")
    world.specs["n1"] = copied(world, "n1")
    hello_of(world, "n1")
    assert world.core.book.state.nodes[NodeId("n1")].spec.hostname == "copy"


def test_a_copy_of_a_silent_machine_proves_nothing_of_its_tasks() -> None:
    world = identified()
    home, others = place(world, EXCLUSIVE)
    pass_time(world, 1.0, *world.specs)
    world.gone(home)
    world.specs[home] = copied(world, home)
    for _ in range(90):
        hello_of(world, home)
        pass_time(world, 1.0, *world.specs)
    assert not again(world)
    pass_time(world, 8.0, *others)
    assert again(world)


def test_what_comes_under_a_name_after_another_machine_has_taken_it_extends_no_lease() -> None:
    world = World(LEASES)
    for name in ("n1", "n2", "n3"):
        world.specs[name] = replace(node_spec(name), machine=f"machine-of-{name}")
        hello_of(world, name)
    home, _ = place(world, EXCLUSIVE)
    pass_time(world, 1.0, *world.specs)
    own = world.specs[home]
    world.specs[home] = replace(own, machine="a-new-one", incarnation="boot-9", hostname="stranger")
    hello_of(world, home)
    before = len(world.commands)
    world.heartbeat(home)
    # Whose heartbeat that was its hello has to say.
    assert [type(command) for command in world.commands[before:]] == [SayHello]
    world.specs[home] = own
    hello_of(world, home, running())
    world.heartbeat(home)
    assert isinstance(world.commands[-1], AcknowledgeHeartbeat)
    assert world.job("1").gangs[0].incarnation == 1
