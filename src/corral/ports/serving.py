"""What a front end is made of: where its routes come from, and what carries its traffic."""

from __future__ import annotations

from typing import Protocol

from corral.model.ids import ServiceName
from corral.model.routes import FrontEndReport, RouteLoad, RoutingTable


class RouteSource(Protocol):
    """The controller as a front end sees it, whichever head leads now. Errors: ``CorralError``, retried for ever."""

    async def table(self, after: str | None, timeout_s: float) -> RoutingTable:
        """Return the routing table: at once when its digest is not ``after``, else when it changes or time is over."""

    async def report(self, report: FrontEndReport) -> None:
        """Tell what is seen."""


class Proxy(Protocol):
    """A process that passes requests on: HAProxy, or the relay beside it. Each knows which services it carries."""

    async def start(self) -> None:
        """Start it with the routes applied last; it is kept alive from now on. Raises ``CorralError``."""

    async def apply(self, table: RoutingTable) -> None:
        """Serve by a table from now on. What cannot be done is in ``problem``; what served before goes on then."""

    async def loads(self) -> tuple[RouteLoad, ...]:
        """Return what it sees of the services that it carries."""

    async def set_ejected(self, service: ServiceName, backend: str, *, on: bool) -> None:
        """Give a backend no requests, or requests again."""

    async def set_retries(self, service: ServiceName, *, on: bool) -> None:
        """Send nothing a second time, or do again."""

    @property
    def problem(self) -> str:
        """Return what is wrong, for people; empty when all is well."""

    async def close(self) -> None:
        """End it: what is under way is cut."""

    async def leave(self) -> None:
        """Let go of it: it goes on, and the next front end on this machine takes it over."""
