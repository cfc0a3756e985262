"""Doing the same thing many times in several threads, and stopping all of them at the first failure or Ctrl-C."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait


def in_threads(count: int, threads: int, act: Callable[[int], object]) -> None:
    """Call ``act`` with 0 to ``count - 1``, ``threads`` at a time, each thread taking the next number.

    Raises what the first failing call raised, after the calls that had begun have ended.
    """
    numbers = itertools.count()
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set() and (number := next(numbers)) < count:
            act(number)

    with ThreadPoolExecutor(threads) as pool:
        try:
            working = [pool.submit(work) for _ in range(threads)]
            wait(working, return_when=FIRST_EXCEPTION)
        finally:
            stop.set()
    for future in working:
        future.result()
