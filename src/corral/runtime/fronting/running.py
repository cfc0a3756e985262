"""What runs in a front end's process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import start_http_server

import corral
from corral.ports.serving import RouteSource
from corral.runtime.fronting.frontfile import FrontFile, Ready, load_ready, save_ready
from corral.runtime.fronting.source import PoolSource
from corral.runtime.paths import StatePaths
from corral.serving.access.reader import AccessLog
from corral.serving.affinity.router import AffinityRouter, write_hook
from corral.serving.frontend import Around, FrontEnd, Identity
from corral.serving.haproxy.config import ProxyConfig, Tls
from corral.serving.haproxy.driver import Driver
from corral.serving.relay.handle import RelayProcess
from corral.serving.vrrp.keeper import Keeper

log = logging.getLogger(__name__)


def source_of(paths: StatePaths, front: FrontFile) -> PoolSource:
    """Return where its routes come from: asked as an admin on a head, else with its own token. Raises ``OSError``."""
    token = Path(front.token_file).read_text().strip() if front.token_file else None
    return PoolSource(paths.root, token)


@contextlib.contextmanager
def metrics_served(front: FrontFile, access: AccessLog) -> Iterator[None]:
    """Answer Prometheus meanwhile. Without the port all else goes on."""
    if not front.metrics_port:
        yield
        return
    try:
        server, _ = start_http_server(front.metrics_port, front.metrics_host, registry=access.metrics.registry)
    except OSError as error:
        log.warning("no metrics at port %s: %s", front.metrics_port, error.strerror)
        yield
        return
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


class Ending:
    """Whether the proxies end with this process: when its supervisor stops it, and in no other case."""

    def __init__(self) -> None:
        self._parent = os.getppid()
        self._told = False

    def tell(self) -> None:
        """Take note of SIGTERM. It also comes when the supervisor dies: then the proxies go on."""
        self._told = os.getppid() == self._parent

    def __call__(self) -> bool:
        """Return whether they end."""
        return self._told


async def serve(paths: StatePaths, front: FrontFile, source: RouteSource, ending: Ending) -> None:
    """Serve until cancelled. Raises what a proxy cannot start for."""
    folder = paths.front_folder
    folder.mkdir(mode=0o700, exist_ok=True)
    relay = RelayProcess(paths.run, paths.logs / "relay.log")
    affinity = AffinityRouter(paths.run / "affinity.sock")
    access = AccessLog(paths.run / "access.sock", paths.logs / "access.log")
    proxy = Driver(
        ProxyConfig(
            folder=folder,
            address=front.host,
            port=front.port,
            tls=Tls(Path(front.tls_cert), Path(front.tls_key)) if front.tls_cert and front.tls_key else None,
            relay=relay.socket,
            access_log=access.socket,
            affinity=write_hook(folder, affinity.socket),
            connections_max=front.connections_max,
        )
    )
    await affinity.start()
    await access.start()
    keeper = Keeper(front.vip, folder / "vrrp", paths.logs / "keepalived.log") if front.vip is not None else None

    def well(answers: bool) -> None:  # noqa: FBT001 - what a front end tells is yes or no
        if keeper is not None:
            keeper.tell(well=answers)
        if answers and load_ready(paths) != ready:
            save_ready(paths, ready)

    ready = Ready(os.getpid(), front.url)
    end = FrontEnd(
        Identity(front.name, front.url, corral.__version__),
        source,
        (relay, proxy),
        paths.front_folder / "routes.json",
        watchers=(affinity, access),
        around=Around(keeper.holds if keeper is not None else tuple, well, access.latencies, ending),
    )
    try:
        with metrics_served(front, access):
            async with asyncio.TaskGroup() as group:
                group.create_task(end.run())
                if keeper is not None:
                    group.create_task(keeper.run())
    finally:
        access.close()
        affinity.close()


async def until_told(paths: StatePaths, front: FrontFile) -> None:
    """Serve until SIGTERM or SIGINT; on SIGHUP the proxies go on, for the next front end.

    Raises what a proxy cannot start for, and ``OSError``.
    """
    ending = Ending()
    task = asyncio.ensure_future(serve(paths, front, source_of(paths, front), ending))

    def end() -> None:
        ending.tell()
        task.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    loop.add_signal_handler(signal.SIGHUP, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task
