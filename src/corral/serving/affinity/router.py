"""Tells the proxy which replica has seen the beginning of a prompt.

The proxy's hook sends ``SERVICE LENGTH`` and a body on a connection of its own; the answer is the name of a replica, or
an empty line: then the proxy chooses.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from importlib.resources import files
from pathlib import Path

import msgspec

from corral.model.ids import ServiceName
from corral.model.routes import Route, RouteLoad, RoutingTable
from corral.model.service import Balance
from corral.policy.serving.balancing import Candidate, PrefixIndex
from corral.policy.serving.prompts import prompt_of

BODY_MAX = 65_536
ASKED_S = 1.0
HOOK = "affinity.lua"


class _Known(msgspec.Struct, eq=False):
    """A service; ``load`` is what the proxy told last, ``since`` how often each replica was chosen after that."""

    route: Route
    index: PrefixIndex
    load: dict[str, int] = {}
    out: frozenset[str] = frozenset()
    since: Counter[str] = msgspec.field(default_factory=Counter)


class AffinityRouter:
    """Serves on a socket of its own."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self._services: dict[ServiceName, _Known] = {}
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Serve. Raises ``OSError``."""
        self.socket.unlink(missing_ok=True)
        mask = os.umask(0o177)
        try:
            self._server = await asyncio.start_unix_server(self._talk, str(self.socket))
        finally:
            os.umask(mask)

    def close(self) -> None:
        """Stop."""
        if self._server is not None:
            self._server.close()

    def apply(self, table: RoutingTable) -> None:
        """Know the services that want it."""
        wanted = {route.service: route for route in table.routes if route.traffic.balance is Balance.PREFIX_AFFINITY}
        for name in [name for name in self._services if name not in wanted]:
            del self._services[name]
        for name, route in wanted.items():
            known = self._services.get(name)
            if known is None:
                self._services[name] = _Known(route, PrefixIndex(), {}, frozenset(), Counter())
                continue
            for gone in {one.name for one in known.route.backends} - {one.name for one in route.backends}:
                known.index.forget(gone)
            known.route = route

    def note(self, load: RouteLoad) -> None:
        """Take in how loaded the replicas of a service are."""
        known = self._services.get(load.service)
        if known is not None:
            known.load = {one.name: one.outstanding for one in load.backends}
            known.out = frozenset(one.name for one in load.backends if one.ejected or not one.up)
            known.since.clear()

    def choose(self, service: str, body: bytes) -> str:
        """Return the name of a replica, empty when the proxy is to choose."""
        known = self._services.get(ServiceName(service))
        if known is None:
            return ""
        candidates = [
            Candidate(one.name, known.load.get(one.name, 0) + known.since[one.name])
            for one in known.route.backends
            if not one.draining and one.name not in known.out
        ]
        if not candidates:
            return ""
        chosen = known.index.choose(prompt_of(body), candidates, known.route.traffic.imbalance_max)
        known.since[chosen.name] += 1
        return chosen.name

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ValueError, asyncio.IncompleteReadError):
            async with asyncio.timeout(ASKED_S):
                service, _, length = (await reader.readline()).decode().strip().partition(" ")
                body = await reader.readexactly(min(int(length), BODY_MAX))
                writer.write(self.choose(service, body).encode() + b"\n")
                await writer.drain()
        writer.close()


def write_hook(folder: Path, socket: Path) -> Path:
    """Write the file that the proxy loads, and return it. Raises ``OSError``, ``ValueError`` for a path with quotes."""
    path = str(socket)
    if set(path) & set('"\\\n'):
        raise ValueError(f"{path!r} cannot be written into the proxy's hook")
    text = files("corral.serving.affinity").joinpath(HOOK).read_text().replace("@SOCKET@", path)
    written = folder / HOOK
    written.write_text(text)
    return written
