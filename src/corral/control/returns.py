"""What nodes give back, checked against the state: an old start's outputs, checkpoints and logs are refused."""

from __future__ import annotations

from corral.control.book import Book
from corral.model.errors import Refusal, Stale
from corral.model.events import FilesReturned
from corral.model.files import ReturnKind
from corral.model.ids import NodeId, TaskKey
from corral.model.job import Gang, Job, Task
from corral.ports.files import Return


def task_of(job: Job | None, key: TaskKey) -> tuple[Gang, Task] | None:
    """Return a task with its gang, ``None`` when there is no such task (any more)."""
    gang = job.gangs.get(key.gang) if job is not None else None
    if gang is None or key.rank not in range(len(gang.tasks)):
        return None
    return gang, gang.tasks[key.rank]


def belongs(job: Job | None, key: TaskKey, incarnation: int, node: NodeId) -> bool:
    """Return whether an incarnation of a task is its newest and was placed on this node."""
    found = task_of(job, key)
    if found is None:
        return False
    gang, task = found
    return gang.incarnation == incarnation and task.placement is not None and task.placement.node == node


def take_back(book: Book, now: float, given: Return) -> Refusal | None:
    """Record what a node gave back, or refuse it. The same again changes nothing."""
    key = given.task
    job = book.state.jobs.get(key.job)
    found = task_of(job, key)
    if job is None or found is None or not belongs(job, key, given.incarnation, given.node):
        return _stale(given, "it was started again, or elsewhere")
    gang, task = found
    if not task.state.holds:
        return _stale(given, f"it is {task.state}")
    known = gang.saved if given.what is ReturnKind.CHECKPOINT else gang.outputs
    same = (key.rank, given.incarnation, given.tree)
    if any((one.rank, one.incarnation, one.tree) == same for one in known):
        return None
    book.record(
        FilesReturned(
            at=now,
            job=job.id,
            gang=gang.index,
            incarnation=given.incarnation,
            rank=key.rank,
            what=given.what,
            tree=given.tree,
            size_bytes=given.size_bytes,
        )
    )
    return None


def _stale(given: Return, why: str) -> Refusal:
    message = f"the {given.what} of start {given.incarnation} of task {given.task} is not taken back: {why}"
    return Refusal(Stale.code, message)
