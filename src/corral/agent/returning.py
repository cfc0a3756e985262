"""Everything that comes back from a node: logs as they grow, checkpoints when they are complete, outputs at the end.

The end of a task is told once its files are back, so that a job that succeeded has its outputs, and one that goes on
elsewhere has the last checkpoint. However long that takes: it is given up when no head has answered for five minutes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import msgspec

from corral.agent.courier import BINARY, Courier
from corral.agent.giving import Giver, Signature
from corral.agent.running import Running
from corral.agent.shim.log_reader import read_log
from corral.agent.threads import in_thread
from corral.agent.travelling import Luggage, Travelling, read_luggage
from corral.model.errors import CorralError, FilesDamaged, NoHead, Stale
from corral.model.files import LogPiece
from corral.model.ids import NodeId, TaskKey
from corral.wire.logpack import pack_of_logs
from corral.wire.trees import CHUNK_BYTES

_log = logging.getLogger(__name__)

LOG_EVERY_S = 3.0
LOG_LAST_S = 5.0
"""So long the end of a task waits for the last of its log."""

LOG_PACK_BYTES = 4 << 20
LOG_PIECE_BYTES = 256 << 10
LOG_TAIL_BYTES = 16 << 20
"""Of a log that grew faster than it came back only the last is still sent."""

CHECKPOINT_EVERY_S = 2.0
CHECKPOINT_AGAIN_S = 10.0
"""So long after one that did not come back the next one is tried."""

AGAIN_S = 0.5
FILES_LAST_S = 300.0


class _Ends(msgspec.Struct, frozen=True):
    ends: tuple[int, ...]


class _Watched(msgspec.Struct):
    """A task whose log comes back. ``sent`` is how far it is back, ``None`` while nobody has said."""

    task: TaskKey
    incarnation: int
    directory: str
    luggage: Luggage | None
    sent: int | None = 0
    ended: bool = False
    over: bool = False
    last: list[asyncio.Future[None]] = []


class _Saving(msgspec.Struct):
    """A checkpoint directory: how it looked last, whether somebody is at it, what was wrong last, what it waits for.

    ``over``: somebody else does this work by now.
    """

    seen: Signature | None = None
    given: Signature | None = None
    busy: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)
    problem: str = ""
    again_at: float = 0.0
    over: bool = False


class Returner:
    """Brings back what the tasks of a node write. All methods belong to one event loop."""

    def __init__(self, node: NodeId, courier: Courier, travelling: Travelling, giver: Giver) -> None:
        self._node = node
        self._courier = courier
        self._travelling = travelling
        self._giver = giver
        self._watched: dict[str, _Watched] = {}
        self._saving: dict[str, _Saving] = {}
        self._bell = asyncio.Event()
        self._chores: set[asyncio.Task[Any]] = set()

    def start(self) -> None:
        """Begin to bring things back."""
        self._chore(self._bring_logs())
        self._chore(self._bring_checkpoints())

    async def stop(self) -> None:
        """Stop at once; what did not come back does so after the next start."""
        self._courier.close()
        for chore in self._chores:
            chore.cancel()
        await asyncio.gather(*self._chores, return_exceptions=True)

    def watch(self, running: Running, *, adopted: bool = False) -> None:
        """Bring back what a task writes from now on; of one that is ``adopted`` some may be back already."""
        self._watched[running.marker] = _Watched(
            running.task,
            running.incarnation,
            running.directory,
            read_luggage(running.directory),
            sent=None if adopted else 0,
        )
        if adopted:
            self._travelling.adopt(running.directory)

    def forget(self, running: Running) -> None:
        """Let go of a task that was never started."""
        if self._watched.pop(running.marker, None) is not None:
            self._travelling.leave(running.directory)

    async def finish(self, running: Running) -> str | None:
        """Bring back the rest of a task that has ended; return what did not come back and why, if anything."""
        watched = self._watched.get(running.marker)
        if watched is None:
            return None
        problem = await self._last_files(watched)
        watched.ended = True
        last: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        watched.last.append(last)
        self._bell.set()
        await asyncio.wait([last], timeout=LOG_LAST_S)
        await in_thread(lambda: self._let_go(running.directory, whole=problem is None))
        return problem

    def _let_go(self, directory: str, *, whole: bool) -> None:
        self._travelling.leave(directory)
        if whole:
            self._travelling.clear(directory)

    # ---- files -----------------------------------------------------------------------------------------------------

    async def _last_files(self, watched: _Watched) -> str | None:
        """Give back the checkpoint and the outputs of a task that has ended; return what stays here and why."""
        luggage = watched.luggage
        if luggage is None:
            return None
        path = luggage.checkpoint
        lost = [] if path is None else [await self._until_heard(lambda: self._save_last(watched, path))]
        lost.append(
            await self._until_heard(
                lambda: in_thread(lambda: self._giver.outputs(watched.task, watched.incarnation, luggage))
            )
        )
        return "; ".join(dict.fromkeys(problem for problem in lost if problem)) or None

    async def _until_heard(self, give: Callable[[], Awaitable[None]]) -> str | None:
        """Give something back, as long as heads answer at all; return why it does not come back."""
        began = time.monotonic()
        while True:
            try:
                await give()
            except NoHead:
                if time.monotonic() - max(began, self._courier.answered_at) > FILES_LAST_S:
                    return "its files did not come back: no head of the pool answered"
                await asyncio.sleep(AGAIN_S)
                continue
            except Stale:
                # Somebody else does this work by now: what this start made counts no more.
                return None
            except (CorralError, OSError) as error:
                return f"its files did not come back: {error}"
            return None

    async def _bring_checkpoints(self) -> None:
        while True:
            await asyncio.sleep(CHECKPOINT_EVERY_S)
            now = time.monotonic()
            for path, watched in self._savers().items():
                saving = self._saving.setdefault(path, _Saving())
                if not saving.busy.locked() and not saving.over and now >= saving.again_at:
                    self._chore(self._look_after(path, saving, watched))
            for path in self._saving.keys() - self._savers().keys():
                del self._saving[path]

    def _savers(self) -> dict[str, _Watched]:
        """Return the checkpoint directories in use, each with the lowest rank here: it gives back for all."""
        found: dict[str, _Watched] = {}
        for watched in sorted(self._watched.values(), key=lambda one: one.task.rank):
            if watched.luggage is not None and watched.luggage.checkpoint is not None and not watched.ended:
                found.setdefault(watched.luggage.checkpoint, watched)
        return found

    async def _look_after(self, path: str, saving: _Saving, watched: _Watched) -> None:
        """Give a checkpoint back that looks as it did the last time, and was not given back as it looks."""
        try:
            seen = await in_thread(lambda: self._giver.look(path))
            stable, saving.seen = seen == saving.seen, seen
            if stable and seen and seen != saving.given and await self._save(watched, path):
                saving.given, saving.problem = seen, ""
        except NoHead:
            return
        except Stale as error:
            _log.warning("%s", error)
            saving.over = True
        except (CorralError, OSError) as error:
            # The next one may well come back: a file went that was just looked at, two were too large together.
            saving.again_at = time.monotonic() + CHECKPOINT_AGAIN_S
            if str(error) != saving.problem:
                saving.problem = str(error)
                _log.error("the checkpoint of task %s does not come back: %s", watched.task, error)

    async def _save(self, watched: _Watched, path: str) -> bool:
        """Give a checkpoint back as it is now; return whether it was whole."""
        saving = self._saving.setdefault(path, _Saving())
        async with saving.busy:
            return await in_thread(lambda: self._giver.checkpoint(watched.task, watched.incarnation, path))

    async def _save_last(self, watched: _Watched, path: str) -> None:
        # What a task has left behind may still write, but is not waited for as long as it likes.
        until = time.monotonic() + FILES_LAST_S
        while not await self._save(watched, path):
            if time.monotonic() > until:
                raise FilesDamaged("the checkpoint is written all the time, though its task has ended")
            await asyncio.sleep(CHECKPOINT_EVERY_S)

    # ---- logs ------------------------------------------------------------------------------------------------------

    async def _bring_logs(self) -> None:
        while True:
            try:
                async with asyncio.timeout(LOG_EVERY_S):
                    await self._bell.wait()
            except TimeoutError:
                wanted = list(self._watched.values())
            else:
                self._bell.clear()
                wanted = [watched for watched in self._watched.values() if watched.last]
            try:
                await self._bring(wanted)
            except (CorralError, OSError) as error:
                # They stay where they are; those who wait for the last of theirs wait no longer than they have to.
                _log.warning("logs do not come back now: %s", error)
            for marker in [marker for marker, watched in self._watched.items() if watched.over]:
                del self._watched[marker]

    async def _bring(self, wanted: Sequence[_Watched]) -> None:
        """Bring back what the logs of tasks have more than before."""
        rest = list(wanted)
        while rest:
            rest = await in_thread(lambda rest=rest: self._bring_some(rest))  # type: ignore[misc]
            for watched in wanted:
                if watched.over:
                    for waiter in watched.last:
                        if not waiter.done():
                            waiter.set_result(None)

    def _bring_some(self, wanted: Sequence[_Watched]) -> list[_Watched]:
        """Send one pack; return whose logs have more."""
        pieces: list[tuple[_Watched, LogPiece]] = []
        later: list[_Watched] = []
        room = LOG_PACK_BYTES
        for watched in wanted:
            if watched.over:
                continue
            if room <= 0:
                later.append(watched)
                continue
            piece, more = _next_piece(watched)
            if piece is None:
                watched.over = watched.ended
                continue
            room -= len(piece.data) + 1
            pieces.append((watched, piece))
            if more:
                later.append(watched)
        if pieces:
            body = pack_of_logs(self._node, [piece for _, piece in pieces])
            answer = self._courier.call("/files/logs", body, BINARY, patience_s=LOG_LAST_S)
            ends = msgspec.json.decode(answer, type=_Ends).ends
            for (watched, piece), end in zip(pieces, ends, strict=False):
                if end < 0 or piece.complete:
                    watched.over = True
                watched.sent = max(end, 0)
        return [watched for watched in later if not watched.over]

    def _chore(self, work: Coroutine[Any, Any, None]) -> None:
        chore = asyncio.get_running_loop().create_task(work)
        self._chores.add(chore)
        chore.add_done_callback(self._chores.discard)


def _next_piece(watched: _Watched) -> tuple[LogPiece | None, bool]:
    """Return what is to be sent next of a log, and whether there is more; nothing when nothing is new."""
    path = Path(watched.directory)
    if watched.sent is None:
        return LogPiece(watched.task, watched.incarnation, 0, b""), True
    try:
        read = read_log(path, watched.sent, min(LOG_PIECE_BYTES, CHUNK_BYTES))
        if read.end - read.offset > LOG_TAIL_BYTES:
            read = read_log(path, read.end - LOG_TAIL_BYTES, LOG_PIECE_BYTES)
    except OSError:
        return None, False
    more = read.offset + len(read.data) < read.end
    complete = watched.ended and not more
    if not read.data and not complete:
        return None, False
    return LogPiece(watched.task, watched.incarnation, read.offset, read.data, complete), more
