"""Silence: which nodes are suspect, which are given up, and from when on their tasks may be started elsewhere.

    up -> suspect    the connection broke, or no heartbeat came for ``node_silent_s``
    suspect -> lost  after ``node_lost_s`` more (hearing time; twice as long while more than half of all nodes are away)
    lost             tasks without fencing are replaced at once, exclusive ones when their lease is surely over, all of
                     them as soon as it is proven that nothing runs there
    any -> up        the node says hello: what was replaced is stopped there before any of its leases is extended

Where the engine cannot lose contact (``leases`` off) silence proves nothing and costs nothing: only a proof ends tasks.
"""

from __future__ import annotations

from corral.control.book import Book
from corral.control.devices import Devices
from corral.control.holdings import tasks_on
from corral.control.inputs import Fenced
from corral.control.leases import Leases
from corral.control.liveness import Liveness
from corral.control.observed import Contact
from corral.model.events import NodeLost
from corral.model.ids import NodeId
from corral.policy.fencing import patience_s, wrong_clocks


class Silence:
    """Looks at the contacts as time passes."""

    def __init__(self, book: Book, leases: Leases, liveness: Liveness) -> None:
        self._book = book
        self._leases = leases
        self._liveness = liveness
        self._devices = Devices(book)
        self._excused_on = float("-inf")

    def tick(self, now: float) -> None:
        """Look for silence: nodes that are gone for too long, wrong clocks, masters that owe a decision."""
        book = self._book
        contacts = {name: book.observed.contact(name) for name in book.state.nodes}
        answered = any(contact.answering for contact in contacts.values())
        book.observed.hearing.tick(now, answered=answered)
        on = book.observed.hearing.at(now)
        if book.state.maintenance is not None and book.state.maintenance.active(now):
            self._excused_on = on
        for name, contact in contacts.items():
            self._suspect(now, on, name, contact)
        patience = book.config.node_lost_s
        if book.config.leases:
            kept = [contact for name, contact in contacts.items() if not book.state.nodes[name].lost]
            patience = patience_s(patience, away=sum(not one.answering for one in kept), known=len(kept))
        for name, contact in contacts.items():
            self._give_up(now, on, name, contact, patience)
        self._judge_clocks(contacts)
        book.chase(now, book.config.master_silent_s)

    def _suspect(self, now: float, on: float, name: NodeId, contact: Contact) -> None:
        if (
            contact.answering
            and contact.heard_at is not None
            and on - contact.heard_on > self._book.config.node_silent_s
        ):
            contact.silent = True
            self._liveness.out_of_reach(now, name, contact)
        if not contact.answering and contact.gone_on is None:
            contact.gone_on = on

    def _give_up(self, now: float, on: float, name: NodeId, contact: Contact, patience: float) -> None:
        """Give a node up that was suspect for long enough, and its tasks as soon as each of them may be."""
        if contact.answering or contact.gone_on is None:
            return
        node, leases = self._book.state.nodes[name], self._book.config.leases
        if on - max(contact.gone_on, self._excused_on) <= patience and not node.lost:
            return
        if leases and not node.lost:
            since = contact.heard_at if contact.heard_at is not None else self._book.observed.hearing.since
            self._lose(now, name, f"no contact for {now - (since or now):.0f} s")
        if leases:
            for job, gang, task in tasks_on(self._book.state, name):
                if now >= self._leases.safe_at(contact, job.spec):
                    self._liveness.lose_task(now, name, job.task_key(gang.index, task.rank), gang.incarnation)
        # A lost node with nothing on it need not be proven dead.
        wanted = not node.lost or (leases and self._book.state.held[name].gangs)
        if contact.other_machine:
            # What the engine reaches under that name is not the machine whose tasks are to be proven dead.
            return
        if wanted and not contact.fencing and on >= contact.fence_on:
            contact.fencing, contact.fence_stale, contact.fence_asked = True, False, True
            self._book.fence(name)

    def _lose(self, now: float, name: NodeId, reason: str) -> None:
        # What comes next from there has to be a hello: nothing of it is acknowledged before.
        contact = self._book.observed.contact(name)
        contact.connected, contact.lapses = False, contact.lapses + 1
        self._book.record(NodeLost(at=now, node=name, reason=reason))

    def fenced(self, now: float, answer: Fenced) -> None:
        """The engine or a power switch proved (or could not prove) that nothing of a silent node runs."""
        contact = self._book.observed.contact(answer.node)
        proven = answer.proven and not contact.fence_stale and not contact.other_machine
        contact.fencing, contact.fence_stale = False, False
        node = self._book.state.nodes.get(answer.node)
        if node is None:
            self._book.observed.forget_node(answer.node)
            return
        if contact.answering:
            return
        if not proven:
            contact.fence_on = self._book.observed.hearing.at(now) + self._book.config.node_lost_s
            return
        if not node.lost:
            self._lose(now, answer.node, "no contact; its tasks are proven to be gone")
        for job, gang, task in tasks_on(self._book.state, answer.node):
            self._liveness.lose_task(now, answer.node, job.task_key(gang.index, task.rank), gang.incarnation)

    def _judge_clocks(self, contacts: dict[NodeId, Contact]) -> None:
        """Keep nodes with a wrong wall clock out of new placements. Nothing that runs is touched."""
        skews = {
            name: skew
            for name, contact in contacts.items()
            if contact.answering and (skew := contact.clock_skew_s) is not None
        }
        wrong, own = wrong_clocks(skews)
        if bool(own) != bool(self._book.observed.own_skew_s):
            self._book.notice(
                f"the clock of this machine is {abs(own):.1f} s {'ahead of' if own > 0 else 'behind'} most nodes"
                if own
                else "the clock of this machine agrees with most nodes again"
            )
        self._book.observed.own_skew_s = own
        for name in skews:
            if (name in wrong) != contacts[name].clock_wrong:
                contacts[name].clock_wrong = name in wrong
                self._devices.judge_clock(name, contacts[name])
