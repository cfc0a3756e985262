"""A front end: follows the routing table, drives proxies by it, ejects outliers, bounds retries, tells what it sees.

The last table is kept on disk. Everything but following works without any controller.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from corral.model.errors import CorralError
from corral.model.ids import ServiceName
from corral.model.routes import FrontEndReport, RouteLoad, RoutingTable
from corral.policy.serving.budget import RetryBudget
from corral.policy.serving.loads import merged
from corral.policy.serving.outliers import Count, Outliers
from corral.ports.serving import Proxy, RouteSource

FOLLOW_S = 20.0
WATCH_S = 0.1
REPORT_S = 1.0
AGAIN_FIRST_S = 0.05
AGAIN_MAX_S = 1.0
log = logging.getLogger(__name__)


class Watched(msgspec.Struct):
    """What is watched of one service: who fails, and how much was sent a second time."""

    outliers: Outliers
    budget: RetryBudget
    requests: int = 0
    retries: int = 0
    retrying: bool = True


class Identity(msgspec.Struct, frozen=True):
    """What a front end says of itself; ``address`` is the URL at which it serves."""

    name: str
    address: str
    version: str = ""


class Around(msgspec.Struct, frozen=True):
    """What is around a front end.

    ``holds`` tells which virtual addresses the machine has now, ``latencies`` the median and 99th percentile that
    callers of a service have seen. ``on_well`` is told ten times a second whether the proxy answers. At the end the
    proxies end as well if ``ends`` says so, else they go on for the next front end.
    """

    holds: Callable[[], tuple[str, ...]] = tuple
    on_well: Callable[[bool], None] = lambda _: None
    latencies: Callable[[ServiceName], tuple[float | None, float | None]] = lambda _: (None, None)
    ends: Callable[[], bool] = lambda: True


class Watcher(Protocol):
    """Something beside the proxies that is told routes and loads."""

    def apply(self, table: RoutingTable) -> None:
        """Take in a table."""

    def note(self, load: RouteLoad) -> None:
        """Take in how a service stands."""


class FrontEnd:
    """Runs until cancelled. The last of the proxies takes callers in, the others help it."""

    def __init__(
        self,
        identity: Identity,
        source: RouteSource,
        proxies: Sequence[Proxy],
        kept: Path,
        *,
        watchers: Sequence[Watcher] = (),
        around: Around | None = None,
    ) -> None:
        self.table = RoutingTable(0, "")
        self._identity = identity
        self._source = source
        self._proxies = proxies
        self._kept = kept
        self._watchers = watchers
        self._around = around if around is not None else Around()
        self._problems: dict[int, str] = {}
        self._refused = ""
        self._watched: dict[ServiceName, Watched] = {}
        self._loads: tuple[RouteLoad, ...] = ()
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Serve: by the kept table at once, by newer ones as they come. Raises what a proxy cannot start for."""
        self.table = load_table(self._kept)
        for watcher in self._watchers:
            watcher.apply(self.table)
        for proxy in self._proxies:
            if self.table.digest:
                # Without a kept table a proxy that goes on serves by what it has.
                await proxy.apply(self.table)
            try:
                await proxy.start()
            except CorralError as error:
                if proxy is self._proxies[-1]:
                    raise
                log.warning("%s", error)
        try:
            await _all(self._follow(), self._watch(), self._tell())
        finally:
            ends = self._around.ends()
            for proxy in reversed(self._proxies):
                with contextlib.suppress(CorralError, OSError):
                    await (proxy.close() if ends else proxy.leave())

    # ---- routes ----------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        pause_s = AGAIN_FIRST_S
        while True:
            try:
                table = await self._source.table(self.table.digest or None, FOLLOW_S)
            except CorralError as error:
                log.info("no routes for now: %s", error)
                await asyncio.sleep(pause_s)
                pause_s = min(AGAIN_MAX_S, pause_s * 2)
                continue
            pause_s = AGAIN_FIRST_S
            if table.epoch < self.table.epoch:
                self._refused = f"routes of epoch {table.epoch} are refused: those of {self.table.epoch} are known"
                log.warning("%s", self._refused)
                await asyncio.sleep(AGAIN_MAX_S)
            elif table.digest != self.table.digest or table.epoch != self.table.epoch:
                await self._take(table)

    async def _take(self, table: RoutingTable) -> None:
        changed = table.digest != self.table.digest
        self.table, self._refused = table, ""
        try:
            save_table(self._kept, table)
        except OSError as error:
            log.warning("the routes cannot be kept: %s", error)
        if changed:
            for watcher in self._watchers:
                watcher.apply(table)
            for proxy in self._proxies:
                await proxy.apply(table)
        self._wake.set()

    # ---- watching --------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            began = time.monotonic()
            await self.look(began)
            try:
                self._around.on_well(not self._problems.get(len(self._proxies) - 1))
            except OSError as error:
                log.warning("nobody can be told whether this front end is well: %s", error)
            await asyncio.sleep(max(0.0, WATCH_S - (time.monotonic() - began)))

    async def look(self, now: float) -> None:
        """Look at all proxies once, eject and bring back, stop and allow retries. One's trouble is not the others'."""
        seen: list[RouteLoad] = []
        for number, proxy in enumerate(self._proxies):
            try:
                seen += [await self._look_at(now, proxy, load) for load in await proxy.loads()]
                self._problems[number] = ""
            except (CorralError, OSError) as error:
                if self._problems.get(number) != str(error):
                    log.warning("a proxy cannot be looked at: %s", error)
                self._problems[number] = str(error)
        waited = sum(load.waiting for load in self._loads)
        self._loads = merged(seen)
        for load in self._loads:
            for watcher in self._watchers:
                watcher.note(load)
        known = {load.service for load in self._loads}
        for gone in [name for name in self._watched if name not in known]:
            del self._watched[gone]
        if sum(load.waiting for load in self._loads) > waited:
            self._wake.set()

    async def _look_at(self, now: float, proxy: Proxy, load: RouteLoad) -> RouteLoad:
        watched = self._watched.get(load.service)
        if watched is None:
            watched = self._watched[load.service] = Watched(Outliers(), RetryBudget(), load.requests, load.retries)
        before = watched.outliers.ejected
        counts = [Count(one.name, one.requests, one.errors, one.up) for one in load.backends]
        ejected = watched.outliers.look(now, counts)
        for name in before ^ ejected:
            log.warning("%s of %s is %s", name, load.service, "ejected" if name in ejected else "back")
            await proxy.set_ejected(load.service, name, on=name in ejected)
        watched.budget.note(
            now,
            requests=max(0, load.requests - watched.requests),
            retries=max(0, load.retries - watched.retries),
        )
        watched.requests, watched.retries = load.requests, load.retries
        retrying = watched.budget.left(now) >= 1.0
        if retrying is not watched.retrying:
            log.warning("%s %s", load.service, "may retry again" if retrying else "retries too much: it may not now")
            await proxy.set_retries(load.service, on=retrying)
            watched.retrying = retrying
        backends = tuple(replace(one, ejected=one.name in ejected) for one in load.backends)
        return replace(load, ejections=watched.outliers.ejections, backends=backends)

    # ---- telling ---------------------------------------------------------------------------------------------------

    def report(self) -> FrontEndReport:
        """Return what is seen now."""
        told = [proxy.problem or self._problems.get(number, "") for number, proxy in enumerate(self._proxies)]
        problems = [problem for problem in (*told, self._refused) if problem]
        return FrontEndReport(
            self._identity.name,
            self._identity.address,
            self.table.epoch,
            self.table.digest,
            tuple(self._timed(load) for load in self._loads),
            self._around.holds(),
            "; ".join(problems),
            self._identity.version,
        )

    def _timed(self, load: RouteLoad) -> RouteLoad:
        """Return a load with the times that callers have seen: to them all of it counts, the proxy's part included."""
        median_s, high_s = self._around.latencies(load.service)
        return load if median_s is None else replace(load, latency_p50_s=median_s, latency_p99_s=high_s)

    async def _tell(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self._source.report(self.report())
            except CorralError as error:
                log.info("nobody listens for now: %s", error)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), REPORT_S)


async def _all(*works: Coroutine[Any, Any, None]) -> None:
    async with asyncio.TaskGroup() as group:
        for work in works:
            group.create_task(work)


def load_table(path: Path) -> RoutingTable:
    """Return the table that was kept, an empty one when there is none that can be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=RoutingTable)
    except (OSError, msgspec.MsgspecError) as error:
        if not isinstance(error, FileNotFoundError):
            log.warning("the kept routes cannot be read: %s", error)
        return RoutingTable(0, "")


def save_table(path: Path, table: RoutingTable) -> None:
    """Keep a table: it holds secrets, so that only its owner may read it. Raises ``OSError``."""
    new = path.with_suffix(".new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(table))
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
