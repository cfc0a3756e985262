"""What-if questions in a process of their own (``python -m corral.runtime.solving.planning``): one in, its answer out.

The daemon starts a process for each question: it may take long and as much memory as a second controller, and none of
that must be left in the daemon. It ends with the daemon. Both messages are msgpack.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import Sequence

import msgspec

from corral.control.config import ControlConfig
from corral.model.errors import CorralError, PlanTooLarge, Refusal, Unavailable
from corral.model.plan import PlanReport
from corral.ports.planner import PlanQuestion
from corral.runtime.lineage import end_with_parent
from corral.runtime.solving.ending import gone
from corral.runtime.solving.solver import ONE_THREAD

COMMAND = (sys.executable, "-P", "-m", "corral.runtime.solving.planning")
PLAN_MAX_S = 120.0
"""A terminal waits so long for an answer; a larger question wants a shorter horizon."""

TURN_MAX_S = 50.0
WAITING_MAX = 4
"""Who asks while others are answered waits, a few and not for long: each question holds a copy of the pool's state."""

NICENESS = 10


class Asked(msgspec.Struct, frozen=True):
    """A question with the settings of the pool that it is about."""

    question: PlanQuestion
    config: ControlConfig


class Answered(msgspec.Struct, frozen=True):
    """A report, or the refusal that became of it."""

    report: PlanReport | None = None
    refusal: Refusal | None = None


class PlannerProcess:
    """Implements ``ports.planner.Planner`` with one child process a question, one at a time."""

    def __init__(
        self,
        config: ControlConfig,
        command: Sequence[str] = COMMAND,
        patience_s: float = PLAN_MAX_S,
        turn_s: float = TURN_MAX_S,
    ) -> None:
        self._config = config
        self._command = command
        self._patience_s = patience_s
        self._turn_s = turn_s
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def plan(self, question: PlanQuestion) -> PlanReport:
        """Return the report.

        Raises what the pool would answer, ``PlanTooLarge`` when it takes too long, and ``Unavailable`` when too many
        questions wait already or its turn does not come.
        """
        if self._waiting >= WAITING_MAX:
            raise _busy()
        self._waiting += 1
        try:
            async with asyncio.timeout(self._turn_s):
                await self._turn.acquire()
        except TimeoutError:
            raise _busy() from None
        finally:
            self._waiting -= 1
        try:
            return await self._answered(question)
        finally:
            self._turn.release()

    async def _answered(self, question: PlanQuestion) -> PlanReport:
        data = msgspec.msgpack.encode(Asked(question, self._config))
        child = await asyncio.create_subprocess_exec(
            *self._command, stdin=PIPE, stdout=PIPE, env={**os.environ, **ONE_THREAD}
        )
        try:
            async with asyncio.timeout(self._patience_s):
                out, _ = await child.communicate(data)
        except TimeoutError:
            raise PlanTooLarge(
                f"no answer within {self._patience_s:g} s", hint="ask with a shorter --horizon"
            ) from None
        finally:
            if child.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    child.kill()
                await gone(child)
        try:
            answer = msgspec.msgpack.decode(out, type=Answered)
        except msgspec.MsgspecError:
            raise PlanTooLarge(f"the process that plans died with code {child.returncode}") from None
        if answer.refusal is not None:
            raise CorralError.of(answer.refusal)
        assert answer.report is not None
        return answer.report


def _busy() -> Unavailable:
    return Unavailable("other what-if questions are being answered", hint="ask again in a minute")


def answer(data: bytes) -> bytes:
    """Return the encoded answer to an encoded question."""
    from corral.planner.compare import compare
    from corral.planner.projection import Seen
    from corral.policy.market.solve import RoundSolver

    asked = msgspec.msgpack.decode(data, type=Asked)
    question, config = asked.question, asked.config
    seen = Seen(question.image, question.at, tuple(question.answering), config)
    try:
        report = compare(seen, question.ask, RoundSolver(config.scheduling))
    except CorralError as error:
        return msgspec.msgpack.encode(Answered(refusal=error.refusal))
    return msgspec.msgpack.encode(Answered(report))


def main() -> None:
    """Entry point of the child."""
    end_with_parent()
    os.nice(NICENESS)
    # What a library prints must not come before the answer.
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    out.write(answer(sys.stdin.buffer.read()))
    out.flush()


if __name__ == "__main__":
    main()
