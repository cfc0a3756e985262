"""Many storms at once, in processes of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from corral.sim.storm.storm import Report, Storm

CHUNK = 4


def storm(seed: int) -> Report:
    """Let the storm of a seed pass."""
    return Storm(seed).run()


def storms(seeds: Sequence[int], workers: int) -> Iterator[Report]:
    """Yield the reports of many storms, in the order of their seeds. Who stops listening stops them."""
    if workers == 1:
        yield from map(storm, seeds)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        try:
            yield from pool.map(storm, seeds, chunksize=CHUNK)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
