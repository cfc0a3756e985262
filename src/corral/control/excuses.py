"""Ends of tasks that their node cannot explain: it sees a dead shim, the controller knows what became of the node."""

from __future__ import annotations

from msgspec.structs import replace

from corral.control.book import Book
from corral.model.ids import NodeId
from corral.model.job import Cause, Gang, TaskExit
from corral.model.state import LEFT


def restarted(node: NodeId) -> TaskExit:
    """Return the end of a task whose node was started anew."""
    return TaskExit(Cause.NODE_LOST, message=f"node {node} restarted", blameless=True)


def excused(exit_: TaskExit, book: Book, node: NodeId, gang: Gang) -> TaskExit:
    """Return an end as it is told by a node, or in place of a lost shim that the node restarted, left or was fenced."""
    if exit_.cause is not Cause.SHIM_LOST:
        return exit_
    known, contact = book.state.nodes.get(node), book.observed.contact(node)
    restarted_at = contact.restarted_at
    if restarted_at is not None and gang.placed_at is not None and gang.placed_at < restarted_at:
        end = restarted(node)
    elif known is not None and known.cordoned and known.cordon_reason == LEFT:
        end = TaskExit(Cause.NODE_LOST, message=f"node {node} {LEFT}", blameless=True)
    elif contact.fence_asked:
        end = TaskExit(Cause.NODE_LOST, message=f"node {node} did not answer and was fenced")
    else:
        return exit_
    return replace(end, started_at=exit_.started_at, ended_at=exit_.ended_at)
