"""The controller's view of the pool as a scene for explanations and forecasts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from corral.control.book import Book
from corral.control.observed import clock_words
from corral.model.offer import Reservation
from corral.model.resources import MILLI, Amount
from corral.model.state import Node
from corral.policy.outlook import Absence, Scene


def scene_of(book: Book, reservations: Sequence[Reservation], now: float) -> Scene:
    """Return everything that an explanation looks at."""
    absent: list[Absence] = []
    offered = book.board.offers()
    for name, node in sorted(book.state.nodes.items()):
        if name in offered:
            continue
        models = Counter(d.model for d in node.spec.devices if d.uuid not in node.failed)
        total = Amount(MILLI * models.total(), node.spec.cpus_milli, node.spec.memory_mib)
        view = book.board.view(name)
        absent.append(
            Absence(
                name,
                total,
                _absence_words(book, node, now),
                tuple(sorted(models.items())),
                cordoned=node.cordoned and view.takes_tasks and not node.lost,
            )
        )
    return Scene(
        snapshot=book.board.snapshot(now),
        pending=book.waiting.index,
        standings=book.standings.of_tenants(book.state, book.board.capacity, now),
        queues=book.standings.of_queues(book.state),
        reservations=reservations,
        absent=tuple(absent),
        config=book.config.scheduling,
        history=book.experience.history(),
    )


def _absence_words(book: Book, node: Node, now: float) -> str:
    if node.cordoned:
        return "cordoned" + (f": {node.cordon_reason}" if node.cordon_reason else "")
    if node.lost:
        return "lost: no contact"
    contact = book.observed.contact(node.spec.id)
    if contact.answering and contact.clock_wrong:
        return clock_words(contact)
    if contact.answering and contact.unfit:
        return contact.unfit
    heard = contact.heard_at
    return "never heard of since the start" if heard is None else f"silent for {now - heard:.0f} s"
