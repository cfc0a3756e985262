"""Tasks whose files are being laid out, in threads of their own: that takes its time, and may be called off."""

from __future__ import annotations

import asyncio
import threading

from corral.agent.outputs import Launch
from corral.agent.preparing import Prepared, Preparer
from corral.agent.threads import in_thread


class Layouts:
    """Those of one node. All methods belong to one event loop."""

    def __init__(self, preparer: Preparer) -> None:
        self._preparer = preparer
        self._going: dict[str, tuple[threading.Event, asyncio.Event]] = {}

    async def prepare(self, marker: str, order: Launch) -> Prepared | None:
        """Return a task that is prepared, ``None`` at once when it is called off. Raises ``PreparationFailed``.

        The thread of one that was called off ends at its next file, and leaves nothing.
        """
        unwanted, told = threading.Event(), asyncio.Event()

        def lay_out() -> Prepared:
            prepared = self._preparer.prepare(
                order.command, order.deadline_boottime_s, wanted=lambda: not unwanted.is_set()
            )
            if unwanted.is_set():
                self._preparer.discard(order.command, prepared)
            return prepared

        laying = asyncio.ensure_future(in_thread(lay_out))
        telling = asyncio.ensure_future(told.wait())
        self._going[marker] = unwanted, told
        try:
            await asyncio.wait((laying, telling), return_when=asyncio.FIRST_COMPLETED)
            return None if told.is_set() else laying.result()
        finally:
            self._going.pop(marker, None)
            laying.cancel()
            telling.cancel()

    def call_off(self, marker: str) -> bool:
        """Call a task off; return whether it was being prepared: then nothing of it will run."""
        found = self._going.pop(marker, None)
        if found is None:
            return False
        unwanted, told = found
        unwanted.set()
        told.set()
        return True
