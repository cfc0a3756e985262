"""The daemon: wires store, engine, controller and API, and runs them in one event loop."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
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
from typing import Any

import uvicorn

import corral
from corral.agent.nodefiles import NodeFiles
from corral.api.app import begin_stop, create_app
from corral.appmaster.core import AppMasterCore
from corral.control.access import digest_of
from corral.control.config import ControlConfig
from corral.control.core import ControlCore
from corral.control.inputs import Administer
from corral.control.pool import ControllerPool, Identity
from corral.control.shell import ControlShell
from corral.engines.local import LocalEngine
from corral.model.errors import CorralError, InsecureBinding, PortTaken, StateUnusable
from corral.model.events import NodeRemoved, TokenIssued
from corral.model.ids import DEFAULT_TENANT, NodeId
from corral.model.tenant import Role, Token
from corral.policy.config import SchedulingConfig
from corral.ports.faults import FaultPoints
from corral.runtime.clock import SteadyClock
from corral.runtime.faults import FileFaults, NoFaults
from corral.runtime.options import DEFAULT_PORT
from corral.runtime.paths import StatePaths
from corral.runtime.settings import Settings, load_settings
from corral.runtime.supervisor import EXIT_CONFIG
from corral.storage import SqliteStore

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
BACKLOG = 2_048
RESERVE_BYTES = 4_096
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
    """Return a listening socket. Raises ``InsecureBinding``, ``PortTaken`` or ``StateUnusable`` (no such address)."""
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
        if port is None and wanted:
            return bind(host, 0, tls=tls, insecure=insecure)
        if isinstance(error, PermissionError):
            raise PortTaken(f"port {wanted} needs more rights", hint="use --port with a number above 1023") from None
        raise PortTaken(
            f"cannot listen on {host}:{wanted}: {error.strerror}", hint="use --port, or --port 0 for any free one"
        ) from None
    listener.listen(BACKLOG)
    return listener


def ensure_token(paths: StatePaths) -> str:
    """Return the local admin secret, made at the first start (mode 0600)."""
    try:
        descriptor = os.open(paths.token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        secret = paths.token.read_text().strip()
        if secret:
            paths.token.chmod(0o600)
            return secret
        descriptor = os.open(paths.token, os.O_WRONLY | os.O_TRUNC)
    secret = f"corral_{secrets.token_urlsafe(32)}"
    with os.fdopen(descriptor, "w") as file:
        file.write(f"{secret}\n")
    return secret


def control_config(settings: Settings) -> ControlConfig:
    """Return the constants of control from the settings."""
    return ControlConfig(
        scheduling=SchedulingConfig(usage_half_life_s=settings.usage_half_life_s),
        node_silent_s=settings.node_silent_s,
        node_lost_s=settings.node_lost_s,
        port_first=settings.port_first,
        port_last=settings.port_last,
        grace_default_s=settings.grace_default_s,
        jobs_max=settings.jobs_max,
    )


class Daemon:
    """One run of the daemon on one state directory."""

    def __init__(self, root: Path) -> None:
        self.paths = StatePaths(root)
        self.options: dict[str, Any] = json.loads(self.paths.pool.read_text())
        self.settings = load_settings(root)
        self.store = SqliteStore(self.paths.store)
        self.stop = asyncio.Event()

    async def run(self) -> None:
        """Run until SIGTERM or until the store fails. Raises ``CorralError``."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop.set)
        keep_reserve(self.paths)
        secret = ensure_token(self.paths)
        listener = self._bind()
        self.store.open()
        try:
            await self._serve(listener, secret)
        finally:
            self.store.close()
            listener.close()

    def _bind(self) -> socket.socket:
        port = self.options["port"]
        if self.options.get("bound_port"):
            port = self.options["bound_port"]
        tls = bool(self.options["tls_cert"])
        return bind(self.options["host"], port, tls=tls, insecure=self.options["insecure"])

    async def _serve(self, listener: socket.socket, secret: str) -> None:
        shell = self._shell()
        self._first_inputs(shell, secret)
        scheme = "https" if self.options["tls_cert"] else "http"
        host, port = listener.getsockname()[:2]
        url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        identity = Identity(corral.__version__, os.getpid(), url, shell.clock.now())
        pool = ControllerPool(shell, self.store, identity)
        server = self._server(pool)
        await shell.engine.start(shell.hear)
        control = asyncio.create_task(shell.run(), name="control")
        serving = asyncio.create_task(server.serve([listener]), name="api")
        stopping = asyncio.create_task(self.stop.wait(), name="stop")
        pruning = asyncio.create_task(self._prune(shell), name="prune")
        await server.ready(serving)
        self._announce(identity, port)
        try:
            await asyncio.wait({control, serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (pruning, stopping):
                task.cancel()
            await self._wind_down(shell, server, control, serving)
        if control.done() and not control.cancelled() and control.exception() is not None:
            raise control.exception()  # type: ignore[misc]

    async def _wind_down(
        self, shell: ControlShell, server: _Server, control: asyncio.Task[None], serving: asyncio.Task[None]
    ) -> None:
        begin_stop(self.app)
        server.should_exit = True
        shell.accepting = False
        shell.feed.close()
        with contextlib.suppress(TimeoutError, asyncio.CancelledError):
            await asyncio.wait_for(serving, 3.0)
        if not control.done():
            control.cancel()
            with contextlib.suppress(asyncio.CancelledError, CorralError):
                await control
        await shell.engine.stop()
        await shell.close()

    def _shell(self) -> ControlShell:
        epoch = self.store.acquire_leadership()
        recovered = self.store.recover()
        core = ControlCore(recovered, control_config(self.settings), AppMasterCore, epoch)
        state = core.book.state
        for tenant, key, job, digest in self.store.idempotency_keys(limit=100_000):
            if f"{tenant}\0{key}" not in state.keys:
                state.remember_key(tenant, key, job, digest or None)  # type: ignore[arg-type]
        engine = LocalEngine(self.paths.engine_socket, self.paths.root, NodeFiles())
        last = recovered.entries[-1].seq if recovered.entries else recovered.snapshot_seq
        return ControlShell(core, self.store, engine, SteadyClock(state.at), self._faults(), last_seq=last)

    def _faults(self) -> FaultPoints:
        directory = self.options["fault_dir"]
        return FileFaults(Path(directory)) if directory else NoFaults()

    def _first_inputs(self, shell: ControlShell, secret: str) -> None:
        state, now = shell.core.book.state, shell.clock.now()
        if all(token.digest != digest_of(secret) for token in state.tokens.values()):
            token = Token(secrets.token_hex(4), digest_of(secret), DEFAULT_TENANT, Role.ADMIN, now, "local")
            shell.tell(Administer(TokenIssued(at=now, token=token, by="local")))
        expected = set(self.options["agents"])
        for name, held in state.held.items():
            if name not in expected and not held.gangs:
                shell.tell(Administer(NodeRemoved(at=now, node=NodeId(name), by="local")))

    def _server(self, pool: ControllerPool) -> _Server:
        self.app = create_app(pool, version=corral.__version__, on_stop=self._end_pool)
        config = uvicorn.Config(
            self.app,
            loop="none",
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=2,
            timeout_keep_alive=75,
            ssl_certfile=self.options["tls_cert"],
            ssl_keyfile=self.options["tls_key"],
        )
        try:
            config.load()
        except (OSError, ssl.SSLError) as error:
            raise StateUnusable(f"the TLS certificate or key cannot be used: {error}") from None
        return _Server(config)

    @staticmethod
    def _end_pool() -> None:
        """Tell the supervisor, whose child this is, to end the pool."""
        os.kill(os.getppid(), signal.SIGTERM)

    async def _prune(self, shell: ControlShell) -> None:
        while True:
            await shell.prune(self.settings.history_retention_s)
            await asyncio.sleep(3_600.0)

    def _announce(self, identity: Identity, port: int) -> None:
        document = {
            "url": identity.url,
            "pid": identity.pid,
            "port": port,
            "started_at": identity.started_at,
            "version": identity.version,
            "tls_cert": self.options["tls_cert"],
        }
        new = self.paths.daemon.with_suffix(".new")
        new.write_text(json.dumps(document))
        new.rename(self.paths.daemon)
        if self.options.get("bound_port") != port:
            self.options["bound_port"] = port
            new = self.paths.pool.with_suffix(".new")
            new.write_text(json.dumps(self.options, indent=2))
            new.rename(self.paths.pool)


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
