"""Leases as the controller counts them: acknowledging is granting, and nobody is replaced before a lease is over."""

from __future__ import annotations

from corral.control.book import Book
from corral.control.observed import Contact, Grant
from corral.model.events import MaintenanceSettled
from corral.model.ids import NodeId
from corral.model.job import JobSpec
from corral.model.messages import AcknowledgeHeartbeat
from corral.model.state import Node
from corral.policy.fencing import margin_s, safe_at


class Leases:
    """Grants by acknowledging; remembers what may still be out there."""

    def __init__(self, book: Book) -> None:
        self._book = book

    def acknowledge(self, now: float, node: NodeId, contact: Contact, sent_boottime_s: float) -> None:
        """Acknowledge a hello or a heartbeat, with a longer lease while a planned outage is prepared."""
        grant, planned = contact.grant, self._book.state.maintenance
        active = planned is not None and planned.active(now)
        terms = planned.started_at if planned is not None and active else None
        if grant.from_boottime_s is None or grant.terms != terms:
            grant.terms, grant.from_boottime_s, grant.confirmed = terms, sent_boottime_s, False
        lease_s = planned.until - now if planned is not None and active else 0.0
        if lease_s > 0:
            grant.until = max(now + lease_s + margin_s(lease_s), grant.until or 0.0)
        self._book.send(
            AcknowledgeHeartbeat(
                node=node, epoch=self._book.epoch, sent_boottime_s=sent_boottime_s, lease_s=max(0.0, lease_s)
            )
        )

    def heard(self, contact: Contact, contact_boottime_s: float | None) -> None:
        """Take in from where a node's leases run, as its heartbeat says: so it knows of that acknowledgement."""
        grant = contact.grant
        if grant.from_boottime_s is None or contact_boottime_s is None or contact_boottime_s < grant.from_boottime_s:
            return
        grant.confirmed = True
        if grant.terms is None:
            # Acknowledgements arrive in order: no earlier grant comes after this.
            grant.until = None

    def holding(self, now: float) -> tuple[NodeId, ...]:
        """Return the nodes that may hold long leases of a planned outage that is over, as far as is known here."""
        state = self._book.state
        if state.maintenance is None or state.maintenance.active(now):
            return ()
        return tuple(name for name, node in sorted(state.nodes.items()) if self._holds(name, node))

    def _holds(self, name: NodeId, node: Node) -> bool:
        if node.lost and not self._book.state.held[name].gangs:
            # What it had is over; when it comes back its hello is acknowledged before anything is launched there.
            return False
        grant = self._book.observed.contact(name).grant
        return grant.terms is not None or not grant.confirmed

    def settle(self, now: float) -> None:
        """Journal that nothing is left of a planned outage: else each later controller would wait for what may be."""
        planned = self._book.state.maintenance
        if planned is not None and not planned.active(now) and not self.holding(now):
            self._book.record(MaintenanceSettled(at=now))

    @staticmethod
    def restarted(contact: Contact) -> None:
        """Forget the grants of a node that was restarted: what had them is gone, and its clock begins anew."""
        contact.grant = Grant()

    def is_prepared(self, contact: Contact, now: float) -> bool:
        """Return whether a node is known to have the long leases of the outage that is planned now."""
        planned = self._book.state.maintenance
        return (
            planned is not None
            and planned.active(now)
            and contact.answering
            and contact.grant.confirmed
            and contact.grant.terms == planned.started_at
        )

    def safe_at(self, contact: Contact, spec: JobSpec) -> float:
        """Return from when on a task cannot run any more on a node that is not heard (controller's clock)."""
        heard = (contact.heard_at, self._book.observed.hearing.since)
        heard_at = max((at for at in heard if at is not None), default=float("inf"))
        lease_s = spec.lease_s if self._book.config.leases else None
        return safe_at(spec.fencing, lease_s, heard_at, self._granted_until(contact))

    def _granted_until(self, contact: Contact) -> float | None:
        """Return how long a grant may last: one by this controller, or one by an earlier one that was not withdrawn."""
        planned, since, until = self._book.state.maintenance, self._book.observed.hearing.since, contact.grant.until
        if planned is None or since is None or contact.grant.confirmed or since >= planned.forgotten_at:
            return until
        # When it ends is in the time of who granted it: here it is only sure that it is no longer than it was.
        earlier = since + planned.granted_s + margin_s(planned.granted_s)
        return earlier if until is None else max(until, earlier)
