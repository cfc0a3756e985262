"""keepalived as a front end holds it: started, told whether the front end is well, and cleaned up after.

When keepalived is killed the kernel keeps the address, and another front end takes it too: so whoever started it takes
the address away at once, and again at its own start.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import time
from pathlib import Path

from corral.model.errors import DependencyMissing, ProxyFault, ProxyRefused
from corral.serving.vrrp.render import FAULT, Vip, render

CHECK_S = 10.0
STOP_S = 3.0
AGAIN_FIRST_S, AGAIN_MAX_S = 0.2, 5.0
STEADY_S = 10.0
LOOK_S = 0.2
log = logging.getLogger(__name__)


class Keeper:
    """Holds one virtual address together with others. Needs root, or CAP_NET_ADMIN and CAP_NET_RAW."""

    def __init__(self, vip: Vip, folder: Path, log_path: Path) -> None:
        self.vip = vip
        self._folder = folder
        self._track = folder / "well"
        self._log = log_path
        self._process: asyncio.subprocess.Process | None = None
        self._well: bool | None = None
        self._holds = False
        self.problem = ""

    def holds(self) -> tuple[str, ...]:
        """Return the virtual addresses that this machine has now."""
        return (self.vip.bare,) if self._holds else ()

    def tell(self, *, well: bool) -> None:
        """Say whether the front end answers: one that does not gives the address away at once."""
        if well is not self._well:
            self._well = well
            self._track.write_text(f"{0 if well else FAULT}\n")

    async def run(self) -> None:
        """Keep it running until cancelled. Raises ``DependencyMissing`` and ``ProxyRefused``."""
        program = shutil.which("keepalived", path="/usr/sbin:/usr/local/sbin:/usr/bin:/bin")
        if program is None:
            raise DependencyMissing("a virtual address needs keepalived", hint="apt-get install keepalived")
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self.tell(well=False)
        configuration = self._folder / "keepalived.conf"
        configuration.write_text(render(self.vip, str(self._track)))
        await self._check(program, configuration)
        pause_s = AGAIN_FIRST_S
        looking = asyncio.create_task(self._look())
        try:
            while True:
                await self.take_away()
                began = time.monotonic()
                code = await self._once(program, configuration)
                pause_s = AGAIN_FIRST_S if time.monotonic() - began > STEADY_S else min(AGAIN_MAX_S, pause_s * 2)
                self.problem = f"keepalived ended with {code}"
                log.warning("%s; the address is taken away, and it is started again", self.problem)
                await self.take_away()
                await asyncio.sleep(pause_s)
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
            await self._stop()
            await self.take_away()

    async def take_away(self) -> None:
        """Remove the address from this machine, if it is there."""
        if await _ip("address", "del", self.vip.address, "dev", self.vip.interface) == 0:
            log.warning("%s was left on %s: it is taken away", self.vip.address, self.vip.interface)

    async def _check(self, program: str, configuration: Path) -> None:
        process = await asyncio.create_subprocess_exec(
            program,
            "--config-test",
            f"--use-file={configuration}",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(CHECK_S):
                said, _ = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            raise ProxyFault(f"keepalived did not read its configuration in {CHECK_S:g} s") from None
        if process.returncode:
            words = said.decode(errors="replace").strip().splitlines()
            raise ProxyRefused(f"keepalived refuses: {words[-1] if words else f'code {process.returncode}'}")

    async def _once(self, program: str, configuration: Path) -> int:
        with self._log.open("ab") as file:
            self._process = await asyncio.create_subprocess_exec(
                program,
                "--dont-fork",
                "--log-console",
                "--vrrp",
                f"--use-file={configuration}",
                f"--pid={self._folder / 'keepalived.pid'}",
                f"--vrrp_pid={self._folder / 'vrrp.pid'}",
                stdin=asyncio.subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )
        self.problem = ""
        return await self._process.wait()

    async def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(STOP_S):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _look(self) -> None:
        """Know whether the address is here."""
        while True:
            said = await _ip_said("-o", "address", "show", "dev", self.vip.interface)
            self._holds = f" {self.vip.bare}/" in said
            await asyncio.sleep(LOOK_S)


async def _ip(*words: str) -> int:
    process = await asyncio.create_subprocess_exec(
        "ip",
        *words,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    return await process.wait()


async def _ip_said(*words: str) -> str:
    process = await asyncio.create_subprocess_exec(
        "ip",
        *words,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    said, _ = await process.communicate()
    return said.decode(errors="replace")
