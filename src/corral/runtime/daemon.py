"""The daemon: wires store, engine, controller and API, and runs them in one event loop."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

import corral
from corral.api.app import begin_stop, create_app, serve_pool
from corral.api.elsewhere import Elsewhere
from corral.control.access import digest_of
from corral.control.pool import Identity
from corral.model.errors import (
    CorralError,
    IllegalTransition,
    NotLeader,
    PortTaken,
    StoreAway,
    StoreConflict,
    Unavailable,
)
from corral.model.report import HeadReport
from corral.ports.leadership import Head
from corral.runtime.leading.announcing import Announcement, certificate_of
from corral.runtime.leading.campaign import Campaign, place_of
from corral.runtime.leading.places import Places
from corral.runtime.leading.serving import Server, bind, make_server
from corral.runtime.leading.term import Term, writing
from corral.runtime.machines.tokens import new_token, read_token
from corral.runtime.paths import StatePaths
from corral.runtime.poolfile import load_pool
from corral.runtime.settings import load_settings
from corral.runtime.supervisor import EXIT_CONFIG
from corral.storage import PostgresStore, SqliteStore, SqlStore

EVERYWHERE = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared, not bound
RESERVE_BYTES = 4_096
SERVED_S = 3.0
APPEAR_S = 3.0
LOOK_S = 1.0
DOUBT_S = 10.0
OPEN_AGAIN_S = 0.5
log = logging.getLogger("corral.daemon")


def fault_of(task: asyncio.Task[None]) -> BaseException | None:
    """Return what a task that is done died of, as the daemon has to die of it.

    A transition that is illegal now is a bug in memory, not in the journal: the daemon is to be started again, which
    folds the journal anew, and not to be given up as when the journal itself does not fold.
    """
    error = None if task.cancelled() else task.exception()
    return (
        RuntimeError(f"the controller broke its own rules: {error}") if isinstance(error, IllegalTransition) else error
    )


class Daemon:
    """One run of the daemon on one state directory.

    With a store of its own it leads from its start. Of those that share a database one leads; the others stand by, and
    their API tells where the leader answers. Who is deposed stands by again.
    """

    def __init__(self, root: Path) -> None:
        self.paths = StatePaths(root)
        self.asked = load_pool(self.paths.pool)
        self.settings = load_settings(root)
        self.store: SqlStore = PostgresStore(self.asked.store) if self.asked.store else SqliteStore(self.paths.store)
        self.shared = self.asked.store is not None
        self.stop = asyncio.Event()
        self.heads: tuple[Head, ...] = ()
        self._announced = Announcement(self.paths, self.asked)
        self._campaign: Campaign | None = None

    async def run(self) -> None:
        """Run until SIGTERM or until the store fails. Raises ``CorralError``."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop.set)
        keep_reserve(self.paths)
        with only_daemon(self.paths):
            listener = self._bind()
            try:
                if self.shared:
                    await self._stand_by(listener)
                else:
                    self.store.open()
                    await self._rule(listener)
            finally:
                self.store.close()
                listener.close()

    def _bind(self) -> socket.socket:
        asked = self.asked
        tls = asked.tls_cert is not None
        if asked.bound_port is None:
            return bind(asked.host, asked.port, tls=tls, insecure=asked.insecure)
        # A restart: clients know this port. Somebody else may hold it for a moment.
        try:
            return bind(asked.host, asked.bound_port, tls=tls, insecure=asked.insecure)
        except PortTaken as error:
            if asked.port:
                raise Unavailable(error.refusal.message, hint="the daemon tries again") from None
            log.warning("%s; taking another one", error.refusal.message)
            return bind(asked.host, 0, tls=tls, insecure=asked.insecure)

    def _identity(self, listener: socket.socket, now: float) -> Identity:
        host, port = listener.getsockname()[:2]
        known_as = self.asked.address if host in EVERYWHERE else host
        scheme = "https" if self.asked.tls_cert else "http"
        url = f"{scheme}://{f'[{known_as}]' if ':' in known_as else known_as}:{port}"
        return Identity(corral.__version__, os.getpid(), url, now)

    # ---- one controller alone --------------------------------------------------------------------------------------

    async def _rule(self, listener: socket.socket) -> None:
        """Lead until told to stop or until the controller cannot go on."""
        term = self._term(self.store.acquire_leadership())
        identity = self._identity(listener, term.shell.clock.now())
        term.serve(identity)
        server = self._server()
        self._serve(term)
        control = await term.start()
        serving = asyncio.create_task(server.serve([listener]), name="api")
        stopping = asyncio.create_task(self.stop.wait(), name="stop")
        announcing: asyncio.Task[None] | None = None
        try:
            await server.ready(serving)
            with writing(self.paths):
                self._announced.write(identity, self.heads)
            announcing = asyncio.create_task(self._announced.keep(identity, lambda: self.heads), name="announce")
            await asyncio.wait({control, serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await ended(stopping, announcing)
            await self._wind_down(term, server, serving)
        for task in (control, serving):
            fault = fault_of(task)
            if fault is not None:
                raise fault

    async def _wind_down(self, term: Term | None, server: Server, serving: asyncio.Task[None]) -> None:
        begin_stop(self.app)
        server.should_exit = True
        if term is not None:
            term.retire()
        # Answers first, then what is under way to the journal; neither for ever.
        await asyncio.wait({serving}, timeout=SERVED_S)
        await ended(serving)
        if term is not None:
            await term.end()

    def _term(self, epoch: int) -> Term:
        return Term(self.store, self.asked, self.paths, self.settings, epoch)

    # ---- one of several --------------------------------------------------------------------------------------------

    async def _stand_by(self, listener: socket.socket) -> None:
        """Serve, and lead whenever elected, until told to stop or until the store refuses for good."""
        identity = self._identity(listener, time.time())
        server = self._server()
        serving = asyncio.create_task(server.serve([listener]), name="api")
        stopping = asyncio.create_task(self.stop.wait(), name="stop")
        leading = asyncio.create_task(self._campaigns(identity), name="campaigns")
        announcing: asyncio.Task[None] | None = None
        try:
            await server.ready(serving)
            with writing(self.paths):
                self._announced.write(identity, self.heads)
            announcing = asyncio.create_task(self._announced.keep(identity, lambda: self.heads), name="announce")
            await asyncio.wait({leading, serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await ended(stopping, announcing)
            begin_stop(self.app)
            server.should_exit = True
            # The lead first: the next one need not wait until the last client here has gone.
            await ended(leading)
            await asyncio.wait({serving}, timeout=SERVED_S)
            await ended(serving)
        for task in (leading, serving):
            fault = fault_of(task)
            if fault is not None:
                raise fault

    def _leader(self) -> str:
        return self._campaign.leader if self._campaign is not None else ""

    async def _campaigns(self, identity: Identity) -> None:
        """Campaign and lead, again and again. Raises what the store refuses for good."""
        with writing(self.paths):
            secret = read_token(self.paths) if self.paths.token.exists() else new_token(self.paths)
        head = Head(
            place_of(self.paths.root),
            socket.gethostname(),
            identity.url,
            identity.version,
            digest_of(secret),
            certificate_of(self.asked.tls_cert),
        )
        await self._opened()
        while True:
            campaign = self._campaign = Campaign(self.store.leaders, head.place, identity.url)
            running = asyncio.create_task(campaign.run(), name="campaign")
            appearing = asyncio.create_task(self._appear(head, None), name="appear")
            try:
                elected = asyncio.create_task(campaign.elected.wait())
                await asyncio.wait({running, elected}, return_when=asyncio.FIRST_COMPLETED)
                await ended(elected, appearing)
                if campaign.elected.is_set():
                    await self._lead(campaign, running, identity, head)
                if running.done():
                    running.result()
            finally:
                await ended(running, appearing)
                await campaign.resign()
            # Whatever ended the term, others come first.
            await asyncio.sleep(OPEN_AGAIN_S)

    async def _opened(self) -> None:
        """Open the store, however long the database is away."""
        told = False
        while True:
            try:
                await asyncio.to_thread(self.store.open)
            except StoreAway as error:
                if not told:
                    log.warning("%s; waiting for it", error)
                told = True
                await asyncio.sleep(OPEN_AGAIN_S)
            else:
                return

    async def _lead(self, campaign: Campaign, running: asyncio.Task[None], identity: Identity, head: Head) -> None:
        """Lead until deposed. Returns then, and when the database went away before the state was read."""
        try:
            term = await asyncio.to_thread(self._term, campaign.epoch)
        except (StoreAway, StoreConflict) as error:
            log.warning("the state could not be read: %s", error)
            return
        if not campaign.epoch:
            await term.end()
            return
        term.shell.campaign_away_s = campaign.away_s
        term.serve(replace(identity, started_at=term.shell.clock.now()))
        try:
            control = await term.start(campaign.valid)
        except (StoreAway, StoreConflict) as error:
            log.warning("the term could not begin: %s", error)
            await term.end()
            return
        self._serve(term)
        appearing = asyncio.create_task(self._appear(head, term), name="appear")
        doubting = asyncio.create_task(self._doubt(campaign, term), name="doubt")
        try:
            await asyncio.wait({control, running}, return_when=asyncio.FIRST_COMPLETED)
            if not control.done():
                term.shell.depose(Elsewhere(self._leader).reason())
        finally:
            serve_pool(self.app, Elsewhere(self._leader))
            await ended(appearing, doubting)
            term.retire()
            await term.end()
        fault = fault_of(control)
        if fault is not None and not isinstance(fault, NotLeader | StoreConflict | StoreAway):
            raise fault

    async def _doubt(self, campaign: Campaign, term: Term) -> None:
        """While nobody knows whether another one leads: let those that wait here look around from time to time."""
        since: float | None = None
        while True:
            await asyncio.sleep(LOOK_S)
            now = time.monotonic()
            since = None if campaign.valid() else now if since is None else since
            if since is not None and now - since > DOUBT_S:
                self._serve(term)
                since = now

    async def _appear(self, head: Head, term: Term | None) -> None:
        """Say from time to time that this head is there, and learn of the others."""
        places = Places(self.paths, self.asked, head.url, self.store.leaders)
        while True:
            try:
                self.heads = await asyncio.to_thread(self.store.leaders.appear, head)
                if term is not None:
                    term.pool.heads = tuple(
                        HeadReport(known.name, known.url, known.place == head.place, known.seen_s)
                        for known in self.heads
                    )
                    await term.know_heads(self.heads)
                else:
                    await asyncio.to_thread(places.follow, self.heads, self._leader())
            except (CorralError, OSError) as error:
                log.info("the heads are not known for now: %s", error)
            await asyncio.sleep(APPEAR_S)

    # ---- the API ---------------------------------------------------------------------------------------------------

    def _server(self) -> Server:
        """Return a server that tells where the leader is, until a term is served."""
        self.app = create_app(Elsewhere(self._leader), version=corral.__version__, on_stop=self._end_pool)
        return make_server(self.app, self.asked.tls_cert, self.asked.tls_key)

    def _serve(self, term: Term) -> None:
        serve_pool(self.app, term.pool, term.files, term.membership, term.services)

    def _end_pool(self) -> None:
        """Tell the supervisor, whose child this is, to end the pool; without one, end alone."""
        with contextlib.suppress(OSError, ValueError):
            if int(self.paths.supervisor_pid.read_text()) == os.getppid():
                os.kill(os.getppid(), signal.SIGTERM)
                return
        self.stop.set()


@contextlib.contextmanager
def only_daemon(paths: StatePaths) -> Iterator[None]:
    """Hold the lock of the state directory's only daemon. Raises ``Unavailable`` while another one lives."""
    with writing(paths):
        file = paths.daemon_lock.open("a")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Unavailable(f"another daemon lives on {paths.root}", hint="it ends, or is to be ended") from None
        yield


async def ended(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel tasks and wait until they have ended."""
    living = [task for task in tasks if task is not None]
    for task in living:
        task.cancel()
    await asyncio.gather(*living, return_exceptions=True)


def main(arguments: list[str] | None = None) -> int:
    """Entry point: ``python -m corral.runtime.daemon --state-dir DIR``."""
    parser = argparse.ArgumentParser(prog="corral-daemon")
    parser.add_argument("--state-dir", type=Path, required=True)
    root = parser.parse_args(arguments).state_dir
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    paths = StatePaths(root)
    try:
        run_loop(Daemon(root))
    except CorralError as error:
        log.error("%s: %s", error.code, error)  # noqa: TRY400 - expected: one line, no traceback
        fatal = not error.retryable
        tell_failure(paths, {"code": error.code, "message": str(error), "fatal": fatal})
        sys.stderr.flush()
        return EXIT_CONFIG if fatal else 1
    return 0


def keep_reserve(paths: StatePaths) -> None:
    """Keep room on the disk for the reason of a failure: a full disk takes nothing new."""
    with contextlib.suppress(OSError):
        paths.reserve.write_bytes(b" " * RESERVE_BYTES)


def tell_failure(paths: StatePaths, failure: dict[str, object]) -> None:
    """Leave the reason of a failure for whoever looks next: in the reserve, else in a new file."""
    document = json.dumps(failure).encode().ljust(RESERVE_BYTES)
    with contextlib.suppress(OSError):
        try:
            with paths.reserve.open("r+b") as file:
                file.write(document)
            paths.reserve.rename(paths.failure)
        except FileNotFoundError:
            paths.failure.write_bytes(document)


def run_loop(daemon: Daemon) -> None:
    """Run a daemon on uvloop."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(daemon.run())


if __name__ == "__main__":
    raise SystemExit(main())
