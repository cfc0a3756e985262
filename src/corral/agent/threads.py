"""Waiting for a blocking call without an executor: an agent that is told to end does not wait for such a call."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_thread(call: Callable[[], T]) -> T:
    """Return what ``call`` returns, made in a daemon thread of its own."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def finish(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type] # one of both is set

    def run() -> None:
        try:
            result, error = call(), None
        except Exception as raised:  # noqa: BLE001 - it is raised again where it is waited for
            result, error = None, raised
        try:
            loop.call_soon_threadsafe(finish, result, error)
        except RuntimeError:
            # The loop is closed: nobody waits any more.
            return

    threading.Thread(target=run, daemon=True).start()
    return await future
