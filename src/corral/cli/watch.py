"""Watching a job: its facts, why it waits, and the logs of its tasks, from several threads into one place."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, Queue
from types import FrameType
from typing import TYPE_CHECKING

from corral.cli.failures import error_line
from corral.cli.logfeed import LogFeed, LogPiece
from corral.cli.logwriter import log_writer
from corral.cli.render.units import duration
from corral.cli.session import note
from corral.cli.statusline import StatusLine, bar
from corral.cli.waiting import Progress, waiting_line
from corral.model import events
from corral.model.errors import CorralError, Unavailable
from corral.model.ids import TaskKey
from corral.model.job import JobState
from corral.model.report import WhyReport
from corral.ports.store import JournalEntry

if TYPE_CHECKING:
    from corral.cli.targets import TaskRef
    from corral.client import Client
    from corral.model.report import JobSummary

QUEUED_MAX = 256
TICK_S = 0.1
FIRST_WHY_S = 0.4
WHY_S = 2.0


class _Over:
    """The stream of facts has ended: nothing more will happen."""


class Interrupts:
    """SIGINT and SIGTERM as something to look at: ``signal`` is the one that came and was not yet answered.

    A second one that comes before the first was answered ends the process as usual: whatever it waits for may hang.
    """

    def __init__(self) -> None:
        self.signal: int | None = None

    def take(self) -> int | None:
        """Return the signal that came, and forget it."""
        came, self.signal = self.signal, None
        return came

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Catch the signals while something is watched."""
        before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class JobWatch:
    """Watches one job, or the part of it that ``ref`` names, and prints its logs. ``tail`` as in :class:`LogFeed`."""

    def __init__(self, client: Client, job: JobSummary, ref: TaskRef, tail: int | None = None) -> None:
        self._client = client
        self._job = job
        self._ref = ref
        self._queue: Queue[object] = Queue(QUEUED_MAX)
        self._feed = LogFeed(client, self._queue, tail)
        self._line = StatusLine()
        self._since = time.monotonic()
        self._progress = Progress()
        self._waits = ""
        self._over = False
        self._several = several_tasks(job, ref)
        self._writer = log_writer(several=self._several)
        self._started = threading.Event()
        for work in (self._listen, self._ask_why):
            threading.Thread(target=work, name=f"{work.__name__} of job {job.id}", daemon=True).start()

    def run(self, interrupts: Interrupts) -> int | None:
        """Print what comes until the job has ended and all its logs are read: return ``None``.

        Return the number of a signal that came before; a further call goes on where this one ended.
        """
        try:
            while not (self._over and self._feed.idle):
                if (came := interrupts.take()) is not None:
                    return came
                try:
                    item = self._queue.get(timeout=TICK_S)
                except Empty:
                    self._tick()
                else:
                    self._take(item)
        finally:
            self._line.clear()
        return None

    def _take(self, item: object) -> None:
        match item:
            case LogPiece():
                self._piece(item)
            case JournalEntry():
                self._fact(item.fact)
            case WhyReport():
                self._waits = waiting_line(item, time.time()) if item.state is JobState.PENDING else ""
            case _Over():
                self._over = True
            case CorralError():
                raise item
            case _:
                raise TypeError(f"nobody puts this into the queue: {item!r}")

    def _fact(self, fact: events.Event) -> None:
        self._progress.apply(fact)
        if isinstance(fact, events.TaskStarted):
            self._started.set()
            if self._ref.gang in {None, fact.gang} and self._ref.rank in {None, fact.rank}:
                self._feed.follow(TaskKey(fact.job, fact.gang, fact.rank))
        if isinstance(fact, events.JobEnded) or (isinstance(fact, events.GangEnded) and fact.gang == self._ref.gang):
            self._over = True

    def _piece(self, piece: LogPiece) -> None:
        name = str(piece.task)
        self._line.clear()
        if isinstance(piece.error, Unavailable):
            raise piece.error
        if piece.error is not None:
            note(f"the log of task {name} cannot be read: {error_line(piece.error.refusal)}")
        if piece.skipped:
            note(f"{piece.skipped:,} bytes of the log of task {name} were rotated away")
        if piece.data is None:
            self._writer.end(name)
            self._feed.ended(piece.task)
        else:
            self._writer.write(name, piece.data)

    def _tick(self) -> None:
        """Say what is being waited for: nothing starts yet, or an array is on its way."""
        if not self._started.is_set():
            waited_s = time.monotonic() - self._since
            if self._line.live and waited_s >= FIRST_WHY_S:
                reason = f": {self._waits}" if self._waits else ""
                self._line.show(f"job {self._job.id} waits {duration(waited_s)}{reason}")
            elif self._waits:
                self._line.show(f"job {self._job.id} waits: {self._waits}")
        elif self._job.elements > 1 and self._line.live:
            total = self._job.elements
            self._line.show(f"{bar(self._progress.finished, total)} {self._progress.counts(total)}")

    def _listen(self) -> None:
        """Put the job's facts into the queue, from its first; end with the job."""
        try:
            for entry in self._facts():
                self._queue.put(entry)
                if isinstance(entry.fact, events.JobEnded):
                    break
        except CorralError as error:
            self._queue.put(error)
        finally:
            self._started.set()
            self._queue.put(_Over())

    def _facts(self) -> Iterator[JournalEntry]:
        """Yield the job's facts from its first on: the history is quickly found, however long the journal is."""
        seq = 0
        for entry in self._client.history(self._job.id):
            seq = entry.seq
            yield entry
        yield from self._client.events(self._job.id, after_seq=seq)

    def _ask_why(self) -> None:
        """Put the reason for waiting into the queue, again and again until the first task starts."""
        pause_s = FIRST_WHY_S
        while not self._started.wait(pause_s):
            pause_s = WHY_S
            try:
                self._queue.put(self._client.why(self._job.id))
            except CorralError as error:
                if not error.retryable:
                    return


def several_tasks(job: JobSummary, ref: TaskRef) -> bool:
    """Return whether a reference stands for more than one task of a job."""
    ranks = 1 if ref.rank is not None else job.num_nodes
    return ranks * (1 if ref.gang is not None else job.elements) > 1
