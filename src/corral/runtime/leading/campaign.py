"""Campaigning for the lead: asks the database when the core of leadership says so, from the event loop.

From the loop on purpose: a controller whose loop hangs renews no more, and loses the lead.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from corral.control.leadership import Change, Leadership, Terms
from corral.model.errors import CorralError, StoreAway
from corral.ports.leadership import Answer, Ask, Candidate, LeaderStore
from corral.runtime.leading.clock import boottime

log = logging.getLogger("corral.daemon")


def place_of(state_dir: Path) -> str:
    """Return what names this state directory on this boot of this machine."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    there = state_dir.stat()
    return f"{boot}:{there.st_dev:x}:{there.st_ino:x}"


class Campaign:
    """One candidacy: from standing by, over leading, to its end. All methods belong to one event loop."""

    def __init__(
        self,
        leaders: LeaderStore,
        place: str,
        url: str,
        terms: Terms | None = None,
        boot: Callable[[], float] = boottime,
    ) -> None:
        self._core = Leadership(Candidate(f"{os.getpid()}-{secrets.token_hex(8)}", place, url), terms)
        self._leaders = leaders
        self._boot = boot
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="campaign")
        self._away_since: float | None = None
        self.elected = asyncio.Event()
        self.deposed = asyncio.Event()

    @property
    def epoch(self) -> int:
        """Return the epoch in which it leads, 0 while it does not."""
        return self._core.epoch or 0

    @property
    def leader(self) -> str:
        """Return where the leader answers as far as is known, empty while none leads or it is this one."""
        row = self._core.row
        return row.url if row is not None and row.holder not in ("", self._core.me.holder) else ""

    def valid(self) -> bool:
        """Return whether it leads and its lease holds now."""
        return self._core.valid(self._boot())

    def away_s(self) -> float:
        """Return for how long the database has answered nothing, 0 when it does (seconds)."""
        return 0.0 if self._away_since is None else self._boot() - self._away_since

    async def run(self) -> None:
        """Campaign until cancelled or deposed. Raises what the store refuses for good."""
        while not self.deposed.is_set():
            # Against a clock that was set or a machine that slept: never longer at once than a look apart.
            pause = min(self._core.due - self._boot(), self._core.terms.look_s)
            if pause > 0:
                await asyncio.sleep(pause)
                continue
            sent_at = self._boot()
            ask = self._core.ask(sent_at)
            try:
                answer = await self._asked(ask)
            except StoreAway as error:
                if self._away_since is None:
                    log.warning("%s", error)
                    self._away_since = sent_at
                self._core.failed(self._boot())
                continue
            self._away_since = None
            change = self._core.answered(sent_at, self._boot(), ask, answer)
            if change is Change.ELECTED:
                log.info("this controller leads from now on, in epoch %d", self.epoch)
                self.elected.set()
            elif change is Change.DEPOSED:
                log.warning("another controller leads now, in epoch %d", answer.row.epoch)
                self.deposed.set()

    async def _asked(self, ask: Ask) -> Answer:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._leaders.campaign, self._core.me, ask)

    async def resign(self) -> None:
        """End it: lead no longer, and let the next one know as far as the database answers. ``run`` must have ended."""
        ask = self._core.resign()
        if ask is not None:
            try:
                await self._asked(ask)
            except CorralError as error:
                log.warning("the lead could not be handed over: %s", error)
        self._thread.shutdown(wait=False)
