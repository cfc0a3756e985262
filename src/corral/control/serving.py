"""The services of a pool as the API sees them: implements ``ports.services.Services`` over the shell."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec.structs import replace

from corral.control import service_reports
from corral.control.access import require_admin, scope
from corral.control.files import ControllerFiles
from corral.control.guarding import make_secrets
from corral.control.inputs import Serve, ServiceAct
from corral.control.shell import ControlShell
from corral.model.errors import Conflict, CorralError, Forbidden, InvalidField, NotFound, Refusal, Unavailable
from corral.model.events import RolloutEnded, RolloutWidened, ServiceRemoved, ServiceScaled, ServiceSet
from corral.model.ids import ServiceName, TenantId
from corral.model.messages import StopTask
from corral.model.routes import FrontEndReport, RoutingTable
from corral.model.service import Service, ServiceSpec
from corral.model.service_report import FrontEndStatus, ServiceReport
from corral.model.tenant import Role
from corral.ports.pool import Principal

DRILLS = ("replica",)


class ControllerServices:
    """Every public method checks the principal first."""

    def __init__(
        self, shell: ControlShell, files: ControllerFiles | None = None, front: Callable[[], None] = lambda: None
    ) -> None:
        """Without ``files`` tasks run where the files are: none travel.

        ``front`` sees to it that somebody serves; what it raises refuses the service that would need it.
        """
        self._shell = shell
        self._files = files
        self._front = front

    # ---- finding ---------------------------------------------------------------------------------------------------

    def _known(self, who: Principal, name: ServiceName) -> Service:
        """Return a service that the principal may see."""
        services = self._shell.core.book.state.services
        found = services.get(name)
        if found is not None and scope(who) in (None, found.tenant):
            return found
        mine = sorted(one.name for one in services.values() if scope(who) in (None, one.tenant))
        hint = f"known: {', '.join(mine[:8])}" if mine else "corral serve starts one"
        raise NotFound(f"there is no service {name!r}", hint=hint)

    def _report(self, service: Service) -> ServiceReport:
        return service_reports.report(self._shell.core, service, self._shell.clock.now())

    async def _ask(self, name: ServiceName, act: ServiceAct) -> ServiceReport:
        """Have the core record a wish, and return what has become of the service."""
        answer = await self._shell.ask(Serve(act))
        if isinstance(answer, Refusal):
            raise CorralError.of(answer)
        found = self._shell.core.book.state.services.get(name)
        if found is None:
            raise NotFound(f"there is no service {name!r} any more")
        return self._report(found)

    # ---- what people ask -------------------------------------------------------------------------------------------

    async def set_service(self, who: Principal, spec: ServiceSpec, canary_percent: int | None = None) -> ServiceReport:
        """Make a service, or begin to bring its next revision out."""
        known = self._shell.core.book.state.services.get(spec.name)
        spec = self._owned(who, spec, known)
        if known is None and canary_percent is not None:
            hint = "leave the canary out the first time"
            raise Conflict(
                f"service {spec.name} is new: there is no revision beside which a canary could be", hint=hint
            )
        await asyncio.to_thread(self._front)
        if self._files is not None:
            await self._files.admit((spec.replica,))
        secrets = await asyncio.to_thread(make_secrets, spec) if known is None else None
        fact = ServiceSet(
            at=self._shell.clock.now(),
            service=spec.name,
            spec=spec,
            revision=0,
            by=_by(who),
            secrets=secrets,
            canary_percent=canary_percent,
        )
        return await self._ask(spec.name, fact)

    @staticmethod
    def _owned(who: Principal, spec: ServiceSpec, known: Service | None) -> ServiceSpec:
        """Return a spec with its tenant: as said, else that of the service that is there, else the principal's."""
        if who.role is not Role.ADMIN and spec.tenant not in ("", who.tenant):
            raise Forbidden(f"this token belongs to tenant {who.tenant!r}, not to {spec.tenant!r}", field="tenant")
        if spec.tenant:
            return spec
        inherits = known is not None and who.role is Role.ADMIN
        return replace(spec, tenant=TenantId(known.tenant if known is not None and inherits else who.tenant))

    async def service(self, who: Principal, name: ServiceName) -> ServiceReport:
        """Return one service."""
        return self._report(self._known(who, name))

    async def services(self, who: Principal) -> tuple[ServiceReport, ...]:
        """Return the services of the principal's tenant, or all, by name."""
        found = sorted(self._shell.core.book.state.services.items())
        return tuple(self._report(one) for _, one in found if scope(who) in (None, one.tenant))

    async def scale(self, who: Principal, name: ServiceName, replicas: int) -> ServiceReport:
        """Ask for a number of replicas."""
        self._known(who, name)
        at, by = self._shell.clock.now(), _by(who)
        reason = f"{by} asked for {replicas}"
        return await self._ask(name, ServiceScaled(at=at, service=name, replicas=replicas, by=by, reason=reason))

    async def widen(self, who: Principal, name: ServiceName, canary_percent: int | None) -> ServiceReport:
        """Let a rollout have this part of the replicas from now on."""
        self._known(who, name)
        at = self._shell.clock.now()
        return await self._ask(name, RolloutWidened(at=at, service=name, canary_percent=canary_percent, by=_by(who)))

    async def undo(self, who: Principal, name: ServiceName, revision: int | None = None) -> ServiceReport:
        """Give a rollout up, or bring an older revision out again."""
        known = self._known(who, name)
        at = self._shell.clock.now()
        if known.rollout is not None and revision in (None, known.stable):
            reason = f"undone by {_by(who)}"
            fact = RolloutEnded(at=at, service=name, revision=known.stable, undone=True, by=_by(who), reason=reason)
            return await self._ask(name, fact)
        number = revision if revision is not None else _before(known)
        kept = {one.number: one.spec for one in known.revisions}
        if number is None or number not in kept or number == known.stable:
            raise _nowhere_to_go(known, number)
        spec = kept[number]
        if self._files is not None:
            await self._files.admit((spec.replica,))
        return await self._ask(name, ServiceSet(at=at, service=name, spec=spec, revision=0, by=_by(who)))

    async def remove_service(self, who: Principal, name: ServiceName) -> None:
        """End a service: its replicas drain first."""
        self._known(who, name)
        answer = await self._shell.ask(Serve(ServiceRemoved(at=self._shell.clock.now(), service=name, by=_by(who))))
        if isinstance(answer, Refusal):
            raise CorralError.of(answer)

    async def drill(self, who: Principal, name: ServiceName, what: str, target: str | None) -> str:
        """Kill a replica as a fault would: without a word to front ends, and at once."""
        require_admin(who)
        service = self._known(who, name)
        if what not in DRILLS:
            raise InvalidField(f"{what!r} cannot be broken from here", field="what", hint=f"one of {', '.join(DRILLS)}")
        core = self._shell.core
        for replica in service.replicas.values():
            job = core.book.state.jobs.get(replica.job)
            if job is None or not job.gangs[0].live or target not in (None, str(replica.ordinal), replica.job):
                continue
            (placement,) = job.gangs[0].placements[:1]
            stop = StopTask(
                node=placement.node,
                epoch=core.book.epoch,
                task=job.task_key(0, placement.rank),
                incarnation=job.gangs[0].incarnation,
                reason="a drill",
                grace_s=0.0,
            )
            self._shell.engine.send(stop)
            return f"replica {replica.ordinal} (job {replica.job}) on {placement.node}"
        which = f"replica {target!r}" if target is not None else "replica"
        raise Conflict(f"service {name} has no {which} that runs")

    # ---- front ends ------------------------------------------------------------------------------------------------

    async def front_ends(self, who: Principal) -> tuple[FrontEndStatus, ...]:
        """Return the front ends that report to this controller."""
        del who
        newest = self._shell.tables.newest
        digest = newest.digest if newest is not None else None
        return self._shell.core.services.traffic.statuses(self._shell.clock.now(), digest)

    async def table(self, who: Principal, after: str | None, timeout_s: float) -> RoutingTable:
        """Return the routing table: at once when it is another one than ``after``, else when it changes."""
        _require_front_end(who)
        found = await self._shell.tables.after(after, timeout_s)
        if found is None:
            raise Unavailable("the controller has just begun and knows no routes yet")
        return found

    async def report(self, who: Principal, report: FrontEndReport) -> None:
        """Take in what a front end sees."""
        _require_front_end(who)
        self._shell.tell(report)


def _by(who: Principal) -> str:
    return f"{who.tenant}/{who.token_id}"


def _require_front_end(who: Principal) -> None:
    if who.role not in (Role.FRONT, Role.ADMIN):
        raise Forbidden("this needs the token of a front end")


def _before(service: Service) -> int | None:
    """Return the newest revision that is kept and is older than the stable one."""
    older = [one.number for one in service.revisions if one.number < service.stable]
    return max(older, default=None)


def _nowhere_to_go(service: Service, number: int | None) -> CorralError:
    kept = ", ".join(str(one.number) for one in service.revisions)
    if number is None:
        return Conflict(f"service {service.name} has no revision before {service.stable}")
    if number == service.stable:
        return Conflict(f"revision {number} of service {service.name} is the one that serves", hint=f"kept are {kept}")
    return NotFound(f"service {service.name} does not keep revision {number}", hint=f"kept are {kept}")
