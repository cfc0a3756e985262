"""The relay's process: ``python -m corral.serving.relay.main --socket PATH --control PATH``."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import ssl
import tempfile
import time
from pathlib import Path

import msgspec

import corral
from corral.model.routes import RouteLoad
from corral.serving.relay.board import Board, Live, Place
from corral.serving.relay.checks import Checks
from corral.serving.relay.control import (
    LINE_MAX,
    Apply,
    Eject,
    Look,
    Questions,
    Retries,
    Seen,
    question_decoder,
)
from corral.serving.relay.downstream import Caller, Counters, Shared
from corral.serving.relay.upstream import Pool

ORPHAN_S = 600.0
"""A relay whose front end does not come back in so long ends: nobody would tell it of replicas any more."""

VERSION = corral.__version__
log = logging.getLogger(__name__)


class Relay:
    """Serves on two sockets: callers (the proxy) and the front end."""

    def __init__(self, socket: Path, control: Path) -> None:
        self._socket = socket
        self._control = control
        self.board = Board()
        self.counters = Counters()
        self._pools: dict[tuple[str, str, int], Pool] = {}
        self._contexts: dict[str, ssl.SSLContext] = {}
        self._checks = Checks(self.board, self.pool)
        self._heard_at = time.monotonic()

    async def run(self) -> None:
        """Serve until cancelled."""
        loop = asyncio.get_running_loop()
        shared = Shared(self.board, self.pool, self.counters)
        for path in (self._socket, self._control):
            path.unlink(missing_ok=True)
        mask = os.umask(0o177)
        try:
            callers = await loop.create_unix_server(lambda: Caller(shared), str(self._socket), backlog=4096)
            control = await asyncio.start_unix_server(self._talk, str(self._control), limit=LINE_MAX)
        finally:
            os.umask(mask)
        try:
            while time.monotonic() - self._heard_at < ORPHAN_S:  # noqa: ASYNC110 - it waits for silence
                await asyncio.sleep(ORPHAN_S / 10)
        finally:
            callers.close()
            control.close()
            await self.close()

    async def close(self) -> None:
        """Let go of all replicas."""
        await self._checks.close()
        for pool in self._pools.values():
            pool.drop()

    def pool(self, place: Place, live: Live) -> Pool:
        """Return the connections to a replica."""
        backend = live.backend
        key = (backend.name, backend.address, backend.port)
        found = self._pools.get(key)
        if found is None:
            tls = self._context(place) if place.route.traffic.guard == "mtls" else None
            found = self._pools[key] = Pool(backend, tls, place.route.service)
        return found

    def _context(self, place: Place) -> ssl.SSLContext:
        """Return how replicas of a service are told from others, and how they know a front end (mutual TLS)."""
        secrets = place.route.secrets
        found = self._contexts.get(secrets.front_end_pem)
        if found is None:
            found = ssl.create_default_context(cadata=secrets.authority_pem)
            # The library reads keys from files only; this one is gone at once.
            with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
                file.write(secrets.front_end_pem)
                file.flush()
                found.load_cert_chain(file.name)
            self._contexts[secrets.front_end_pem] = found
        return found

    # ---- the front end ---------------------------------------------------------------------------------------------

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            while line := await reader.readline():
                self._heard_at = time.monotonic()
                writer.write(msgspec.json.encode(self._answered(line)) + b"\n")
                await writer.drain()
        writer.close()

    def _answered(self, line: bytes) -> Seen:
        try:
            loads = self._do(question_decoder.decode(line))
        except (msgspec.MsgspecError, UnicodeDecodeError, ssl.SSLError, OSError) as error:
            log.exception("a question of the front end cannot be answered")
            return Seen(error=str(error))
        told = self.counters
        return Seen(loads, time.process_time(), told.chunks, told.requests, told.broken, os.getpid(), VERSION)

    def _do(self, question: Questions) -> tuple[RouteLoad, ...]:
        match question:
            case Apply(table=table, anew=anew):
                if anew:
                    self.board.forgive()
                self.board.apply(table)
                self._forget_pools()
                self._checks.follow()
            case Eject(service=service, backend=backend, on=on):
                self.board.set_ejected(service, backend, on=on)
            case Retries(service=service, on=on):
                self.board.set_retries(service, on=on)
            case Look(services=services):
                return self.board.loads(services)
        return ()

    def _forget_pools(self) -> None:
        there = {
            (live.backend.name, live.backend.address, live.backend.port)
            for place in self.board.places.values()
            for live in place.replicas.values()
        }
        for key in [key for key in self._pools if key not in there]:
            self._pools.pop(key).close()


def main(arguments: list[str] | None = None) -> int:
    """Entry point."""
    import uvloop

    parser = argparse.ArgumentParser(prog="corral-relay")
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--control", type=Path, required=True)
    told = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")

    async def run() -> None:
        task = asyncio.ensure_future(Relay(told.socket, told.control).run())
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await task

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
