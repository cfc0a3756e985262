"""Several controllers on loopback that share one database, each behind a proxy of its own that can be cut."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Self

from msgspec.structs import replace

from corral.client import Client
from corral.client.transport import NotSent, PlainTransport
from corral.model.errors import CorralError
from corral.runtime.options import PoolOptions
from corral.runtime.paths import StatePaths
from corral.runtime.poolfile import load_pool, save_pool
from corral.runtime.settings import load_settings
from corral.runtime.starting.configuring import write_pool
from corral.runtime.starting.launcher import prepare

READY_S = 60.0
POLL_S = 0.05
CHUNK_BYTES = 1 << 16
COMMIT = b"COMMIT\0"


class Way(StrEnum):
    """What a proxy does with what it gets."""

    CARRY = "carry"
    SWALLOW = "swallow"
    REFUSE = "refuse"


class Proxy:
    """Carries bytes from a port of loopback to the database, in a thread of its own.

    ``SWALLOW`` is a network that loses everything: connections stay and say nothing more. ``REFUSE`` is a server that
    is gone: connections break, new ones are refused.
    """

    def __init__(self, port: int) -> None:
        self._to = port
        self._way = Way.CARRY
        self._commit: bool | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._flows = asyncio.Event()
        self._flows.set()
        self.commits_cut = 0
        self.port = 0
        self._thread = threading.Thread(target=self._run, name="proxy")
        self._thread.start()
        self._ready.wait(READY_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._carry, "127.0.0.1", 0))
        self.port = int(server.sockets[0].getsockname()[1])
        self._ready.set()
        self._loop.run_forever()
        server.close()
        for writer in self._writers:
            writer.transport.abort()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._way is Way.REFUSE:
            writer.transport.abort()
            return
        self._writers.add(writer)
        try:
            there_reader, there = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            writer.transport.abort()
            self._writers.discard(writer)
            return
        self._writers.add(there)
        ends = asyncio.gather(
            self._pump(reader, there, writer, asks=True), self._pump(there_reader, writer, there, asks=False)
        )
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await ends
        for end in (writer, there):
            end.transport.abort()
            self._writers.discard(end)

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, other: asyncio.StreamWriter, *, asks: bool
    ) -> None:
        while data := await source.read(CHUNK_BYTES):
            await self._flows.wait()
            if asks and self._commit is not None and COMMIT in data:
                reaches, self._commit = self._commit, None
                if reaches:
                    sink.write(data)
                    await sink.drain()
                self.commits_cut += 1
                other.transport.abort()
                return
            sink.write(data)
            await sink.drain()
        sink.transport.abort()

    def turn(self, way: Way) -> None:
        """Carry, swallow or refuse from now on."""

        def act() -> None:
            self._way = way
            self._flows.clear() if way is Way.SWALLOW else self._flows.set()
            if way is Way.REFUSE:
                for writer in self._writers:
                    writer.transport.abort()

        self._loop.call_soon_threadsafe(act)

    def cut_at_commit(self, *, reaches: bool) -> None:
        """Break the next connection that commits; ``reaches`` says whether the server gets the COMMIT."""

        def act() -> None:
            self._commit = reaches

        self._loop.call_soon_threadsafe(act)

    def close(self) -> None:
        """End it with all its connections."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(READY_S)


class Head:
    """One controller: a state directory, a daemon without agents, a proxy."""

    def __init__(self, root: Path, proxy: Proxy, store: str) -> None:
        self.paths = StatePaths(root)
        self.proxy = proxy
        self.process: subprocess.Popen[bytes] | None = None
        prepare(self.paths)
        options = PoolOptions(state_dir=root, port=0, nodes=1, gpus_per_node=0, simulated="h100")
        write_pool(self.paths, options, load_settings(root))
        save_pool(self.paths.pool, replace(load_pool(self.paths.pool), store=store))

    def start(self) -> None:
        """Start its daemon, and return when it answers."""
        self.paths.daemon.unlink(missing_ok=True)
        command = [sys.executable, "-P", "-m", "corral.runtime.daemon", "--state-dir", str(self.paths.root)]
        with (self.paths.logs / "daemon.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + READY_S
        while not self.paths.daemon.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"a head did not start: {self.log()[-2000:]}")
            time.sleep(POLL_S)

    def log(self) -> str:
        """Return what its daemon wrote."""
        return (self.paths.logs / "daemon.log").read_text(errors="replace")

    @property
    def url(self) -> str:
        """Return where it answers."""
        return str(json.loads(self.paths.daemon.read_text())["url"])

    @property
    def token(self) -> str:
        """Return its local admin token."""
        return self.paths.token.read_text().strip()

    def leads(self) -> bool:
        """Return whether it says that it leads."""
        transport = PlainTransport()
        try:
            reply = transport.request("GET", f"{self.url}/v1/health", {}, None, 1.0)
            return bool(json.loads(reply.body)["leads"])
        except (ConnectionError, NotSent, OSError, ValueError):
            return False
        finally:
            transport.close()

    def client(self, *, retry_s: float = 0.0, timeout_s: float = 5.0) -> Client:
        """Return a client that knows this head alone."""
        return Client(self.url, self.token, retry_s=retry_s, timeout_s=timeout_s)

    def signal(self, number: int) -> None:
        """Send a signal to its daemon and all that it started."""
        assert self.process is not None
        os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """Kill it as a crash of its machine does."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.signal(signal.SIGKILL)
            self.process.wait(READY_S)
            self.process = None


class Heads:
    """Some heads of one pool. Nothing of them is left after the block.

    ``database_port`` is the port of the database on loopback, ``database_url`` its URL through the port of a proxy.
    """

    def __init__(self, count: int, database_port: int, database_url: Callable[[int], str]) -> None:
        self._cleanup = contextlib.ExitStack()
        self.heads: list[Head] = []
        try:
            for _ in range(count):
                root = Path(tempfile.mkdtemp(prefix="heads-", dir="/tmp"))
                self._cleanup.callback(shutil.rmtree, root, ignore_errors=True)
                proxy = Proxy(database_port)
                self._cleanup.callback(proxy.close)
                head = Head(root, proxy, database_url(proxy.port))
                self._cleanup.callback(head.kill)
                self.heads.append(head)
        except BaseException:
            self._cleanup.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    def start(self) -> None:
        """Start all, and return when one leads and everybody's token is known to it."""
        for head in self.heads:
            head.start()
        for head in self.heads:
            self.until(partial(self._known, head.token), "a token to be known")

    def _known(self, token: str) -> bool:
        try:
            with Client(token=token, urls=self.urls, retry_s=1.0) as client:
                client.status()
        except CorralError:
            return False
        return True

    @property
    def urls(self) -> list[str]:
        """Return where they answer."""
        return [head.url for head in self.heads]

    def leader(self) -> Head:
        """Return the head that leads, waiting for one."""
        found: list[Head] = []

        def look() -> bool:
            found[:] = [head for head in self.heads if head.leads()]
            return bool(found)

        self.until(look, "a leader")
        return found[0]

    def until(self, met: Callable[[], bool], what: str, limit_s: float = READY_S) -> None:
        """Wait until ``met()`` is true. Raises ``TimeoutError``."""
        deadline = time.monotonic() + limit_s
        while not met():
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {limit_s:g} s for {what}")
            time.sleep(POLL_S)


@contextlib.contextmanager
def paused(head: Head) -> Iterator[None]:
    """Stop a head's processes within the block, as a machine that hangs."""
    head.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        head.signal(signal.SIGCONT)
