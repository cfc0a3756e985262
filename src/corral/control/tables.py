"""The newest routing table, and whoever waits for the next one."""

from __future__ import annotations

import asyncio

from corral.model.routes import RoutingTable


class Tables:
    """Holds the table that is in force: everything that it says is in the journal."""

    def __init__(self) -> None:
        self.newest: RoutingTable | None = None
        self._changed = asyncio.Event()

    def publish(self, table: RoutingTable | None) -> None:
        """Let a table be the newest, and wake who waits; ``None`` says that nothing has changed."""
        if table is None:
            return
        self.newest = table
        self._changed.set()
        self._changed = asyncio.Event()

    async def after(self, digest: str | None, timeout_s: float) -> RoutingTable | None:
        """Return the newest table: at once when its digest is not ``digest``, else when it changes or time is over.

        ``None`` while this controller has none yet: it has just begun.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        while self.newest is None or self.newest.digest == digest:
            left = until - loop.time()
            if left <= 0:
                break
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except TimeoutError:
                break
        return self.newest
