"""What the board offers and who it says holds what."""

from __future__ import annotations

from corral.control.board import Board, NodeView, node_offer
from corral.model.ask import JobAsk
from corral.model.ids import DeviceId, NodeId, TenantId
from corral.model.resources import Amount
from corral.model.state import Held
from tests.unit.control.world import World

A = TenantId("a")


def test_the_board_offers_what_is_free_and_nothing_of_what_is_away() -> None:
    world = World(n1=2)
    world.heartbeat("n1", "n1-gpu0")
    world.submit(JobAsk(argv=("x",), gpu_milli=500, cpus_milli=4_000, memory_mib=1_000))
    offer = world.core.book.board.offers()[NodeId("n1")]
    assert [(d.uuid, d.free_milli) for d in offer.devices] == [("n1-gpu1", 500)]
    assert (offer.cpus_milli, offer.memory_mib, offer.total) == (60_000, 511_000, Amount(1000, 64_000, 512_000))
    # A node that shrank under its tasks offers nothing, not less than nothing.
    node = world.core.book.state.nodes[NodeId("n1")]
    held = Held(devices={DeviceId("n1-gpu1"): 500}, cpus_milli=90_000, memory_mib=1)
    shrunk = node_offer(node, held, NodeView(answering=True, shards=frozenset(), blocked=frozenset({"n1-gpu1"})))
    assert (shrunk.devices, shrunk.cpus_milli) == ((), 0)
    board = Board(world.core.book.state, world.config.scheduling)
    assert board.offers() == {}
    assert board.observe(NodeId("n1"), NodeView(answering=True, shards=frozenset()))
    assert not board.observe(NodeId("n1"), NodeView(answering=True, shards=frozenset()))
    assert set(board.offers()) == {"n1"}
    assert board.holdings.keys() == world.core.book.board.holdings.keys()


def test_a_holding_ends_with_its_duration_and_grace() -> None:
    world = World(n1=1)
    world.submit(JobAsk(argv=("x",), gpu_milli=500, max_duration_s=100.0, grace_s=7.0), JobAsk(argv=("x",)))
    ends = [holding.ends_at for holding in world.core.book.board.holdings.values()]
    assert ends == [world.now + 107.0, None]
    world.end("1")
    world.end("2")
    assert world.core.book.board.holdings == {}
