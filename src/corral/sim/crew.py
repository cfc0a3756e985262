"""Several simulations at a time, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import msgspec

from corral.model.errors import CorralError, Refusal, SimulationStuck
from corral.sim.simulate import Options, Report, simulate

NEWS_EVERY = 100
"""Progress is told about so many times in all: who shows it redraws a line each time."""


class News(msgspec.Struct, frozen=True):
    """How far a simulation is."""

    index: int
    ended: int
    total: int


class _Done(msgspec.Struct, frozen=True):
    report: Report | None
    refusal: Refusal | None = None


def simulate_all(
    asked: Sequence[Options], workers: int, watcher: Callable[[News], None] | None = None
) -> Iterator[tuple[int, Report]]:
    """Yield (position, report) as the simulations end. Raises the error of the first that fails.

    Whatever ends it early, an interrupt or an error, ends all its processes.
    """
    context = multiprocessing.get_context("spawn")
    todo = list(range(len(asked)))[::-1]
    running: dict[Connection, tuple[int, BaseProcess]] = {}
    try:
        while todo or running:
            while todo and len(running) < max(1, workers):
                index = todo.pop()
                ours, theirs = context.Pipe(duplex=False)
                process: BaseProcess = context.Process(target=_work, args=(theirs, index, asked[index]), daemon=True)
                process.start()
                theirs.close()
                running[ours] = (index, process)
            for ready in wait(list(running)):
                assert isinstance(ready, Connection)
                index, worker = running[ready]
                told = _receive(ready)
                if isinstance(told, News):
                    if watcher is not None:
                        watcher(told)
                    continue
                del running[ready]
                ready.close()
                worker.join()
                if told.report is None:
                    raise CorralError.of(told.refusal) if told.refusal else SimulationStuck(_died(worker))
                yield index, told.report
    finally:
        for connection, (_, left) in running.items():
            left.terminate()
            left.join()
            connection.close()


def _died(process: BaseProcess) -> str:
    return f"the process of a simulation ended with code {process.exitcode}"


def _receive(connection: Connection) -> News | _Done:
    try:
        told = connection.recv()
    except (EOFError, OSError):
        # It ended without a word, or in the middle of one.
        return _Done(None)
    assert isinstance(told, News | _Done)
    return told


def _work(connection: Connection, index: int, options: Options) -> None:
    # Ctrl-C reaches the whole process group; the parent decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    shown = 0

    def watch(ended: int, total: int) -> None:
        nonlocal shown
        if ended * NEWS_EVERY // max(1, total) > shown:
            shown = ended * NEWS_EVERY // total
            connection.send(News(index, ended, total))

    try:
        connection.send(_Done(simulate(options, watch)))
    except CorralError as error:
        connection.send(_Done(None, error.refusal))
