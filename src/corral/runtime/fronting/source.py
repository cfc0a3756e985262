"""The controller as a front end's process sees it: calls of the client in threads that nobody waits for at the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from corral.client import Client
from corral.model.errors import CorralError
from corral.model.routes import FrontEndReport, RoutingTable

T = TypeVar("T")
REPORT_S = 3.0


class PoolSource:
    """Implements ``ports.serving.RouteSource``. It finds the leader as every client does."""

    def __init__(self, state_dir: Path, token: str | None) -> None:
        self._asking = Client(state_dir=state_dir, token=token, retry_s=0.0)
        self._telling = Client(state_dir=state_dir, token=token, retry_s=0.0, timeout_s=REPORT_S)

    async def table(self, after: str | None, timeout_s: float) -> RoutingTable:
        """Return the routing table when it is another one, or after a while. Raises ``CorralError``."""
        return await aside(lambda: self._asking.routes(after, timeout_s))

    async def report(self, report: FrontEndReport) -> None:
        """Tell what is seen. Raises ``CorralError``."""
        await aside(lambda: self._telling.report_front_end(report))


async def aside(call: Callable[[], T]) -> T:
    """Make a blocking call in a thread of its own; who is cancelled does not wait for it, nor does the process."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: CorralError | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result: T | None = None
        failed: CorralError | None = None
        try:
            result = call()
        except CorralError as error:
            failed = error
        except Exception as error:  # noqa: BLE001 - whatever the library met, the next call tries again
            failed = CorralError(f"the controller could not be asked ({type(error).__name__}: {error})")
        try:
            loop.call_soon_threadsafe(settle, result, failed)
        except RuntimeError:
            # The loop has ended meanwhile.
            return

    threading.Thread(target=run, daemon=True, name="pool").start()
    return await answer
