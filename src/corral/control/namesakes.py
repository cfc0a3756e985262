"""Namesakes: machines that say they are one node.

A machine has an id of its own, which a copy of its state directory has as well. A copy is told by what no copy can
have: another boot at another address. So is a machine that was started anew and got another address meanwhile; in doubt
nothing is proven, and its tasks are waited for as after silence.
"""

from __future__ import annotations

from corral.control.book import Book
from corral.control.holdings import tasks_on
from corral.control.leases import Leases
from corral.control.observed import Contact
from corral.model.resources import NodeSpec
from corral.model.state import Node

ALIVE_S = 3.0
"""A node that was heard so lately is alive: heartbeats come every second."""


class Namesakes:
    """Keeps a second machine out while the first is alive, or while tasks may run there."""

    def __init__(self, book: Book, leases: Leases) -> None:
        self._book = book
        self._leases = leases

    def keeps_out(self, now: float, known: Node, contact: Contact, spec: NodeSpec) -> bool:
        """Return whether a machine wants to be a node that another machine is, or may be still.

        That it knows nothing of the tasks there proves nothing: it is let in when they are over. Its heartbeats are
        answered by the wish to hear a hello, so it comes again.
        """
        over = all(now >= self._leases.safe_at(contact, job.spec) for job, _, _ in tasks_on(self._book.state, spec.id))
        alive = contact.heard_at is not None and now - contact.heard_at <= ALIVE_S
        copied = is_copied(known.spec, spec)
        if not self._book.config.leases or not (copied or is_other(known.spec, spec)) or (over and not alive):
            contact.other_machine = ""
            return False
        if not contact.other_machine:
            self._book.notice(
                f"machine {spec.hostname} ({spec.address}) says that it is node {spec.id}, which is "
                f"{known.spec.hostname} ({known.spec.address}): it is not taken in while that one is heard or tasks of "
                "it may run; "
                + ("its state directory is a copy of that one's" if copied else "give each machine a name of its own")
            )
        contact.other_machine = spec.hostname
        return True


def is_other(known: NodeSpec, spec: NodeSpec) -> bool:
    """Return whether a machine has another id than the one that is the node."""
    return bool(known.machine) and known.machine != spec.machine


def is_copied(known: NodeSpec, spec: NodeSpec) -> bool:
    """Return whether a machine with the same id may be another one: it has another boot at another address."""
    return (
        bool(known.machine)
        and known.machine == spec.machine
        and known.incarnation != spec.incarnation
        and known.address != spec.address
    )
