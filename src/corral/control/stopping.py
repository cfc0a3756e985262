"""Gangs that give way: one that is told to stop, all of a node that is emptied, all of a pool that stops."""

from __future__ import annotations

from corral.control.book import Book
from corral.control.holdings import tasks_on
from corral.control.launching import serves
from corral.model.events import GangStopping, JobCancelRequested
from corral.model.ids import NodeId
from corral.model.job import Job, StopReason
from corral.model.market import Preemption


def stop_gang(
    book: Book,
    now: float,
    job: Job,
    index: int,
    reason: StopReason,
    *,
    preemption: Preemption | None = None,
    drained: NodeId | None = None,
) -> None:
    """Tell every rank of a gang to stop, once.

    ``preemption`` says for whom it gives way, ``drained`` which node is emptied.
    """
    gang = job.gangs[index]
    if gang.live and gang.stopping is None:
        fact = GangStopping(
            at=now,
            job=job.id,
            gang=gang.index,
            incarnation=gang.incarnation,
            reason=reason,
            preemption=preemption,
            drained=drained,
        )
        book.record(fact)
        book.tell(job.id, fact)


def cancel(book: Book, now: float, job: Job, by: str) -> None:
    """Record that the end of a job is wished for; its AppMaster decides what follows. A second wish changes nothing."""
    if job.cancelled_by is None:
        fact = JobCancelRequested(at=now, job=job.id, by=by)
        book.record(fact)
        book.tell(job.id, fact)


def drain(book: Book, now: float, node: NodeId) -> None:
    """Have every gang with a rank on a node save itself and give way. Its cordon keeps others from coming.

    A replica that serves stays until another one takes its place: its service sees to that.
    """
    for job, gang, _ in tasks_on(book.state, node):
        if serves(job, gang, book.state):
            continue
        stop_gang(book, now, job, gang.index, StopReason.PREEMPTED, drained=node)


def stop_all(book: Book, now: float) -> None:
    """Have every gang of the pool save itself and give way: the pool is about to stop."""
    for job in list(book.state.jobs.values()):
        for index in job.gangs:
            stop_gang(book, now, job, index, StopReason.PREEMPTED)
