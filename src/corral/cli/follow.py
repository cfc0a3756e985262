"""Staying with a job until it ends, as `run` does; Ctrl-C asks what to do with it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING

from corral.cli.failures import SIGNAL_BASE, ExitCode
from corral.cli.session import confirmed_by_tty, note
from corral.cli.targets import TaskRef
from corral.cli.watch import Interrupts, JobWatch
from corral.model.errors import Conflict
from corral.model.job import NOT_STARTED_CODE, Cause, JobState

if TYPE_CHECKING:
    from corral.client import Client
    from corral.model.report import JobSummary


class Choice(Enum):
    """What to do with the job after Ctrl-C."""

    CANCEL = "c"
    DETACH = "d"
    GO_ON = "g"


def follow_job(client: Client, job: str) -> int:
    """Follow a job to its end and return its exit code.

    Ctrl-C asks on a terminal and cancels elsewhere, SIGTERM cancels: then it is 128 + the signal. 0 after detaching.
    """
    try:
        cancelled_by = _follow(client, job)
    except BrokenPipeError:
        note(f"nobody reads the log any more; job {job} goes on")
        raise
    except _Left as left:
        return left.exit_code
    return _end(client, job, cancelled_by)


class _Left(Exception):
    """The person left before the job ended."""

    def __init__(self, exit_code: int) -> None:
        self.exit_code = exit_code
        super().__init__()


def _follow(client: Client, job: str) -> int | None:
    """Follow a job to its end and return the signal by which it was cancelled, if any. Raises ``_Left``."""
    interrupts = Interrupts()
    with interrupts.caught():
        watch = JobWatch(client, client.summary(job), TaskRef(job))
        cancelled_by: int | None = None
        while (came := watch.run(interrupts)) is not None:
            if cancelled_by is not None:
                note(f"job {job} is being cancelled; corral logs -f {job} follows it")
                raise _Left(SIGNAL_BASE + came)
            choice = Choice.CANCEL if came == signal.SIGTERM else _ask(job, interrupts)
            if choice is Choice.DETACH:
                note(f"job {job} goes on; corral logs -f {job} follows it")
                raise _Left(ExitCode.OK)
            if choice is Choice.CANCEL:
                cancelled_by = came
                _cancel(client, job)
    return cancelled_by


def _ask(job: str, interrupts: Interrupts) -> Choice:
    if not confirmed_by_tty():
        return Choice.CANCEL
    question = f"\njob {job}: [c]ancel it, [d]etach and let it go on, or [g]o on following? (Ctrl-C cancels) "
    with _ctrl_c_raises():
        try:
            sys.stderr.write(question)
            sys.stderr.flush()
            answer = sys.stdin.readline()
        except KeyboardInterrupt:
            interrupts.take()
            sys.stderr.write("\n")
            return Choice.CANCEL
    if not answer:  # the terminal is gone: nobody wants the job to end
        return Choice.DETACH
    first = answer.strip().lower()[:1]
    return Choice(first) if first in {choice.value for choice in Choice} else Choice.GO_ON


@contextmanager
def _ctrl_c_raises() -> Iterator[None]:
    """Let Ctrl-C interrupt what is being read, for the time of a question."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _cancel(client: Client, job: str) -> None:
    try:
        client.cancel(job)
        note(f"job {job} is being cancelled; Ctrl-C again leaves at once")
    except Conflict:
        note(f"job {job} has ended meanwhile")


def _end(client: Client, job: str, cancelled_by: int | None) -> int:
    """Print how the job ended and return the exit code."""
    from corral.cli.render.receipt import receipt_line

    found, receipt = client.wait(job), client.receipt(job)
    told = f": {found.message}" if found.message and found.state is not JobState.SUCCEEDED else ""
    note(f"job {found.id} ({found.name}) {found.state.value}{told}; {receipt_line(receipt)}")
    if cancelled_by is not None and found.state is JobState.CANCELLED:
        return SIGNAL_BASE + cancelled_by
    return job_exit_code(found)


def job_exit_code(job: JobSummary) -> int:
    """Return the exit code of an ended job: its own; 0 only when it succeeded, 127 when it could not be started."""
    if job.state is JobState.SUCCEEDED:
        return job.exit_code or ExitCode.OK
    if job.exit_code:
        return job.exit_code
    return NOT_STARTED_CODE if job.exit_cause == Cause.EXEC_FAILED.value else ExitCode.FAILED
