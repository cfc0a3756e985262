"""Planned outages: long leases for everybody first, and nothing that was granted is ever forgotten."""

from __future__ import annotations

from corral.appmaster.core import AppMasterCore
from corral.control import maintenance
from corral.control.core import ControlCore
from corral.control.inputs import Administer, Fenced
from corral.model.errors import Refusal
from corral.model.events import MaintenanceEnded, MaintenanceSettled, MaintenanceStarted, NodeLost, TaskEnded
from corral.model.ids import NodeId
from corral.model.messages import AcknowledgeHeartbeat, Heartbeat
from corral.ports.store import JournalEntry, Recovered
from tests.unit.control.silent import EXCLUSIVE, LEASES, UNFENCED, again, hello_of, place, pool, running
from tests.unit.control.world import World

HALF_HOUR_S = 1800.0


class Nodes:
    """The heartbeats of nodes that tell what was acknowledged to them, as agents do."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sent_s = dict.fromkeys(world.specs, 1.0)
        self.contact_s: dict[str, float | None] = dict.fromkeys(world.specs)

    def beat(self, *names: str, seconds: float = 1.0, deaf: bool = False) -> list[AcknowledgeHeartbeat]:
        """Send one heartbeat each, then let time pass; return the answers. A ``deaf`` node does not get its answer."""
        before = len(self.world.commands)
        for name in names:
            self.sent_s[name] += 1.0
            beat = Heartbeat(
                node=NodeId(name),
                sent_boottime_s=self.sent_s[name],
                wall_s=self.world.now,
                contact_boottime_s=self.contact_s[name],
            )
            self.world.tell(beat)
        answers = [c for c in self.world.commands[before:] if isinstance(c, AcknowledgeHeartbeat)]
        for answer in answers if not deaf else ():
            self.contact_s[answer.node] = answer.sent_boottime_s
        end = self.world.now + seconds
        while self.world.now < end - 1e-9:
            self.world.advance(0.5)
        return answers

    def beats(self, times: int, *names: str) -> None:
        for _ in range(times):
            self.beat(*names)


def begin(world: World, seconds: float = HALF_HOUR_S) -> None:
    fact = MaintenanceStarted(at=world.now, until=world.now + seconds, by="me")
    assert world.tell(Administer(fact)) is None


def end(world: World) -> object:
    return world.tell(Administer(MaintenanceEnded(at=world.now, by="me")))


def missing(world: World) -> tuple[str, ...]:
    return maintenance.report(world.core, world.now).missing


def ends(world: World) -> int:
    return sum(isinstance(fact, TaskEnded) for fact in world.journal)


def restarted(world: World, *nodes: str) -> None:
    """Replace the controller by one that knows the journal, and let nodes say hello to it."""
    journal = tuple(JournalEntry(i + 1, 1, fact) for i, fact in enumerate(world.journal))
    world.core = ControlCore(Recovered(0, None, journal), LEASES, AppMasterCore, epoch=2)
    world.advance(0.5)
    for name in nodes:
        hello_of(world, name, sent_s=0.5)


def test_every_node_gets_the_rest_of_the_time_with_each_acknowledgement() -> None:
    world = pool("n1", "n2")
    nodes = Nodes(world)
    assert {answer.lease_s for answer in nodes.beat("n1", "n2", seconds=0.0)} == {0.0}
    begin(world)
    assert {answer.lease_s for answer in nodes.beat("n1", "n2")} == {1800.0}
    assert {answer.lease_s for answer in nodes.beat("n1", "n2", seconds=0.0)} == {1799.0}


def test_a_node_is_prepared_when_it_says_that_it_had_an_acknowledgement() -> None:
    world = pool("n1", "n2")
    nodes = Nodes(world)
    nodes.beats(2, "n1", "n2")
    begin(world)
    assert missing(world) == ("n1", "n2")
    nodes.beat("n1")
    nodes.beat("n2", deaf=True)
    assert missing(world) == ("n1", "n2")
    nodes.beat("n1", "n2")
    assert missing(world) == ("n2",)
    nodes.beat("n1", "n2")
    report = maintenance.report(world.core, world.now)
    assert (report.ready, report.missing) == (("n1", "n2"), ())


def test_who_does_not_answer_is_not_prepared_and_who_is_lost_is_not_waited_for() -> None:
    world = pool("n1", "n2", "n3")
    nodes = Nodes(world)
    begin(world)
    nodes.beats(3, "n1", "n2", "n3")
    assert missing(world) == ()
    world.gone("n3")
    assert missing(world) == ("n3",)
    end(world)
    nodes.beats(14, "n1", "n2")
    begin(world)
    nodes.beats(3, "n1", "n2")
    assert missing(world) == ()


def test_nobody_is_given_up_or_replaced_while_it_lasts() -> None:
    world = pool()
    nodes = Nodes(world)
    home, others = place(world, EXCLUSIVE)
    place(world, UNFENCED, "2")
    second = world.placed_on("2")[0]
    heard = [name for name in others if name != second]
    begin(world)
    nodes.beats(3, *world.specs)
    nodes.beats(1790, *heard)
    assert not [fact for fact in world.journal if isinstance(fact, NodeLost)]
    assert ends(world) == 0
    # It is over: the usual patience, and what is granted for longest is over, too.
    nodes.beats(60, *heard)
    assert again(world, "1")
    assert again(world, "2")
    assert home not in world.placed_on("1")


def test_a_grant_outlives_the_maintenance_that_was_called_off() -> None:
    world = pool()
    nodes = Nodes(world)
    _, others = place(world, EXCLUSIVE)
    begin(world)
    begun = world.now
    nodes.beats(3, *world.specs)
    end(world)
    nodes.beats(300, *others)
    # The usual lease is long over; this node does not know that the long one was taken back.
    assert ends(world) == 0
    nodes.beats(1500, *others)
    assert ends(world) == 0
    # 1,800 s, and the margin of such a lease: 5 s and 0.2 %: 8.6 s; looked at in ticks.
    nodes.beats(30, *others)
    [ended] = [fact for fact in world.journal if isinstance(fact, TaskEnded)]
    assert 1800.0 + 8.6 <= ended.at - begun <= 1800.0 + 11.6


def test_a_grant_that_was_surely_taken_back_is_forgotten() -> None:
    world = pool()
    nodes = Nodes(world)
    home, others = place(world, EXCLUSIVE)
    begin(world)
    nodes.beats(3, *world.specs)
    end(world)
    nodes.beats(2, *world.specs)
    silent_from = world.now
    nodes.beats(98, *others)
    [ended] = [fact for fact in world.journal if isinstance(fact, TaskEnded)]
    assert ended.at - silent_from < 97.0
    assert home


def test_an_acknowledgement_that_was_lost_takes_nothing_back() -> None:
    world = pool()
    nodes = Nodes(world)
    home, others = place(world, EXCLUSIVE)
    begin(world)
    nodes.beats(3, *world.specs)
    end(world)
    # The controller said it twice, and the node never heard it.
    nodes.beat(home, *others, seconds=0.0, deaf=True)
    nodes.beat(home, *others, deaf=True)
    nodes.beats(300, *others)
    assert ends(world) == 0


def test_another_controller_knows_from_the_journal_what_may_have_been_granted() -> None:
    world = pool()
    nodes = Nodes(world)
    _, others = place(world, EXCLUSIVE)
    begin(world)
    nodes.beats(3, *world.specs)
    end(world)
    restarted(world, *others)
    nodes.beats(300, *others)
    assert ends(world) == 0


def test_the_clock_of_another_controller_shortens_no_grant() -> None:
    world = pool()
    nodes = Nodes(world)
    _, others = place(world, EXCLUSIVE)
    begin(world, 300.0)
    nodes.beats(3, *world.specs)
    # The next one takes over at once, on a machine whose clock is 400 s ahead: by that the grants are over.
    world.now += 400.0
    restarted(world, *others)
    nodes.beats(299, *others)
    assert ends(world) == 0
    # 300 s and the margin of 5 + 3 s after its takeover they are over by every clock.
    nodes.beats(11, *others)
    assert ends(world) == 1


def test_a_maintenance_of_long_ago_delays_nothing() -> None:
    world = pool()
    nodes = Nodes(world)
    _, others = place(world, EXCLUSIVE)
    begin(world, 300.0)
    nodes.beats(3, *world.specs)
    world.now += 910.0
    restarted(world, *others)
    nodes.beats(98, *others)
    assert ends(world) == 1


def test_a_short_one_does_not_hide_a_long_grant_that_has_hardly_ended() -> None:
    world = pool()
    begin(world, 1000.0)
    world.now += 1001.0
    begin(world, 10.0)
    planned = world.core.book.state.maintenance
    assert planned is not None
    # Its margin is 15 s: a node with a slow clock may hold the long one for another 14.
    assert planned.granted_s == 1000.0


def test_a_node_that_told_the_new_controller_of_its_usual_lease_is_waited_for_no_longer() -> None:
    world = pool()
    nodes = Nodes(world)
    home, others = place(world, EXCLUSIVE)
    begin(world)
    nodes.beats(3, *world.specs)
    end(world)
    restarted(world)
    for name in world.specs:
        hello_of(world, name, *([running()] if name == home else ()), sent_s=nodes.sent_s[name])
        nodes.contact_s[name] = nodes.sent_s[name]
    nodes.beats(2, *world.specs)
    silent_from = world.now
    nodes.beats(98, *others)
    [ended] = [fact for fact in world.journal if isinstance(fact, TaskEnded)]
    assert 94.0 < ended.at - silent_from < 97.0


def settled(world: World) -> int:
    return sum(isinstance(fact, MaintenanceSettled) for fact in world.journal)


def test_what_every_node_was_seen_to_give_back_is_forgotten_by_later_controllers_too() -> None:
    world = pool()
    nodes = Nodes(world)
    home, others = place(world, EXCLUSIVE)
    begin(world)
    nodes.beats(3, *world.specs)
    end(world)
    # The first tells of the long lease and is answered with the usual one, which the second tells of.
    nodes.beats(2, *others, home)
    assert settled(world) == 1
    # The next one never hears the node: it has only the journal.
    restarted(world, *others)
    since = world.now
    nodes.beats(98, *others)
    [ended] = [fact for fact in world.journal if isinstance(fact, TaskEnded)]
    # 90 s, and the margin of such a lease: 5 s and 0.2 %.
    assert 95.18 <= ended.at - since < 96.7


def test_one_that_ran_out_is_settled_as_one_that_was_called_off() -> None:
    world = pool("n1", "n2")
    nodes = Nodes(world)
    begin(world, 60.0)
    nodes.beats(62, "n1", "n2")
    assert settled(world) == 1
    nodes.beats(3, "n1", "n2")
    assert settled(world) == 1


def test_it_is_not_settled_while_one_node_may_still_hold_the_long_lease() -> None:
    world = pool("n1", "n2", "n3")
    nodes = Nodes(world)
    begin(world)
    nodes.beats(3, "n1", "n2", "n3")
    end(world)
    assert maintenance.report(world.core, world.now).holding == ("n1", "n2", "n3")
    nodes.beat("n1", "n2")
    nodes.beat("n3", deaf=True)
    nodes.beat("n1", "n2")
    nodes.beat("n3", deaf=True)
    assert maintenance.report(world.core, world.now).holding == ("n3",)
    assert not settled(world)
    nodes.beats(2, "n1", "n2", "n3")
    assert maintenance.report(world.core, world.now).holding == ()
    assert settled(world) == 1


def test_a_lost_node_without_tasks_holds_nothing_and_one_with_tasks_does() -> None:
    world = pool()
    nodes = Nodes(world)
    home, others = place(world, EXCLUSIVE)
    empty, *rest = others
    begin(world)
    nodes.beats(3, *world.specs)
    end(world)
    nodes.beats(30, *rest)
    assert {fact.node for fact in world.journal if isinstance(fact, NodeLost)} == {home, empty}
    assert maintenance.report(world.core, world.now).holding == (home,)
    assert not settled(world)
    world.tell(Fenced(NodeId(home), proven=True))
    world.advance(1.0)
    assert settled(world) == 1


def test_a_controller_that_heard_nobody_yet_settles_nothing() -> None:
    world = pool("n1", "n2")
    nodes = Nodes(world)
    begin(world)
    nodes.beats(3, "n1", "n2")
    end(world)
    restarted(world)
    world.advance(1.0)
    assert not settled(world)
    # Hellos are acknowledged; that this was heard is what the second heartbeat says.
    for name in ("n1", "n2"):
        hello_of(world, name, sent_s=nodes.sent_s[name] + 0.5)
    world.advance(1.0)
    assert not settled(world)
    nodes.beats(2, "n1", "n2")
    assert settled(world) == 1


def test_a_proof_does_not_wait_for_the_end() -> None:
    world = pool()
    nodes = Nodes(world)
    home, others = place(world, EXCLUSIVE)
    begin(world)
    nodes.beats(3, *world.specs)
    nodes.beats(20, *others)
    world.tell(Fenced(NodeId(home), proven=True))
    assert again(world)


def test_there_is_nothing_to_call_off_when_none_is_under_way() -> None:
    world = pool("n1")
    refused = end(world)
    assert isinstance(refused, Refusal)
    assert refused.code == "CONFLICT"
    begin(world, 60.0)
    world.now += 61.0
    assert isinstance(end(world), Refusal)
    assert not maintenance.report(world.core, world.now).active


def test_a_second_one_sets_the_end_anew_and_forgets_no_grant() -> None:
    world = pool()
    nodes = Nodes(world)
    _, others = place(world, EXCLUSIVE)
    begin(world)
    nodes.beats(3, *world.specs)
    begin(world, 60.0)
    assert missing(world) == tuple(sorted(world.specs))
    nodes.beats(3, *others)
    report = maintenance.report(world.core, world.now)
    assert report.left_s == 57.0
    assert len(report.missing) == 1
    nodes.beats(300, *others)
    assert ends(world) == 0
