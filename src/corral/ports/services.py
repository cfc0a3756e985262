"""The services of a pool as the API sees them. Implemented by control."""

from __future__ import annotations

from typing import Protocol

from corral.model.ids import ServiceName
from corral.model.routes import FrontEndReport, RoutingTable
from corral.model.service import ServiceSpec
from corral.model.service_report import FrontEndStatus, ServiceReport
from corral.ports.pool import Principal


class Services(Protocol):
    """Every method checks the principal: foreign services are ``NotFound``.

    Errors beside: ``InvalidField``, ``QuotaExceeded``, ``Unschedulable`` ... for what a replica asks as for any job,
    ``DuplicateName`` for a name that another tenant's service has, ``Conflict`` for what does not fit the state.
    """

    async def set_service(self, who: Principal, spec: ServiceSpec, canary_percent: int | None = None) -> ServiceReport:
        """Make a service, or begin to bring its next revision out. The same spec again changes nothing."""

    async def service(self, who: Principal, name: ServiceName) -> ServiceReport:
        """Return one service."""

    async def services(self, who: Principal) -> tuple[ServiceReport, ...]:
        """Return all services of the principal's tenant (an admin's: of all)."""

    async def scale(self, who: Principal, name: ServiceName, replicas: int) -> ServiceReport:
        """Ask for a number of replicas; load goes on to decide from there, between the limits."""

    async def widen(self, who: Principal, name: ServiceName, canary_percent: int | None) -> ServiceReport:
        """Let a rollout have this part of the replicas from now on, ``None``: all. ``Conflict`` without one."""

    async def undo(self, who: Principal, name: ServiceName, revision: int | None = None) -> ServiceReport:
        """Go back: give a rollout up, or without one bring an older revision out again (``None``: the one before)."""

    async def remove_service(self, who: Principal, name: ServiceName) -> None:
        """End a service: its replicas drain first."""

    async def front_ends(self, who: Principal) -> tuple[FrontEndStatus, ...]:
        """Return the front ends that report to this controller."""

    async def table(self, who: Principal, after: str | None, timeout_s: float) -> RoutingTable:
        """Return the routing table (front ends): at once when its digest is not ``after``, else when it changes.

        After ``timeout_s`` it is returned as it is.
        """

    async def report(self, who: Principal, report: FrontEndReport) -> None:
        """Take in what a front end sees (front ends)."""

    async def drill(self, who: Principal, name: ServiceName, what: str, target: str | None) -> str:
        """Break something on purpose (admin): kill a replica or its node; return what was hit."""
