"""The processes of jobs that bring their own proposer: started with the first offer, killed on silence, tried again.

One job, one process (:mod:`corral.runtime.solving.proposing`): it has the job's working directory on its path, little
of the environment, limits on memory and files, and a time for each answer. What goes wrong is a refusal, which the
pool writes to its log: the default bidder's bids stand meanwhile. A proposer that fails is left alone for a while,
twice as long after each failure in a row.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from corral.model.errors import CorralError, ProposerFault, Refusal
from corral.model.ids import JobId
from corral.model.job import Job, JobSpec
from corral.model.offer import Bid, Offer
from corral.policy.bidding import default_bids
from corral.policy.config import SchedulingConfig
from corral.runtime.solving.ending import gone
from corral.wire.bidding import bids_of, question_of
from corral.wire.document import printable

COMMAND = (sys.executable, "-P", "-u", "-m", "corral.runtime.solving.proposing")
INHERITED = ("PATH", "HOME", "USER", "LANG", "TZ")
START_S = 10.0
"""Until the first answer: user code may import a large library."""
ANSWER_S = 2.0
ANSWER_BYTES_MAX = 1 << 20
IDLE_S = 300.0
"""A proposer that is asked nothing for so long is ended, and started again when it is asked."""
PROCESSES_MAX = 64
BACK_OFF_S = 1.0
BACK_OFF_MAX_S = 300.0
LOG_NAME = "proposer.log"
FILES_NAME = "proposer-files"
LOG_TAIL_BYTES = 4096
REASON_LENGTH_MAX = 200


class _Answer(msgspec.Struct, frozen=True):
    bids: Any = None


class _Child(msgspec.Struct):
    """One job's process, how often it failed in a row, and how it did last. Times are monotonic."""

    process: Process | None = None
    answered: bool = False
    failures: int = 0
    failure: str = ""
    rests_until: float = 0.0
    idle: asyncio.TimerHandle | None = None
    busy: bool = False


