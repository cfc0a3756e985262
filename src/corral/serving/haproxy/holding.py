"""The second process of the proxy: it holds long bodies until they are complete (see ``hold.cfg.j2``)."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from corral.model.errors import ProxyFault, ProxyRefused
from corral.serving.haproxy import process
from corral.serving.haproxy.admin import Admin
from corral.serving.haproxy.config import ProxyConfig
from corral.serving.haproxy.process import HOLD_MASTER, Master
from corral.serving.haproxy.render import render_hold

CONFIGURATION = "hold.cfg"
AGAIN_FIRST_S, AGAIN_MAX_S = 0.05, 1.0
log = logging.getLogger(__name__)


class Holding:
    """Keeps that process alive. While it is away short bodies pass all the same, and long ones are not held."""

    def __init__(self, config: ProxyConfig) -> None:
        self._config = config
        self._binary = process.find_binary(config.binary)
        self._master: Master | None = None

    @property
    def pid(self) -> int | None:
        """Return the process id of its master."""
        return self._master.pid if self._master is not None else None

    async def start(self) -> None:
        """Start it, or take over the one that does the same already. Raises ``ProxyRefused`` and ``ProxyFault``."""
        folder, text = self._config.folder, render_hold(self._config)
        configuration = folder / CONFIGURATION
        same = configuration.exists() and configuration.read_text() == text
        try:
            there = Master((await Admin(folder / HOLD_MASTER).processes()).master)
        except (ProxyFault, OSError):
            pass
        else:
            if same:
                self._master = there
                return
            await there.stop()
        _write(configuration, text)
        await process.check(self._binary, configuration)
        self._master = await Master.start(self._binary, folder, configuration, HOLD_MASTER)

    async def keep(self) -> None:
        """Start it again as soon as it ends."""
        pause_s = AGAIN_FIRST_S
        while True:
            if self._master is not None:
                await self._master.ended()
                self._master.let_go()
                self._master = None
                log.warning("the process that holds long bodies has ended; it is started again")
            try:
                await self.start()
                pause_s = AGAIN_FIRST_S
            except (ProxyFault, ProxyRefused, OSError) as error:
                log.warning("%s", error)
                pause_s = min(AGAIN_MAX_S, pause_s * 2)
            await asyncio.sleep(pause_s)

    async def stop(self) -> None:
        """End it with what is under way."""
        if self._master is not None:
            await self._master.stop()
            self._master = None

    def let_go(self) -> None:
        """Let go of it: it goes on."""
        if self._master is not None:
            self._master.let_go()
            self._master = None


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o600)
