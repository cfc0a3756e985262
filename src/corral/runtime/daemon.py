"""The daemon: wires store, engine, controller and API, and runs them in one event loop."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import json
import logging
import os
import secrets
import signal
import socket
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path

import uvicorn
from msgspec.structs import replace

import corral
from corral.api.app import begin_stop, create_app
from corral.api.protocol import BoundedHttp
from corral.appmaster.core import AppMasterCore
from corral.control.access import digest_of
from corral.control.core import ControlCore
from corral.control.files import ControllerFiles
from corral.control.inputs import Administer
from corral.control.pool import ControllerPool, Identity
from corral.control.shell import ControlShell
from corral.model.errors import (
    CorralError,
    IllegalTransition,
    InsecureBinding,
    InvalidField,
    PortTaken,
    StateUnusable,
    Unavailable,
)
from corral.model.events import NodeRemoved, TokenIssued
from corral.model.ids import DEFAULT_TENANT, NodeId
from corral.model.tenant import Role, Token
from corral.ports.faults import FaultPoints
from corral.ports.membership import Membership
from corral.runtime.clock import SteadyClock
from corral.runtime.engines import make_engine
from corral.runtime.faults import FileFaults, NoFaults
from corral.runtime.fencing import with_power_fence
from corral.runtime.filestore import make_files
from corral.runtime.membership import make_membership
from corral.runtime.options import DEFAULT_PORT
from corral.runtime.paths import StatePaths
from corral.runtime.planning import PlannerProcess
from corral.runtime.poolfile import load_pool, save_pool
from corral.runtime.proposers import ProposerProcesses
from corral.runtime.settings import control_config, load_settings
from corral.runtime.solver import SolverProcess
from corral.runtime.supervisor import EXIT_CONFIG
from corral.runtime.tokens import local_token, machine_tokens
from corral.storage import SqliteStore

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
EVERYWHERE = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared, not bound
BACKLOG = 2_048
RESERVE_BYTES = 4_096
SERVED_S = 3.0
APPENDED_S = 10.0
PRUNE_S = 3_600.0
LOOK_S = 1.0
log = logging.getLogger("corral.daemon")


class _Server(uvicorn.Server):
    """Uvicorn without its signal handlers: the daemon has its own."""

    async def ready(self, serving: asyncio.Task[None]) -> None:
        """Return once it accepts requests (or has ended)."""
        while not self.started and not serving.done():  # noqa: ASYNC110 - uvicorn has only this flag
            await asyncio.sleep(0.005)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


def bind(host: str, port: int | None, *, tls: bool, insecure: bool) -> socket.socket:
    """Return a listening socket. Raises ``InsecureBinding``, ``PortTaken`` or ``InvalidField`` (no such address)."""
    if host not in LOOPBACK and not tls and not insecure:
        raise InsecureBinding(
            f"{host} is not loopback and the API would be readable on the way",
            hint="give --tls-cert and --tls-key, or --insecure on a trusted network",
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    wanted = DEFAULT_PORT if port is None else port
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, wanted))
    except OSError as error:
        listener.close()
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise InvalidField(f"cannot listen on {host}: {(error.strerror or '').lower()}", field="--host") from None
        if port is None and wanted:
            return bind(host, 0, tls=tls, insecure=insecure)
        if isinstance(error, PermissionError):
            raise PortTaken(f"port {wanted} needs more rights", hint="use --port with a number above 1023") from None
        raise PortTaken(
            f"cannot listen on {host}:{wanted}: {error.strerror}", hint="use --port, or --port 0 for any free one"
        ) from None
    listener.listen(BACKLOG)
    return listener


def fault_of(task: asyncio.Task[None]) -> BaseException | None:
    """Return what a task that is done died of, as the daemon has to die of it.

    A transition that is illegal now is a bug in memory, not in the journal: the daemon is to be started again, which
    folds the journal anew, and not to be given up as when the journal itself does not fold.
    """
    error = None if task.cancelled() else task.exception()
    return (
        RuntimeError(f"the controller broke its own rules: {error}") if isinstance(error, IllegalTransition) else error
    )


@contextlib.contextmanager
def writing(paths: StatePaths) -> Iterator[None]:
    """Raise ``StateUnusable`` where the state directory cannot be written."""
    try:
        yield
    except OSError as error:
        raise StateUnusable(f"cannot write in {paths.root}: {error.strerror or error}") from error


class Daemon:
    """One run of the daemon on one state directory."""

    def __init__(self, root: Path) -> None:
        self.paths = StatePaths(root)
        self.asked = load_pool(self.paths.pool)
        self.settings = load_settings(root)
        self.store = SqliteStore(self.paths.store)
        self.stop = asyncio.Event()

    async def run(self) -> None:
        """Run until SIGTERM or until the store fails. Raises ``CorralError``."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop.set)
        keep_reserve(self.paths)
        listener = self._bind()
        try:
            self.store.open()
            await self._serve(listener)
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

    async def _serve(self, listener: socket.socket) -> None:
        shell = self._shell()
        self._first_inputs(shell)
        scheme = "https" if self.asked.tls_cert else "http"
        host, port = listener.getsockname()[:2]
        if host in EVERYWHERE:
            host = self.asked.address
        url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        identity = Identity(corral.__version__, os.getpid(), url, shell.clock.now())
        files = make_files(self.asked, self.settings, self.paths, self.store, shell)
        pool = ControllerPool(shell, self.store, identity, PlannerProcess(shell.core.book.config), files)
        with writing(self.paths):
            membership = make_membership(self.asked, self.paths, pool, shell.engine, url)
        server = self._server(pool, files, membership)
        await shell.engine.start(shell.hear)
        control = asyncio.create_task(shell.run(), name="control")
        serving = asyncio.create_task(server.serve([listener]), name="api")
        stopping = asyncio.create_task(self.stop.wait(), name="stop")
        pruning = asyncio.create_task(self._prune(shell, files), name="prune")
        announcing: asyncio.Task[None] | None = None
        try:
            await server.ready(serving)
            with writing(self.paths):
                self._announce(identity, port)
            announcing = asyncio.create_task(self._stay_announced(identity, port), name="announce")
            await asyncio.wait({control, serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (pruning, stopping, announcing):
                if task is not None:
                    task.cancel()
            await self._wind_down(shell, server, control, serving)
            if files is not None:
                files.close()
        for task in (control, serving):
            fault = fault_of(task)
            if fault is not None:
                raise fault

    async def _wind_down(
        self, shell: ControlShell, server: _Server, control: asyncio.Task[None], serving: asyncio.Task[None]
    ) -> None:
        begin_stop(self.app)
        server.should_exit = True
        shell.accepting = False
        shell.feed.close()
        # Answers first, then what is under way to the journal; neither for ever.
        await asyncio.wait({serving}, timeout=SERVED_S)
        shell.end()
        await asyncio.wait({control}, timeout=APPENDED_S)
        for task in (serving, control):
            task.cancel()
        await asyncio.gather(serving, control, return_exceptions=True)
        await shell.engine.stop()
        await shell.close()

    def _shell(self) -> ControlShell:
        epoch = self.store.acquire_leadership()
        recovered = self.store.recover()
        config = control_config(self.settings, leases=self.asked.engine != "local")
        core = ControlCore(recovered, config, AppMasterCore, epoch)
        engine = with_power_fence(make_engine(self.asked, self.paths, epoch), self.settings)
        last = recovered.entries[-1].seq if recovered.entries else recovered.snapshot_seq
        return ControlShell(
            core,
            self.store,
            engine,
            SteadyClock(core.book.state.at),
            self._faults(),
            last_seq=last,
            solver=SolverProcess(config.scheduling),
            proposers=ProposerProcesses(self.paths.jobs, config.scheduling),
        )

    def _faults(self) -> FaultPoints:
        directory = self.asked.fault_dir
        return FileFaults(Path(directory)) if directory else NoFaults()

    def _first_inputs(self, shell: ControlShell) -> None:
        state, now = shell.core.book.state, shell.clock.now()
        known = {token.digest for token in state.tokens.values()}
        with writing(self.paths):
            digest = digest_of(local_token(self.paths, known))
        if digest not in known:
            token = Token(secrets.token_hex(4), digest, DEFAULT_TENANT, Role.ADMIN, now, "local")
            shell.tell(Administer(TokenIssued(at=now, token=token, by="local")))
        if self.asked.role == "head":
            own = next(iter(self.asked.agents), None)
            with writing(self.paths):
                issued = machine_tokens(self.paths, own, {token.digest: token for token in state.tokens.values()}, now)
            for fact in issued:
                shell.tell(Administer(fact))
            # Which machines are nodes is not for this one to say.
            return
        expected = self.asked.agents.keys()
        for name, held in state.held.items():
            if name not in expected and not held.gangs:
                shell.tell(Administer(NodeRemoved(at=now, node=NodeId(name), by="local")))

    def _server(self, pool: ControllerPool, files: ControllerFiles | None, membership: Membership | None) -> _Server:
        self.app = create_app(
            pool, version=corral.__version__, on_stop=self._end_pool, files_=files, membership=membership
        )
        config = uvicorn.Config(
            self.app,
            loop="none",
            http=BoundedHttp,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=2,
            timeout_keep_alive=75,
            ssl_certfile=self.asked.tls_cert,
            ssl_keyfile=self.asked.tls_key,
        )
        try:
            config.load()
        except (OSError, ssl.SSLError) as error:
            raise StateUnusable(f"the TLS certificate or key cannot be used: {error}") from None
        return _Server(config)

    def _end_pool(self) -> None:
        """Tell the supervisor, whose child this is, to end the pool; without one, end alone."""
        with contextlib.suppress(OSError, ValueError):
            if int(self.paths.supervisor_pid.read_text()) == os.getppid():
                os.kill(os.getppid(), signal.SIGTERM)
                return
        self.stop.set()

    async def _prune(self, shell: ControlShell, files: ControllerFiles | None) -> None:
        while True:
            try:
                await shell.prune(self.settings.history_retention_s)
                if files is not None:
                    await files.keep_house(shell.clock.now())
            except CorralError as error:
                log.warning("what is old stays for now: %s", error)
            await asyncio.sleep(PRUNE_S)

    async def _stay_announced(self, identity: Identity, port: int) -> None:
        """Write ``daemon.json`` again where somebody removed it: without it nobody finds the pool."""
        while True:
            await asyncio.sleep(LOOK_S)
            if not self.paths.daemon.exists():
                try:
                    self._announce(identity, port)
                except OSError as error:
                    log.warning("cannot write %s: %s", self.paths.daemon, error)

    def _announce(self, identity: Identity, port: int) -> None:
        document = {
            "url": identity.url,
            "pid": identity.pid,
            "port": port,
            "started_at": identity.started_at,
            "version": identity.version,
            "tls_cert": self.asked.tls_cert,
        }
        new = self.paths.daemon.with_suffix(".new")
        new.write_text(json.dumps(document))
        new.rename(self.paths.daemon)
        if self.asked.bound_port != port:
            self.asked = replace(self.asked, bound_port=port)
            save_pool(self.paths.pool, self.asked)
        self.paths.failure.unlink(missing_ok=True)


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
