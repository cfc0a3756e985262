"""Drives HAProxy by the routing table, keeps it alive, and tells what is seen of it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from corral.model.errors import CorralError, PortTaken, ProxyFault, ProxyRefused
from corral.model.ids import ServiceName
from corral.model.routes import RouteLoad, RoutingTable
from corral.serving.haproxy import certificates, listening
from corral.serving.haproxy.config import ProxyConfig
from corral.serving.haproxy.holding import Holding
from corral.serving.haproxy.ledger import Ledger
from corral.serving.haproxy.process import bound_log, connections_that_fit
from corral.serving.haproxy.render import Desired, Rendered, check_words, render
from corral.serving.haproxy.running import Running
from corral.serving.haproxy.servers import is_address

AGAIN_FIRST_S, AGAIN_MAX_S = 0.05, 1.0
TEND_S = 0.2
AGAIN_EVERY = 5
log = logging.getLogger(__name__)


class Driver:
    """Implements ``ports.serving.Proxy`` over HAProxy.

    The proxy outlives it unless it is closed: the next driver on the same folder takes it over, and nothing is cut.
    """

    def __init__(self, config: ProxyConfig) -> None:
        check_words(str(config.folder))
        self._config = replace(config, connections_max=connections_that_fit(config.connections_max))
        self._running = Running(self._config)
        self._holding = Holding(self._config)
        self._table = RoutingTable(0, "")
        self._ejected: dict[ServiceName, set[str]] = {}
        self._no_retry: set[ServiceName] = set()
        self._left_out: dict[ServiceName, str] = {}
        self._addresses: dict[str, str] = {}
        self._ports_taken: frozenset[int] = frozenset()
        self._certificate = b""
        self._expires_at = 0.0
        self._ledger = Ledger()
        self._problems: dict[str, str] = {}
        self._turn = asyncio.Lock()
        self._works: list[asyncio.Task[None]] = []

    @property
    def problem(self) -> str:
        """Return what is wrong, for people; empty when all is well."""
        return "; ".join(text for _, text in sorted(self._problems.items()) if text)

    async def start(self) -> None:
        """Start HAProxy, or take over the one that runs; keep it alive from now on.

        Raises ``PortTaken``, ``CertificateInvalid``, ``ProxyRefused``, ``ProxyFault``, ``DependencyMissing``.
        """
        self._config.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        async with self._turn:
            if self._config.tls is not None:
                self._certificate, self._expires_at = certificates.load(self._config.tls, time.time())
            await self._running.adopt()
            await self._serve()
            await self._try("hold", self._holding.start)
        self._works = [asyncio.create_task(work) for work in (self._keep(), self._tend(), self._holding.keep())]

    async def apply(self, table: RoutingTable) -> None:
        """Serve by a table from now on. What cannot be done is in ``problem``; what served before goes on then."""
        async with self._turn:
            self._table = table
            names = {route.service: {backend.name for backend in route.backends} for route in table.routes}
            self._ejected = {name: some & names[name] for name, some in self._ejected.items() if name in names}
            self._no_retry &= names.keys()
            self._left_out.clear()
            self._ledger.forget(names)
            await self._serve_if_started()

    async def loads(self) -> tuple[RouteLoad, ...]:
        """Return what is seen of the services whose requests go from the proxy to replicas straight.

        Raises ``ProxyFault`` while there is no proxy.
        """
        async with self._turn:
            await self._count()
        return tuple(
            self._ledger.load(route, frozenset(self._ejected.get(route.service, ())))
            for route in self._table.routes
            if not (route.relayed and self._config.relay is not None)
        )

    async def set_ejected(self, service: ServiceName, backend: str, *, on: bool) -> None:
        """Give a backend no requests, or requests again."""
        async with self._turn:
            names = self._ejected.setdefault(service, set())
            (names.add if on else names.discard)(backend)
            await self._serve_if_started()

    async def set_retries(self, service: ServiceName, *, on: bool) -> None:
        """Send nothing a second time, or do again. A connection that fails is tried elsewhere all the same."""
        async with self._turn:
            (self._no_retry.discard if on else self._no_retry.add)(service)
            await self._serve_if_started()

    async def close(self) -> None:
        """End HAProxy: what is under way is cut."""
        await self._rest()
        await self._running.stop()
        await self._holding.stop()

    async def leave(self) -> None:
        """Let go of HAProxy: it goes on, for the next driver."""
        await self._rest()
        self._running.lost()
        self._holding.let_go()

    async def _rest(self) -> None:
        works, self._works = self._works, []
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)

    # ---- bringing about --------------------------------------------------------------------------------------------

    async def _serve_if_started(self) -> None:
        if self._works:
            await self._try("routes", self._serve)

    async def _try(self, what: str, work: Callable[[], Awaitable[None]]) -> bool:
        """Do something; what fails is a problem from then on, until it is done."""
        try:
            await work()
        except (CorralError, OSError) as error:
            said = _said(error)
            if self._problems.get(what) != said:
                log.warning("%s", said)
            self._problems[what] = said
            return False
        self._problems[what] = ""
        return True

    async def _serve(self) -> None:
        """Bring the proxy to what is desired; leave out the services that it refuses."""
        await self._resolve()
        self._find_ports()
        while True:
            rendered = render(self._config, self._desired())
            said = [f"service {name} is left out: {why}" for name, why in sorted(self._left_out.items())]
            self._problems["services"] = "; ".join([*rendered.problems, *said])
            if self._running.master is not None and not self._running.does(rendered):
                # An idle process is gone as soon as another one has followed it, with all that it counted.
                with contextlib.suppress(ProxyFault):
                    await self._count()
            try:
                complaints = await self._running.bring_to(rendered)
            except ProxyRefused as refused:
                self._leave_out(rendered, refused)
            else:
                self._problems["commands"] = "; ".join(complaints)
                return

    def _desired(self) -> Desired:
        return Desired(
            self._table,
            {service: frozenset(names) for service, names in self._ejected.items()},
            frozenset(self._no_retry),
            self._addresses,
            self._ports_taken,
            frozenset(self._left_out),
            self._certificate,
        )

    def _leave_out(self, rendered: Rendered, refused: ProxyRefused) -> None:
        """Take out the services whose lines were refused; raise where it was a line that all share."""
        named = {ServiceName(rendered.lines[line - 1]) for line in refused.lines if line <= len(rendered.lines)}
        if not named or "" in named:
            raise refused
        for service in named:
            self._left_out[service] = _said(refused)

    async def _resolve(self) -> None:
        """Find the addresses of hosts: servers that are added to a running proxy are not looked up by it."""
        hosts = {backend.address for route in self._table.routes for backend in route.backends}
        hosts = {host for host in hosts if not is_address(host)}
        unknown = []
        for host in sorted(hosts - self._addresses.keys()):
            try:
                found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
            except OSError:
                unknown.append(f"the host {host} of a replica has no address here")
            else:
                self._addresses[host] = str(found[0][4][0])
        self._problems["hosts"] = "; ".join(unknown)

    def _find_ports(self) -> None:
        """Find out which ports that services want are not to be had."""
        taken, said = set(), []
        owners: dict[int, ServiceName] = {self._config.port: ServiceName("")}
        for route in self._table.routes:
            port = route.traffic.listen
            if port is None:
                continue
            owner = owners.setdefault(port, route.service)
            if owner != route.service:
                whose = f"service {owner}" if owner else "the front end"
                said.append(_said(PortTaken(f"port {port} of service {route.service} is that of {whose}")))
                if not owner:
                    taken.add(port)
            elif port not in self._running.ports and (why := listening.hindrance(self._config.address, port)):
                taken.add(port)
                said.append(_said(PortTaken(f"port {port} of service {route.service} {why}")))
        self._ports_taken = frozenset(taken)
        self._problems["ports"] = "; ".join(said)

    # ---- keeping ---------------------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        """Start the proxy again as soon as it ends."""
        pause_s = 0.0
        while True:
            master = self._running.master
            if master is not None:
                began = time.monotonic()
                await master.ended()
                log.warning("the proxy has ended; it is started again")
                pause_s = 0.0 if time.monotonic() - began > AGAIN_MAX_S else max(AGAIN_FIRST_S, pause_s)
            await asyncio.sleep(pause_s)
            async with self._turn:
                if self._running.master is master:
                    self._running.lost()
                if self._running.master is None and not await self._try("proxy", self._start_again):
                    pause_s = min(AGAIN_MAX_S, max(AGAIN_FIRST_S, pause_s * 2))

    async def _start_again(self) -> None:
        try:
            await self._serve()
        except ProxyRefused:
            # What is desired now was never taken: what served last goes on.
            if self._running.good is None:
                raise
            await self._running.bring_to(self._running.good)

    async def _tend(self) -> None:
        """Remove servers that are done, follow the certificate, try again what failed."""
        turn = 0
        while True:
            await asyncio.sleep(TEND_S)
            turn += 1
            async with self._turn:
                if not self._running.leaving:
                    self._problems["leaving"] = ""
                elif self._running.master is not None:
                    await self._try("leaving", self._remove)
                if turn % AGAIN_EVERY == 0:
                    bound_log(self._config.folder)
                    renewed = self._follow_certificate()
                    if renewed or any(self._problems.get(what) for what in ("routes", "hosts", "ports", "commands")):
                        await self._try("routes", self._serve)

    async def _remove(self) -> None:
        await self._count()
        rows = await self._running.rows()
        await self._running.remove(rows.get(self._running.worker, {}))
        if not self._running.leaving:
            # One that left to come back at another place is missing now.
            await self._serve()

    async def _count(self) -> None:
        if self._running.master is None:
            raise ProxyFault("the proxy does not run at the moment")
        self._ledger.note(self._running.worker, await self._running.rows())

    def _follow_certificate(self) -> bool:
        """Return whether another certificate is to be shown; a bad new one is a problem, and the old one stays."""
        tls, now = self._config.tls, time.time()
        if tls is None:
            return False
        try:
            certificate, expires_at = certificates.load(tls, now)
        except CorralError as error:
            self._problems["certificate"] = _said(error)
            return False
        self._problems["certificate"] = certificates.expiry(tls, expires_at, now)
        renewed = certificate != self._certificate
        self._certificate, self._expires_at = certificate, expires_at
        return renewed


def _said(error: CorralError | OSError) -> str:
    return f"{error.code}: {error}" if isinstance(error, CorralError) else str(error)
