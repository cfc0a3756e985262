"""What is wrong with nodes and running gangs, in words for `nodes` and `why`."""

from __future__ import annotations

import math
from collections.abc import Iterator

from corral.control.core import ControlCore
from corral.control.holdings import tasks_on
from corral.control.observed import clock_words
from corral.model.ids import NodeId
from corral.model.job import Fencing, Gang, Job


def node_notes(core: ControlCore, name: NodeId, now: float) -> tuple[str, ...]:
    """Return everything that an administrator should know of a node beyond its state."""
    return tuple(_node_notes(core, name, now))


def _node_notes(core: ControlCore, name: NodeId, now: float) -> Iterator[str]:
    contact = core.book.observed.contact(name)
    if contact.other_machine:
        yield f"machine {contact.other_machine} says that it is this node, too"
    if contact.answering:
        if contact.clock_wrong:
            yield f"{clock_words(contact)}: no new tasks"
        if contact.unfit:
            yield f"{contact.unfit}: no new tasks"
        return
    held = tasks_on(core.book.state, name)
    if not held or not core.book.config.leases:
        return
    over_at = max(core.leases.safe_at(contact, job.spec) for job, _, _ in held)
    if over_at > now:
        count = sum(job.spec.fencing is Fencing.EXCLUSIVE for job, _, _ in held)
        yield f"{count} exclusive task{'s' if count > 1 else ''} there: moved {_in(over_at - now)}, or on proof"


def _in(seconds: float) -> str:
    """Return when something will be. A controller that took over counts leases from its first tick on."""
    return f"in {max(0.0, seconds):.0f} s" if math.isfinite(seconds) else "one lease from now"


def gang_notes(core: ControlCore, job: Job, gang: Gang, now: float) -> Iterator[str]:
    """Yield what is wrong with a running gang: nodes that are not heard, processes that do not run."""
    observed = core.book.observed
    for node in dict.fromkeys(placement.node for placement in gang.placements):
        contact = observed.contact(node)
        if contact.answering:
            continue
        heard = contact.heard_at if contact.heard_at is not None else observed.hearing.since
        silent = f"{node} does not answer" + (f", silent for {now - heard:.0f} s" if heard is not None else "")
        if not core.book.config.leases:
            yield silent
        elif job.spec.fencing is Fencing.NONE:
            yield f"{silent}: moved when it is given up"
        else:
            left_s = core.leases.safe_at(contact, job.spec) - now
            yield f"{silent}: moved when its lease is surely over, {_in(left_s)}, or on proof"
    for task in gang.tasks:
        why = observed.halted.get(job.task_key(gang.index, task.rank)) if task.state.holds else None
        if why is not None:
            yield f"rank {task.rank}: {why}" if len(gang.tasks) > 1 else why
