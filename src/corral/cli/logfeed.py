"""Logs of many tasks at once: a bounded number of streams, each read by a thread, all into one queue."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from queue import Queue
from typing import TYPE_CHECKING, NamedTuple

from corral.model.errors import CorralError, NotFound

if TYPE_CHECKING:
    from corral.client import Client
    from corral.model.ids import TaskKey
    from corral.ports.engine import LogChunk

STREAMS_MAX = 32
TAIL_TRIM_BYTES = 1 << 20


class LogPiece(NamedTuple):
    """A piece of a task's log; ``data`` is ``None`` at its end.

    ``skipped`` counts bytes before it that rotation removed; ``error`` says why a log could not be read.
    """

    task: TaskKey
    data: bytes | None
    skipped: int = 0
    error: CorralError | None = None


class LogFeed:
    """Follows the logs of tasks. At most 32 are followed at once: the others are read, complete, when one ends.

    ``tail`` leaves all but the last lines of what is written already.
    """

    def __init__(self, client: Client, queue: Queue[object], tail: int | None = None) -> None:
        self._client = client
        self._queue = queue
        self._tail = tail
        self._waiting: deque[TaskKey] = deque()
        self._known: set[TaskKey] = set()
        self._unread: set[TaskKey] = set()
        self._open = 0
        self._lock = threading.Lock()

    def follow(self, task: TaskKey) -> None:
        """Begin with a task's log, once; pieces of it come into the queue."""
        with self._lock:
            if task in self._known:
                return
            self._known.add(task)
            self._unread.add(task)
            self._waiting.append(task)
            if self._open >= STREAMS_MAX:
                return
            self._open += 1
        threading.Thread(target=self._work, name=f"log of task {task}", daemon=True).start()

    def ended(self, task: TaskKey) -> None:
        """Note that the end of a log has been taken from the queue."""
        with self._lock:
            self._unread.discard(task)

    @property
    def idle(self) -> bool:
        """Return whether every log that was begun has been read to its end."""
        with self._lock:
            return not self._unread

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._open -= 1
                    return
                task = self._waiting.popleft()
            self._read(task)

    def _read(self, task: TaskKey) -> None:
        """Put the log of one task into the queue, to its end."""
        ref, place = str(task.gang_key), Place()
        try:
            if self._tail is not None:
                data, place = tail_of(self._client.logs(ref, rank=task.rank), self._tail)
                self._queue.put(LogPiece(task, data))
            for chunk in self._client.logs(
                ref, rank=task.rank, incarnation=place.incarnation, offset=place.offset, follow=True
            ):
                skipped, place = place.moved(chunk)
                if chunk.data or skipped:
                    self._queue.put(LogPiece(task, chunk.data, skipped))
        except NotFound:
            pass  # it never wrote, or its directory is gone: there is nothing to show
        except CorralError as error:
            self._queue.put(LogPiece(task, b"", error=error))
        finally:
            self._queue.put(LogPiece(task, None))


class Place(NamedTuple):
    """How far the logs of a task are read: ``offset`` in that of ``incarnation`` (``None``: not told yet)."""

    incarnation: int | None = None
    offset: int = 0

    def moved(self, chunk: LogChunk) -> tuple[int, Place]:
        """Return (bytes that were rotated away before a piece, the place after it).

        A task that was started again begins a log of its own at 0.
        """
        same = self.incarnation in {None, chunk.incarnation}
        skipped = max(0, chunk.offset - (self.offset if same else 0))
        return skipped, Place(chunk.incarnation, chunk.offset + len(chunk.data))


def tail_of(chunks: Iterable[LogChunk], lines: int) -> tuple[bytes, Place]:
    """Return the last lines of a log and its end."""
    kept, trim_at, place = bytearray(), TAIL_TRIM_BYTES, Place()
    for chunk in chunks:
        kept += chunk.data
        _, place = place.moved(chunk)
        if len(kept) > trim_at:
            # Very many lines may be wanted: what is kept is looked through again only once it has doubled.
            kept = bytearray(last_lines(kept, lines))
            trim_at = max(TAIL_TRIM_BYTES, 2 * len(kept))
    return bytes(last_lines(kept, lines)), place


def last_lines(data: bytes | bytearray, lines: int) -> bytes | bytearray:
    """Return the last lines of some text; an unfinished last line counts as one."""
    if lines == 0:
        return b""
    position = len(data) - 1 if data.endswith(b"\n") else len(data)
    for _ in range(lines):
        position = data.rfind(b"\n", 0, position)
        if position < 0:
            return data
    return data[position + 1 :]
