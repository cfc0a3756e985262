"""The planned outages of a pool in memory, which never has a node prepared."""

from __future__ import annotations

from corral.model.errors import Conflict, Forbidden
from corral.model.ids import NodeId
from corral.model.report import MaintenanceReport
from corral.model.tenant import Role
from corral.ports.pool import Principal


def admin_only(who: Principal) -> None:
    if who.role is not Role.ADMIN:
        raise Forbidden("this needs an admin's token")


class Outages:
    outage = MaintenanceReport(active=False)

    async def maintenance(self, who: Principal) -> MaintenanceReport:
        return self.outage

    async def start_maintenance(self, who: Principal, duration_s: float, reason: str) -> MaintenanceReport:
        admin_only(who)
        missing = (NodeId("n0"),)
        self.outage = MaintenanceReport(True, 50.0, 50.0 + duration_s, duration_s, "me", reason, (), missing)
        return self.outage

    async def stop_maintenance(self, who: Principal) -> MaintenanceReport:
        admin_only(who)
        if not self.outage.active:
            raise Conflict("no maintenance is under way")
        self.outage = MaintenanceReport(active=False)
        return self.outage
