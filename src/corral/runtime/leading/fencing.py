"""The administrator's fence command: it gets the name of a silent node, and its exit code 0 proves that it is off."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shlex
import signal
import tempfile
from collections.abc import AsyncIterator, Callable
from typing import IO

from corral.model.ids import NodeId, TaskKey
from corral.model.messages import ControllerSays
from corral.ports.engine import Engine, LogChunk, Sink
from corral.runtime.settings import Settings

log = logging.getLogger(__name__)

ENGINE_FENCES_S = 5.0
"""So long the engine may try to fence a node where there is another way."""

_WORDS_MAX = 300


class FenceCommand:
    """A command that cuts a machine off for good. It is not run in a shell."""

    def __init__(self, arguments: tuple[str, ...], timeout_s: float) -> None:
        self._arguments = arguments
        self._timeout_s = timeout_s

    async def fence(self, node: NodeId) -> bool:
        """Run the command with the node's name as its last argument; return whether it ended with exit code 0 in time.

        One that takes too long is killed with all that it started: whatever it did then proves nothing.
        """
        try:
            # No pipe: somebody whom the command left behind may hold its other end for ever.
            with tempfile.TemporaryFile() as said:
                code = await self._run(node, said)
                words = _last_words(said)
        except OSError as error:
            log.warning("the fence command cannot be run for node %s: %s", node, error.strerror or error)
            return False
        if code is None:
            log.warning("the fence command for node %s took longer than %g s: %s", node, self._timeout_s, words)
            return False
        if code != 0:
            log.warning("the fence command for node %s failed (exit code %s): %s", node, code, words)
            return False
        log.warning("node %s is fenced: %s", node, words or "the fence command says so")
        return True

    async def _run(self, node: NodeId, said: IO[bytes]) -> int | None:
        """Return the exit code, ``None`` of one that was killed because it took too long. Raises ``OSError``."""
        process = await asyncio.create_subprocess_exec(
            *self._arguments,
            node,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=said,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(self._timeout_s):
                return await process.wait()
        except TimeoutError:
            _kill(process)
            await process.wait()
            return None
        except asyncio.CancelledError:
            _kill(process)
            raise


def _last_words(said: IO[bytes]) -> str:
    size = said.seek(0, os.SEEK_END)
    said.seek(max(0, size - 4 * _WORDS_MAX))
    return said.read(4 * _WORDS_MAX).decode(errors="replace").strip()[-_WORDS_MAX:]


def _kill(process: asyncio.subprocess.Process) -> None:
    """Kill a command with all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


class PowerFencedEngine:
    """Implements ``ports.engine.Engine`` as another one does; what that one cannot fence the command does.

    ``valid`` says whether this controller still leads: the machine of a node that refused it may be well.
    """

    def __init__(self, engine: Engine, command: FenceCommand, valid: Callable[[], bool]) -> None:
        self._engine = engine
        self._command = command
        self._valid = valid

    async def start(self, sink: Sink) -> None:
        """Start the engine."""
        await self._engine.start(sink)

    async def stop(self) -> None:
        """Stop the engine."""
        await self._engine.stop()

    def send(self, command: ControllerSays) -> bool:
        """Send by the engine."""
        return self._engine.send(command)

    def connected(self) -> frozenset[NodeId]:
        """Return what the engine says."""
        return self._engine.connected()

    async def read_log(self, node: NodeId, task: TaskKey, incarnation: int, offset: int, limit: int) -> LogChunk:
        """Read by the engine."""
        return await self._engine.read_log(node, task, incarnation, offset, limit)

    def follow_log(self, node: NodeId, task: TaskKey, incarnation: int, offset: int) -> AsyncIterator[LogChunk]:
        """Follow by the engine."""
        return self._engine.follow_log(node, task, incarnation, offset)

    async def fence(self, node: NodeId, machine: str = "") -> bool | None:
        """Have a node proven dead: by the engine if it reaches the machine, else by the command.

        A machine whose agent the engine found to live is not switched off.
        """
        try:
            async with asyncio.timeout(ENGINE_FENCES_S):
                proven = await self._engine.fence(node, machine)
            if proven is not False:
                return proven
        except Exception:
            # Whatever the engine met: there is another way.
            log.exception("node %s could not be fenced by the engine", node)
        if not self._valid():
            log.warning("node %s is not fenced by the command: this controller leads no more", node)
            return False
        return await self._command.fence(node)


def with_power_fence(engine: Engine, settings: Settings, valid: Callable[[], bool]) -> Engine:
    """Return the engine, with the fence command that the settings name; ``valid`` while this controller leads."""
    arguments = tuple(shlex.split(settings.fence_command))
    return PowerFencedEngine(engine, FenceCommand(arguments, settings.fence_timeout_s), valid) if arguments else engine
