"""The services of a pool without a controller: what was asked for, in a dictionary; tests publish tables themselves."""

from __future__ import annotations

from corral.control.tables import Tables
from corral.model.errors import Conflict, FilesNeeded, Forbidden, NotFound
from corral.model.ids import ServiceName
from corral.model.routes import FrontEndReport, RoutingTable
from corral.model.service import Revision, Rollout, ServiceSpec
from corral.model.service_report import FrontEndStatus, ReplicaReport, ServiceReport
from corral.model.tenant import Role
from corral.ports.pool import Principal


class MemoryServices:
    """Implements ``ports.services.Services``. Foreign services are not found."""

    def __init__(self) -> None:
        self.specs: dict[ServiceName, list[ServiceSpec]] = {}
        self.wanted: dict[ServiceName, int] = {}
        self.rollouts: dict[ServiceName, Rollout] = {}
        self.tables = Tables()
        self.tables.publish(RoutingTable(1, "first"))
        self.reports: list[FrontEndReport] = []
        self.travel = False
        self.replicas: tuple[ReplicaReport, ...] = ()
        self.waiting = 0

    def _report(self, name: ServiceName) -> ServiceReport:
        revisions = tuple(Revision(i + 1, spec, 1.0, "me") for i, spec in enumerate(self.specs[name]))
        spec = revisions[-1].spec
        low, high = spec.scaling.replicas_min, spec.scaling.replicas_max
        wanted, rollout = self.wanted[name], self.rollouts.get(name)
        return ServiceReport(
            name, spec.tenant, 1, wanted, 0, low, high, spec.model, (), 1.0, self.replicas, rollout, revisions, None
        )  # fmt: skip

    def _known(self, who: Principal, name: ServiceName) -> ServiceReport:
        found = self._report(name) if name in self.specs else None
        if found is None or (who.role is not Role.ADMIN and found.tenant != who.tenant):
            raise NotFound(f"there is no service {name!r}")
        return found

    async def set_service(self, who: Principal, spec: ServiceSpec, canary_percent: int | None = None) -> ServiceReport:
        if self.travel and spec.replica.files is None:
            raise FilesNeeded("the nodes of this pool do not see it", field="workdir")
        owned = ServiceSpec(spec.name, spec.tenant or who.tenant, spec.replica, scaling=spec.scaling)
        self.specs.setdefault(spec.name, []).append(owned)
        self.wanted.setdefault(spec.name, spec.scaling.replicas_min)
        if len(self.specs[spec.name]) > 1:
            self.rollouts[spec.name] = Rollout(len(self.specs[spec.name]), 1.0, "me", canary_percent)
        return self._report(spec.name)

    async def service(self, who: Principal, name: ServiceName) -> ServiceReport:
        return self._known(who, name)

    async def services(self, who: Principal) -> tuple[ServiceReport, ...]:
        all_ = [self._report(name) for name in self.specs]
        return tuple(one for one in all_ if who.role is Role.ADMIN or one.tenant == who.tenant)

    async def scale(self, who: Principal, name: ServiceName, replicas: int) -> ServiceReport:
        self._known(who, name)
        self.wanted[name] = replicas
        return self._report(name)

    async def widen(self, who: Principal, name: ServiceName, canary_percent: int | None) -> ServiceReport:
        self._known(who, name)
        if name not in self.rollouts:
            raise Conflict(f"service {name} has no rollout")
        self.rollouts[name] = Rollout(2, 1.0, "me", canary_percent)
        return self._report(name)

    async def undo(self, who: Principal, name: ServiceName, revision: int | None = None) -> ServiceReport:
        self._known(who, name)
        self.rollouts.pop(name, None)
        return self._report(name)

    async def remove_service(self, who: Principal, name: ServiceName) -> None:
        self._known(who, name)
        del self.specs[name]

    async def front_ends(self, who: Principal) -> tuple[FrontEndStatus, ...]:
        return tuple(FrontEndStatus(one.name, one.address, 0.5, current=True) for one in self.reports)

    async def table(self, who: Principal, after: str | None, timeout_s: float) -> RoutingTable:
        self.waiting += 1
        try:
            found = await self.tables.after(after, timeout_s)
        finally:
            self.waiting -= 1
        assert found is not None
        return found

    async def report(self, who: Principal, report: FrontEndReport) -> None:
        self.reports.append(report)

    async def drill(self, who: Principal, name: ServiceName, what: str, target: str | None) -> str:
        self._known(who, name)
        if who.role is not Role.ADMIN:
            raise Forbidden("this needs an admin token")
        return f"{what} {target or 'any'}"
