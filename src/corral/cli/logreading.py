"""Reading the logs of a job, or of a part of it, as they are now or on and on."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from corral.cli.failures import SIGNAL_BASE
from corral.cli.logfeed import tail_of
from corral.cli.logwriter import log_writer
from corral.cli.session import note, print_json
from corral.cli.targets import TaskRef, service_named
from corral.cli.watch import Interrupts, JobWatch, several_tasks
from corral.model.errors import NotFound
from corral.model.ids import JobId, TaskKey

if TYPE_CHECKING:
    from corral.client import Client
    from corral.model.job import Gang
    from corral.model.report import JobSummary

GANGS_PAGE = 1_000
PREVIOUS = -1
"""Stands for the attempt before the newest, whichever that is."""


def follow_logs(client: Client, ref: TaskRef, tail: int | None) -> int | None:
    """Print logs until the job has ended; return 128 + the signal that ended this before. The job goes on."""
    job = _summary(client, ref.job)
    if job.state.ended:
        show_logs(client, ref, tail, as_json=False)
        return None
    interrupts = Interrupts()
    with interrupts.caught():
        came = JobWatch(client, job, ref, tail).run(interrupts)
    return None if came is None else SIGNAL_BASE + came


def show_logs(client: Client, ref: TaskRef, tail: int | None, *, as_json: bool, attempt: int | None = None) -> None:
    """Print the logs that a reference stands for as they are now: of every task that was ever started.

    ``attempt`` is the incarnation that is asked for, ``PREVIOUS`` or ``None`` for the newest. Raises ``NotFound`` when
    no task had such an attempt.
    """
    job = _summary(client, ref.job)
    tasks = _of_attempt(job, list(_tasks(client, job, ref)), attempt)
    if as_json:
        print_json({"job": job.id, "tasks": [_document(client, *task, tail) for task in tasks]})
        return
    if not tasks:
        note(f"job {job.id} ({job.name}) is {job.state.value}: no task was started yet")
    writer = log_writer(several=several_tasks(job, ref))
    for task, incarnation in tasks:
        offset = 0
        for data, at in _pieces(client, task, incarnation, tail):
            if at > offset and tail is None:
                note(f"{at - offset:,} bytes of the log of task {task} were rotated away")
            writer.write(str(task), data)
            offset = at + len(data)
        writer.end(str(task))


def _summary(client: Client, ref: str) -> JobSummary:
    """Return a job. Raises ``NotFound``, with the way to the logs of a service where the name is one."""
    try:
        return client.summary(ref)
    except NotFound:
        named = service_named(client, ref)
        if named is None:
            raise
        first = min((one.ordinal for one in named.replicas), default=1)
        hint = f"corral logs {ref} --replica {first} shows what one of its replicas wrote"
        raise NotFound(f"{ref} is a service, not a job", hint=hint) from None


def replica_job(client: Client, service: str, ordinal: int) -> str:
    """Return the job of a replica of a service, also of one that has ended. Raises ``NotFound``."""
    known = client.service(service)
    for one in known.replicas:
        if one.ordinal == ordinal:
            return one.job
    name = f"{service}-{ordinal}"
    ended = client.jobs(live=False, finished=True, name=name, tenant=known.tenant, limit=1).jobs
    if not ended:
        living = ", ".join(str(one.ordinal) for one in known.replicas)
        raise NotFound(f"service {service} has no replica {ordinal}", hint=f"it has {living}" if living else None)
    return ended[0].id


def _of_attempt(
    job: JobSummary, tasks: list[tuple[TaskKey, int]], attempt: int | None
) -> list[tuple[TaskKey, int | None]]:
    """Return the tasks that had an attempt, each with its incarnation (``None``: the newest)."""
    if attempt is None:
        return [(task, None) for task, _ in tasks]
    newest = max((incarnation for _, incarnation in tasks), default=0)
    if attempt == PREVIOUS:
        found = [(task, incarnation - 1) for task, incarnation in tasks if incarnation > 1]
        missing = f"job {job.id} has no attempt before its newest"
    else:
        found = [(task, attempt) for task, incarnation in tasks if incarnation >= attempt]
        missing = f"job {job.id} has no attempt {attempt}"
    if not found:
        raise NotFound(missing, hint=f"its newest is {newest}" if newest else "it was not started yet")
    return list(found)


def _tasks(client: Client, job: JobSummary, ref: TaskRef) -> Iterator[tuple[TaskKey, int]]:
    """Yield the tasks of a reference that were ever started, with their newest incarnation.

    Raises ``NotFound`` for an element or rank too many.
    """
    if ref.gang is not None and ref.gang >= job.elements:
        raise NotFound(f"job {job.id} has no element {ref.gang}", hint=f"its elements are 0 to {job.elements - 1}")
    if ref.rank is not None and ref.rank >= job.num_nodes:
        raise NotFound(f"job {job.id} has no rank {ref.rank}", hint=f"its ranks are 0 to {job.num_nodes - 1}")
    first = ref.gang or 0
    last = job.elements if ref.gang is None else first + 1
    for begin in range(first, last, GANGS_PAGE):
        found = client.job(job.id, gangs_from=begin, gangs_max=min(GANGS_PAGE, last - begin))
        for index in sorted(found.gangs):
            yield from _started(job.id, found.gangs[index], ref)


def _started(job: JobId, gang: Gang, ref: TaskRef) -> Iterator[tuple[TaskKey, int]]:
    if gang.incarnation == 0 or ref.gang not in {None, gang.index}:
        return
    for task in gang.tasks:
        if ref.rank in {None, task.rank}:
            yield TaskKey(job, gang.index, task.rank), gang.incarnation


def _pieces(client: Client, task: TaskKey, incarnation: int | None, tail: int | None) -> Iterator[tuple[bytes, int]]:
    """Yield (bytes, their offset) of a log; nothing when there is none."""
    try:
        chunks = client.logs(str(task.gang_key), rank=task.rank, incarnation=incarnation)
        if tail is None:
            yield from ((chunk.data, chunk.offset) for chunk in chunks)
        else:
            data, place = tail_of(chunks, tail)
            yield data, place.offset - len(data)
    except NotFound:
        return


def _document(client: Client, task: TaskKey, incarnation: int | None, tail: int | None) -> dict[str, Any]:
    """Return a log as an object: ``text`` when it is UTF-8, else ``base64``; ``offset`` is that of its first byte."""
    pieces = list(_pieces(client, task, incarnation, tail))
    data = b"".join(piece for piece, _ in pieces)
    about: dict[str, Any] = {"task": str(task), "offset": pieces[0][1] if pieces else 0, "text": None, "base64": None}
    try:
        about["text"] = data.decode()
    except UnicodeDecodeError:
        about["base64"] = b64encode(data).decode()
    return about
