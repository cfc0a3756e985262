"""Wait for a condition, never for a length of time."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(
    predicate: Callable[[], T], timeout_s: float = 10.0, interval_s: float = 0.01, *, what: str = "the condition"
) -> T:
    """Return the first truthy value of ``predicate``, or fail when ``timeout_s`` passes without one.

    The predicate is asked once more after the deadline, so that a test process that was paused does not fail unjustly.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        late = time.monotonic() >= deadline
        value = predicate()
        if value:
            return value
        if late:
            raise AssertionError(f"waited {timeout_s:g} s for {what}; the last answer was {value!r}")
        time.sleep(interval_s)


async def wait_until_async(
    predicate: Callable[[], T | Awaitable[T]],
    timeout_s: float = 10.0,
    interval_s: float = 0.01,
    *,
    what: str = "the condition",
) -> T:
    """Do what :func:`wait_until` does without holding the event loop; the predicate may be a coroutine function."""
    deadline = time.monotonic() + timeout_s
    while True:
        late = time.monotonic() >= deadline
        answer = predicate()
        value: T = await answer if inspect.isawaitable(answer) else answer
        if value:
            return value
        if late:
            raise AssertionError(f"waited {timeout_s:g} s for {what}; the last answer was {value!r}")
        await asyncio.sleep(interval_s)
