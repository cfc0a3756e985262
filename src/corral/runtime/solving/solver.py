"""Global rounds in a process of their own: ``python -m corral.runtime.solving.solver`` reads markets and writes plans.

The daemon starts it with the first round and again whenever it died. It is a plain child on two pipes: it ends when its
input or the daemon does, it loads what solving needs (numpy, HiGHS) and the daemon never does. Frames are msgpack after
their length in 8 bytes; a market goes out in parts, so that the event loop of the daemon is never busy with one long.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sys
import traceback
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, TypeVar

import msgspec
from msgspec.structs import replace

from corral.model.errors import SolverFault
from corral.model.market import Market, RoundPlan
from corral.model.offer import Candidate, Holding, NodeOffer
from corral.policy.config import SchedulingConfig
from corral.ports.solver import Solver
from corral.runtime.lineage import end_with_parent
from corral.runtime.solving.ending import gone

COMMAND = (sys.executable, "-P", "-m", "corral.runtime.solving.solver")
LENGTH_BYTES = 8
PART_GANGS = 500
SOLVE_MAX_S = 120.0
"""A round of the largest pool takes 10 s (design goal); what takes so long hangs, and is killed."""

NICENESS = 5
"""Heartbeats and starts go before a round where CPUs are few."""

ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Sums in one order on every machine, and the other CPUs for those who compute for somebody."""

T = TypeVar("T")
Make = Callable[[SchedulingConfig], Solver]


class Part(msgspec.Struct, frozen=True):
    """A piece of a market: ``market`` without its nodes and gangs comes first, and ``last`` says that all are there."""

    market: Market | None = None
    config: SchedulingConfig | None = None
    nodes: tuple[NodeOffer, ...] = ()
    holdings: tuple[Holding, ...] = ()
    pending: tuple[Candidate, ...] = ()
    last: bool = False


class Answer(msgspec.Struct, frozen=True):
    """A plan, or why there is none."""

    plan: RoundPlan | None = None
    fault: str = ""


def parts_of(market: Market, config: SchedulingConfig) -> Iterator[Part]:
    """Yield a market in parts of at most ``PART_GANGS`` nodes or gangs."""
    snapshot = market.snapshot
    bare = replace(market, snapshot=replace(snapshot, nodes=(), holdings=()), pending=())
    yield Part(bare, config)
    yield from (Part(nodes=some) for some in batched(snapshot.nodes))
    yield from (Part(holdings=some) for some in batched(snapshot.holdings))
    yield from (Part(pending=some) for some in batched(market.pending))
    yield Part(last=True)


def batched(items: Sequence[T]) -> Iterator[tuple[T, ...]]:
    """Yield items in runs of at most ``PART_GANGS``."""
    for start in range(0, len(items), PART_GANGS):
        yield tuple(items[start : start + PART_GANGS])


def join(parts: Sequence[Part]) -> tuple[Market, SchedulingConfig]:
    """Return the market that was sent in parts. Raises ``ValueError`` when its head is missing."""
    market, config = parts[0].market, parts[0].config
    if market is None or config is None:
        raise ValueError("a market begins with its head")
    snapshot = replace(
        market.snapshot,
        nodes=tuple(itertools.chain.from_iterable(part.nodes for part in parts)),
        holdings=tuple(itertools.chain.from_iterable(part.holdings for part in parts)),
    )
    pending = tuple(itertools.chain.from_iterable(part.pending for part in parts))
    return replace(market, snapshot=snapshot, pending=pending), config


class SolverProcess:
    """Implements ``ports.solver.RoundWorker`` with a child process that is started when it is needed."""

    def __init__(
        self, config: SchedulingConfig, command: Sequence[str] = COMMAND, patience_s: float = SOLVE_MAX_S
    ) -> None:
        self._config = config
        self._command = command
        self._patience_s = patience_s
        self._child: Process | None = None

    @property
    def pid(self) -> int | None:
        """Return the child's number while it runs."""
        return self._child.pid if self._child is not None and self._child.returncode is None else None

    async def solve(self, market: Market) -> RoundPlan:
        """Return the plan of one round. Raises ``SolverFault``; a child that died or hangs is replaced next time."""
        try:
            async with asyncio.timeout(self._patience_s):
                answer = await self._ask(market)
        except TimeoutError:
            await self.close()
            raise SolverFault(f"a round took more than {self._patience_s:g} s; its process was killed") from None
        except (OSError, EOFError, msgspec.MsgspecError) as error:
            await self.close()
            raise SolverFault(f"the process that solves rounds died ({type(error).__name__})") from error
        except asyncio.CancelledError:
            await self.close()
            raise
        if answer.plan is None:
            raise SolverFault(f"a round failed: {answer.fault}")
        return answer.plan

    async def close(self) -> None:
        """Kill the child, if there is one."""
        child, self._child = self._child, None
        if child is not None:
            if child.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    child.kill()
            await gone(child)

    async def _ask(self, market: Market) -> Answer:
        child = self._child
        if child is None or child.returncode is not None:
            child = self._child = await asyncio.create_subprocess_exec(
                *self._command, stdin=PIPE, stdout=PIPE, env={**os.environ, **ONE_THREAD}
            )
        into, out = child.stdin, child.stdout
        if into is None or out is None:
            raise EOFError("it has no pipes")
        for part in parts_of(market, self._config):
            data = msgspec.msgpack.encode(part)
            into.write(len(data).to_bytes(LENGTH_BYTES, "big") + data)
            await into.drain()
            # A pipe that takes all of it at once would not let anything else run in between.
            await asyncio.sleep(0)
        size = int.from_bytes(await out.readexactly(LENGTH_BYTES), "big")
        return msgspec.msgpack.decode(await out.readexactly(size), type=Answer)


# ---- the child -------------------------------------------------------------------------------------------------------


def read_parts(stream: BinaryIO) -> list[Part]:
    """Return the parts of the next market, none at the end of the input."""
    parts: list[Part] = []
    while not parts or not parts[-1].last:
        head = stream.read(LENGTH_BYTES)
        data = stream.read(int.from_bytes(head, "big")) if len(head) == LENGTH_BYTES else b""
        if not data:
            return []
        parts.append(msgspec.msgpack.decode(data, type=Part))
    return parts


def serve(make: Make, stream: BinaryIO, out: BinaryIO) -> None:
    """Solve markets until the input ends, with one solver for as long as the constants stay the same.

    A round that fails is answered with its fault, and the next one begins with a new solver.
    """
    solvers: dict[SchedulingConfig, Solver] = {}
    while parts := read_parts(stream):
        try:
            market, config = join(parts)
            if config not in solvers:
                solvers = {config: make(config)}
            answer = Answer(solvers[config](market))
        except Exception as error:  # noqa: BLE001 - whatever a solver meets, the pool is told and goes on
            traceback.print_exc()
            # Tenants read it: what the error says may name jobs that are not theirs.
            answer = Answer(fault=f"{type(error).__name__}, its traceback stands in the daemon's log")
            solvers.clear()
        data = msgspec.msgpack.encode(answer)
        out.write(len(data).to_bytes(LENGTH_BYTES, "big") + data)
        out.flush()


def main() -> None:
    """Entry point of the child."""
    from corral.policy.market.solve import RoundSolver

    end_with_parent()
    os.nice(NICENESS)
    # What a library prints must not come between the frames.
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    serve(RoundSolver, sys.stdin.buffer, out)


if __name__ == "__main__":
    main()
