"""Serve an application with a real uvicorn in a thread of its own."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
import uvloop
from fastapi import FastAPI

from corral.api.app import begin_stop, create_app
from corral.api.protocol import BoundedHttp
from corral.ports.pool import Pool
from tests.unit.api.memory_pool import MemoryPool
from tests.waiting import wait_until


class Served:
    """A pool that is being served."""

    def __init__(self, app: FastAPI, url: str, loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
        self.app = app
        self.url = url
        self.stop = stop
        self._loop = loop

    @property
    def pool(self) -> MemoryPool:
        """Return the pool that answers."""
        pool: MemoryPool = self.app.state.pool
        return pool

    def use(self, pool: MemoryPool) -> None:
        """Let another pool answer from now on."""
        self.app.state.pool = pool

    def do(self, act: Callable[[], object]) -> None:
        """Run ``act`` in the server's event loop and wait for it."""

        async def acting() -> None:
            act()

        asyncio.run_coroutine_threadsafe(acting(), self._loop).result(10)


@contextmanager
def served(pool: MemoryPool, port: int = 0, on_stop: Callable[[], None] | None = None) -> Iterator[Served]:
    """Serve ``pool`` on loopback; ``stop`` ends it as the daemon does."""
    checked: Pool = pool
    app = create_app(checked, version="1.2.3", on_stop=on_stop)
    listening = socket.create_server(("127.0.0.1", port))
    server = uvicorn.Server(
        uvicorn.Config(app, http=BoundedHttp, log_level="warning", access_log=False, lifespan="off")
    )
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        await server.serve([listening])

    def run() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve())

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: server.started, what="the server")

    def stop() -> None:
        loop = loops[0]
        if thread.is_alive():
            loop.call_soon_threadsafe(begin_stop, app)
            server.should_exit = True
            thread.join(20)
        listening.close()
        assert not thread.is_alive(), "the server did not stop"

    try:
        yield Served(app, f"http://127.0.0.1:{listening.getsockname()[1]}", loops[0], stop)
    finally:
        stop()