class ProposerProcesses:
    """Implements ``ports.proposers.Proposers``."""

    def __init__(
        self,
        jobs_dir: Path,
        config: SchedulingConfig,
        *,
        environment: Mapping[str, str] | None = None,
        command: Sequence[str] = COMMAND,
        lay: Callable[[str, Path], None] | None = None,
        start_s: float = START_S,
        answer_s: float = ANSWER_S,
        back_off_s: float = BACK_OFF_S,
    ) -> None:
        """``jobs_dir`` holds a directory per job, in which its proposer's log is kept.

        ``lay`` writes a tree of files that a job brought along into a new directory; it blocks.
        """
        self._jobs_dir = jobs_dir
        self._config = config
        given = os.environ if environment is None else environment
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self._environment = {name: given[name] for name in INHERITED if name in given} | threads
        self._command = tuple(command)
        self._lay = lay
        self._start_s = start_s
        self._answer_s = answer_s
        self._back_off_s = back_off_s
        self._children: dict[JobId, _Child] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def pid(self, job: JobId) -> int | None:
        """Return the number of a job's process while it runs."""
        child = self._children.get(job)
        running = child is not None and child.process is not None and child.process.returncode is None
        return child.process.pid if running and child is not None and child.process is not None else None

    async def propose(self, job: Job, offer: Offer) -> tuple[Bid, ...] | Refusal:
        """Return the bids of a job's own proposer, or why there are none."""
        child = self._children.setdefault(job.id, _Child())
        wait_s = child.rests_until - time.monotonic()
        if wait_s > 0:
            again = f"after {child.failures} failures in a row it is left alone for {wait_s:.0f} s"
            return _refusal(f"{child.failure}; {again}")
        if child.busy:
            return _refusal("it is still at the last offer")
        # One that is being started counts: many first offers come at the same time.
        if (
            child.process is None
            and sum(1 for one in self._children.values() if one.process or one.busy) >= PROCESSES_MAX
        ):
            return _refusal(f"it has to wait: {PROCESSES_MAX} own proposers run already")
        child.busy = True
        try:
            found = await self._ask(child, job.id, job.spec, offer)
        finally:
            child.busy = False
        if isinstance(found, Refusal):
            child.failure = found.message
            await self._failed(job.id, child)
        else:
            child.failures = 0
        return found

    def forget(self, job: JobId) -> None:
        """Let go of an ended job's proposer."""
        child = self._children.pop(job, None)
        if child is not None:
            self._let_go(child)
            shutil.rmtree(self._jobs_dir / job / FILES_NAME, ignore_errors=True)

    async def close(self) -> None:
        """End all of them."""
        children, self._children = list(self._children.values()), {}
        for child in children:
            _kill(child)
        for child in children:
            if child.process is not None:
                await gone(child.process)
        await asyncio.gather(*self._ending)

    # ---- one of them -----------------------------------------------------------------------------------------------

    async def _ask(self, child: _Child, job: JobId, spec: JobSpec, offer: Offer) -> tuple[Bid, ...] | Refusal:
        if child.idle is not None:
            child.idle.cancel()
        bids = default_bids(spec, offer, config=self._config)
        question = msgspec.json.encode(question_of(job, spec, offer, bids)) + b"\n"
        patience_s = self._answer_s if child.answered else self._start_s
        try:
            async with asyncio.timeout(patience_s):
                line = await self._exchange(child, job, spec, question)
        except TimeoutError:
            return _refusal(f"it has not answered within {patience_s:g} s and was killed")
        except ValueError:
            return _refusal(f"it answered more than {ANSWER_BYTES_MAX} bytes")
        except (OSError, EOFError) as error:
            said = (error.strerror if isinstance(error, OSError) else None) or last_line(self._log_path(job))
            return _refusal(f"it ended without an answer{f' ({said})' if said else ''}; see {self._log_path(job)}")
        try:
            answer = msgspec.json.decode(line, type=_Answer)
        except msgspec.MsgspecError:
            return _refusal("it answered something that is not JSON")
        child.answered = True
        child.idle = asyncio.get_running_loop().call_later(IDLE_S, self._retire, child)
        return bids_of(answer.bids, spec, bids)

    async def _exchange(self, child: _Child, job: JobId, spec: JobSpec, question: bytes) -> bytes:
        process = child.process
        if process is None or process.returncode is not None:
            process = child.process = await self._start(job, spec)
            child.answered = False
            if self._children.get(job) is not child:
                raise EOFError("its job has ended")
        into, out = process.stdin, process.stdout
        if into is None or out is None:
            raise EOFError("it has no pipes")
        into.write(question)
        await into.drain()
        line = await out.readline()
        if not line.endswith(b"\n"):
            raise EOFError("it has ended")
        return line

    async def _start(self, job: JobId, spec: JobSpec) -> Process:
        directory = await self._directory(job, spec)
        path = self._log_path(job)
        path.parent.mkdir(parents=True, exist_ok=True)
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            return await asyncio.create_subprocess_exec(
                *self._command,
                spec.appmaster or "",
                *directory,
                stdin=PIPE,
                stdout=PIPE,
                stderr=log,
                env=self._environment,
                cwd="/",
                start_new_session=True,
                limit=ANSWER_BYTES_MAX,
            )
        finally:
            os.close(log)

    async def _directory(self, job: JobId, spec: JobSpec) -> list[str]:
        """Return the working directory of a job, if it has one: a copy here of what it brought along."""
        if self._lay is None or spec.files is None or not spec.files.workdir:
            return [spec.workdir] if spec.workdir is not None else []
        place = self._jobs_dir / job / FILES_NAME
        try:
            await asyncio.to_thread(self._lay, spec.files.tree, place)
        except CorralError as error:
            raise OSError(errno.ENOENT, str(error)) from None
        return [str(place)]

    async def _failed(self, job: JobId, child: _Child) -> None:
        _kill(child)
        if child.process is not None:
            await gone(child.process)
            child.process = None
        child.failures += 1
        rest_s = min(self._back_off_s * 2.0 ** (child.failures - 1), BACK_OFF_MAX_S)
        child.rests_until = time.monotonic() + rest_s

    def _retire(self, child: _Child) -> None:
        """Let a proposer end that was asked nothing for long."""
        if not child.busy:
            self._let_go(child)

    def _let_go(self, child: _Child) -> None:
        _kill(child)
        process, child.process = child.process, None
        if process is not None:
            ending = asyncio.get_running_loop().create_task(gone(process))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    def _log_path(self, job: JobId) -> Path:
        return self._jobs_dir / job / LOG_NAME


def _refusal(message: str) -> Refusal:
    return Refusal(ProposerFault.code, message, "appmaster")


def last_line(path: Path) -> str:
    """Return the last line of a log, printable and shortened: of a traceback that is the exception. Empty if none."""
    try:
        with path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
            lines = log.read(LOG_TAIL_BYTES).decode(errors="replace").split("\n")
    except OSError:
        return ""
    line = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return printable(line if len(line) <= REASON_LENGTH_MAX else line[:REASON_LENGTH_MAX] + "...")


def _kill(child: _Child) -> None:
    """Kill a proposer and what it started in its session."""
    if child.idle is not None:
        child.idle.cancel()
    process = child.process
    if process is not None and process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
