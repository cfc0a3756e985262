"""The relay as its front end holds it: started, adopted by the next front end, started again when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import msgspec

import corral
from corral.model.errors import ProxyFault
from corral.model.ids import ServiceName
from corral.model.routes import RouteLoad, RoutingTable
from corral.serving.relay.control import LINE_MAX, Apply, Eject, Look, Question, Retries, Seen, seen_decoder

START_S = 10.0
ANSWER_S = 5.0
AGAIN_S = 0.05
STOP_S = 5.0
log = logging.getLogger(__name__)


class RelayProcess:
    """Implements ``ports.serving.Proxy``. The relay runs only while a service needs it."""

    def __init__(self, directory: Path, log_path: Path) -> None:
        self.socket = directory / "relay.sock"
        self._control = directory / "relay-control.sock"
        self._log = log_path
        self._table = RoutingTable(0, "")
        self._carried: tuple[ServiceName, ...] = ()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = 0
        self._turn = asyncio.Lock()
        self._said: list[Eject | Retries] = []
        self._problem = ""
        self.seen = Seen()

    @property
    def problem(self) -> str:
        """Return what is wrong."""
        return self._problem

    async def start(self) -> None:
        """Start the relay, if a service needs it; adopt one that is there. Raises ``ProxyFault``."""
        if self._carried:
            async with self._turn:
                await self._connected()

    async def apply(self, table: RoutingTable) -> None:
        """Serve by a table from now on."""
        self._table = table
        self._carried = tuple(route.service for route in table.routes if route.relayed)
        self._said = [said for said in self._said if said.service in self._carried]
        if not self._carried and self._streams is None:
            return
        try:
            await self._ask(Apply(self._mine()))
        except ProxyFault as error:
            self._problem = str(error)
            log.warning("the relay does not have the newest routes: %s", error)

    async def loads(self) -> tuple[RouteLoad, ...]:
        """Return what the relay sees of the services that pass it. Raises ``ProxyFault``."""
        if not self._carried:
            return ()
        self.seen = await self._ask(Look(self._carried))
        return self.seen.loads

    async def set_ejected(self, service: ServiceName, backend: str, *, on: bool) -> None:
        """Give a replica no requests, or requests again. Raises ``ProxyFault``."""
        await self._remembered(Eject(service, backend, on))

    async def set_retries(self, service: ServiceName, *, on: bool) -> None:
        """Send nothing a second time, or do again. Raises ``ProxyFault``."""
        await self._remembered(Retries(service, on))

    async def leave(self) -> None:
        """Let go of the relay: the next front end takes it over."""
        self._let_go()
        with warnings.catch_warnings():
            # It goes on without this process: that is what it was started for.
            warnings.simplefilter("ignore", ResourceWarning)
            self._process = None

    async def close(self) -> None:
        """End the relay."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None
        if not self._pid:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGTERM)
        if self._process is not None:
            try:
                await asyncio.to_thread(self._process.wait, STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                await asyncio.to_thread(self._process.wait)
        self._pid = 0

    # ---- talking to it ---------------------------------------------------------------------------------------------

    def _mine(self) -> RoutingTable:
        routes = tuple(route for route in self._table.routes if route.service in self._carried)
        return RoutingTable(self._table.epoch, self._table.digest, routes)

    async def _remembered(self, said: Eject | Retries) -> None:
        """Say it now, and again to a relay that is started anew."""
        same = (type(said), said.service, getattr(said, "backend", ""))
        self._said = [one for one in self._said if (type(one), one.service, getattr(one, "backend", "")) != same]
        self._said.append(said)
        await self._ask(said)

    async def _ask(self, question: Question) -> Seen:
        async with self._turn:
            try:
                await self._connected()
                return await self._said_to_it(question)
            except (OSError, EOFError, msgspec.MsgspecError) as error:
                self._let_go()
                raise ProxyFault(f"the relay does not answer ({str(error) or type(error).__name__})") from error

    async def _said_to_it(self, question: Question) -> Seen:
        assert self._streams is not None, "it is connected"
        reader, writer = self._streams
        async with asyncio.timeout(ANSWER_S):
            writer.write(msgspec.json.encode(question) + b"\n")
            await writer.drain()
            line = await reader.readline()
        if not line.endswith(b"\n"):
            raise EOFError("it closed the connection")
        seen = seen_decoder.decode(line)
        if seen.error:
            raise ProxyFault(f"the relay refuses: {seen.error}")
        self._pid = seen.pid
        return seen

    def _let_go(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def _connected(self) -> None:
        """Have a connection to a relay of this version that serves by the newest table."""
        if self._streams is not None and not self._streams[1].is_closing():
            return
        with contextlib.suppress(OSError, EOFError):
            await self._connect()
            seen = await self._said_to_it(Look(()))
            if seen.version == corral.__version__:
                await self._brief()
                return
            os.kill(seen.pid, signal.SIGTERM)
        self._let_go()
        await self._begin()
        await self._brief()

    async def _brief(self) -> None:
        await self._said_to_it(Apply(self._mine(), anew=True))
        for said in self._said:
            await self._said_to_it(said)
        self._problem = ""

    async def _connect(self) -> None:
        self._streams = await asyncio.open_unix_connection(str(self._control), limit=LINE_MAX)

    async def _begin(self) -> None:
        """Start a relay and connect to it. Raises ``ProxyFault``."""
        if self._process is not None:
            # It does not answer, or is dead.
            self._process.kill()
            await asyncio.to_thread(self._process.wait)
        self._control.unlink(missing_ok=True)
        command = [sys.executable, "-P", "-m", "corral.serving.relay.main"]
        command += ["--socket", str(self.socket), "--control", str(self._control)]
        with self._log.open("ab") as file:
            self._process = await asyncio.to_thread(
                subprocess.Popen,
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_S
        while True:
            with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
                await self._connect()
                return
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._problem = f"the relay does not start; see {self._log}"
                raise ProxyFault(self._problem)
            await asyncio.sleep(AGAIN_S)
