"""Services: what people ask of them is checked and recorded, and their replicas are kept as many as are wanted.

What is to be done is asked of ``policy.serving``; what follows is recorded here. Nothing but facts is needed to go on
after a change of leader: what front ends and probes say is unknown then until it is told again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from corral.control.book import Book
from corral.control.inputs import Serve
from corral.control.keeping import Replicas, replica_spec
from corral.control.launching import KEEPER, stops
from corral.control.names import names_taken
from corral.control.stopping import cancel
from corral.control.submission import refuse
from corral.control.traffic import Traffic
from corral.model.errors import Conflict, DuplicateName, InvalidField, NotFound, Refusal
from corral.model.events import (
    Fact,
    JobEnded,
    JobSubmitted,
    NodeCordoned,
    NodeJoined,
    NodeUncordoned,
    ReplicaDraining,
    ReplicaReady,
    RolloutEnded,
    RolloutWidened,
    ServiceEvent,
    ServiceScaled,
    ServiceSet,
    TenantRemoved,
    TokenIssued,
    TokenRevoked,
    job_of,
)
from corral.model.ids import GangKey, JobId, ServiceName
from corral.model.messages import Heartbeat, Readiness
from corral.model.routes import FrontEndReport, RoutingTable
from corral.model.service import Guard, Service, ServiceSpec
from corral.policy.serving.renewal import judge, targets
from corral.policy.serving.replicas import Drain, End, Seen, Start, acts, best_first, start_at
from corral.policy.serving.routing import backend_name, table_of
from corral.policy.serving.scaling import Scaler

REPLICAS_MAX = 1_000
"""Replicas of one service: each is a job in the controller."""

LISTEN_MIN = 1_024
OWN_PORTS = range(7_400, 7_500)
"""The API, Ray and front ends are there, where nothing else was asked for."""

LOOK_S = 0.5
"""How often every service is looked at; those of which something was told are looked at at once."""

AGAIN_S = 5.0
"""So long after a replica was refused another one is asked for."""


class Services:
    """All services over the book. While they are ``still`` no replica is started or ended."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self.still = False
        self.traffic = Traffic()
        self.replicas = Replicas(book, self.traffic)
        self.refused: dict[ServiceName, Refusal] = {}
        self._again_at: dict[ServiceName, float] = {}
        self._scalers: dict[ServiceName, Scaler] = {}
        self._floors: dict[ServiceName, frozenset[GangKey]] = {}
        self._hastened: set[tuple[JobId, int]] = set()
        self._touched: set[ServiceName] = set()
        self._told = 0
        self._looked_at = float("-inf")
        self._stale_table = True
        self._digest: str | None = None

    # ---- what people ask -------------------------------------------------------------------------------------------

    def serve(self, now: float, ask: Serve) -> Refusal | None:
        """Check a wish and record it, dated and numbered anew."""
        fact = ask.fact
        service = self._book.state.services.get(fact.service)
        if isinstance(fact, ServiceSet):
            return self._set(now, fact, service)
        if service is None or service.removed_by is not None:
            return refuse(NotFound, f"there is no service {fact.service!r}")
        if isinstance(fact, RolloutWidened | RolloutEnded) and service.rollout is None:
            return refuse(Conflict, f"no revision of service {service.name} is being brought out")
        if isinstance(fact, ServiceScaled):
            refusal = _scale_refusal(service.current, fact.replicas)
            if refusal is not None:
                return refusal
            self._scaler(service.name).begin_again(now)
        if isinstance(fact, RolloutEnded):
            fact = replace(fact, revision=service.stable, undone=True)
        self._book.record(replace(fact, at=now))
        return None

    def _set(self, now: float, fact: ServiceSet, service: Service | None) -> Refusal | None:
        spec = fact.spec
        if service is not None and service.tenant != spec.tenant:
            return refuse(DuplicateName, f"another tenant has a service {spec.name!r}", field="name")
        if service is not None and service.removed_by is not None:
            return refuse(Conflict, f"service {spec.name} is being removed", hint="wait until it is gone")
        if service is not None and service.newest.spec == spec and _comes(service):
            return None
        refusal = self._set_refusal(spec, service)
        if refusal is not None:
            return refusal
        if service is None and fact.secrets is None:
            return refuse(InvalidField, "a new service needs secrets", field="secrets")
        revision = 1 if service is None else service.newest.number + 1
        self._book.record(replace(fact, at=now, revision=revision))
        return None

    def _set_refusal(self, spec: ServiceSpec, service: Service | None) -> Refusal | None:
        scaling, config = spec.scaling, self._book.config
        if not 0 <= scaling.replicas_min <= scaling.replicas_max <= REPLICAS_MAX or scaling.replicas_max < 1:
            words = f"{scaling.replicas_min} to {scaling.replicas_max} replicas are no range within 0 to {REPLICAS_MAX}"
            return refuse(InvalidField, words, field="replicas")
        if spec.port is not None and config.port_first <= spec.port <= config.port_last:
            words = f"the pool gives ports {config.port_first} to {config.port_last} out itself"
            return refuse(InvalidField, words, field="port", hint="leave port out and take the one in PORT")
        refusal = _listen_refusal(spec.traffic.listen, config.port_first, config.port_last)
        if refusal is not None:
            return refusal
        if service is not None and (service.current.traffic.guard is Guard.MTLS) != (spec.traffic.guard is Guard.MTLS):
            words = "a service cannot change to or from mtls while it serves"
            return refuse(Conflict, words, field="guard", hint="give it another name, or stop it first")
        others = [one for one in self._book.state.services.values() if one.name != spec.name]
        taken = names_taken(spec, others)
        if taken is not None:
            return taken
        found = replica_spec(self._book, spec, 1, 1, floor=False)
        return found if isinstance(found, Refusal) else None

    # ---- what is told ----------------------------------------------------------------------------------------------

    def heartbeat(self, now: float, beat: Heartbeat) -> None:
        """Take in how the replicas of a node answer their probes."""
        for told in beat.readiness:
            self._hear(now, told)

    def _hear(self, now: float, told: Readiness) -> None:
        job = self._book.state.jobs.get(told.task.job)
        gang = job.gangs.get(told.task.gang) if job is not None else None
        if job is None or gang is None or job.spec.serving is None or not gang.live:
            return
        service = self._book.state.services.get(job.spec.serving.service)
        replica = service.replicas.get(job.id) if service is not None else None
        if service is None or replica is None or gang.incarnation != told.incarnation:
            return
        if self.replicas.hear(now, told):
            self._touched.add(service.name)
        if told.ready and replica.incarnation != told.incarnation:
            ready = ReplicaReady(at=now, service=service.name, job=job.id, incarnation=told.incarnation)
            self._book.record(ready)

    def report(self, now: float, report: FrontEndReport) -> None:
        """Take in what a front end sees."""
        self.traffic.hear(now, report)
        self._touched.update(load.service for load in report.loads)

    # ---- keeping ---------------------------------------------------------------------------------------------------

    def settle(self, now: float, *, paused: bool = False) -> None:
        """Do what is due of the services of which something was told or recorded, from time to time of all."""
        state = self._book.state
        self._take_notice()
        if now - self._looked_at >= LOOK_S:
            self._looked_at = now
            self.traffic.tick(now, state.services)
            self._touched.update(state.services)
            self._forget()
        while self._touched:
            # In order: the numbers of jobs must not depend on that of a set.
            names, self._touched = sorted(self._touched), set()
            for service in [state.services[name] for name in names if name in state.services]:
                self._keep(now, service, paused=paused or self.still)
            self._take_notice()
        self._book.board.protect(frozenset().union(*self._floors.values()))

    def protect(self, now: float) -> None:
        """Bring up to date which replicas are not asked to give way: something may have happened to their kin."""
        self._take_notice()
        for name in self._touched:
            service = self._book.state.services.get(name)
            if service is not None:
                self._protect(service, self.replicas.seen(now, service))
        self._book.board.protect(frozenset().union(*self._floors.values()))

    def _take_notice(self) -> None:
        """Find out which services the newest facts are about."""
        facts = self._book.facts
        for fact in facts[self._told :]:
            self._note(fact)
        self._told = len(facts)

    def _note(self, fact: Fact) -> None:
        if isinstance(fact, ServiceEvent):
            self._touched.add(fact.service)
            self._stale_table = True
        elif isinstance(fact, NodeCordoned | NodeUncordoned):
            self._touched.update(self._book.state.services)
        elif isinstance(fact, NodeJoined | TokenIssued | TokenRevoked | TenantRemoved):
            self._stale_table = True
        name = job_of(fact)
        job = self._book.state.jobs.get(name) or self._book.leaving.get(name) if name is not None else None
        if job is not None and job.spec.serving is not None:
            self._touched.add(job.spec.serving.service)
            self._stale_table = True
            if isinstance(fact, JobEnded):
                self.replicas.ended(job, fact.state)

    def _forget(self) -> None:
        known = self._book.state.services
        kept: tuple[dict[ServiceName, Any], ...] = (
            self.refused,
            self._again_at,
            self._scalers,
            self._floors,
            self.replicas.failed_on,
        )
        for by_name in kept:
            for gone in by_name.keys() - known.keys():
                del by_name[gone]
        live = self._book.state.jobs
        self._hastened = {key for key in self._hastened if key[0] in live}

    def _keep(self, now: float, service: Service, *, paused: bool) -> None:
        seen = self.replicas.seen(now, service)
        self._protect(service, seen)
        self._hasten(now, service)
        if paused:
            return
        if service.removed_by is None:
            self._scale(now, service)
            self._judge(now, service, seen)
        for act in acts(service, seen, targets(service, now), now):
            self._do(now, service, act, seen)

    def _protect(self, service: Service, seen: Sequence[Seen]) -> None:
        floor = min(service.current.scaling.replicas_min, service.wanted)
        staying = sorted((one for one in seen if not one.leaving and one.placed_at is not None), key=best_first)
        self._floors[service.name] = frozenset(GangKey(one.job, 0) for one in staying[:floor])

    def _scale(self, now: float, service: Service) -> None:
        scaling, load = service.current.scaling, self.traffic.load(service.name, now)
        if load is None or not scaling.automatic:
            return
        wanted = self._scaler(service.name).look(now, scaling, service.wanted, load)
        if wanted is not None and wanted.replicas != service.wanted:
            count, reason = wanted.replicas, wanted.reason
            self._book.record(ServiceScaled(at=now, service=service.name, replicas=count, by="load", reason=reason))

    def _scaler(self, name: ServiceName) -> Scaler:
        return self._scalers.setdefault(name, Scaler())

    def _judge(self, now: float, service: Service, seen: Sequence[Seen]) -> None:
        rollout = service.rollout
        if rollout is None:
            return
        backends = {backend_name(r) for r in service.replicas.values() if r.revision == rollout.revision}
        ruling = judge(service, seen, self.traffic.answers(service.name, backends, now), now)
        if ruling is None:
            return
        revision = service.stable if ruling.undone else rollout.revision
        by = KEEPER if ruling.undone else rollout.by
        self._book.record(
            RolloutEnded(
                at=now, service=service.name, revision=revision, undone=ruling.undone, by=by, reason=ruling.reason
            )
        )
        if ruling.undone:
            self._book.notice(f"service {service.name}: {ruling.reason}")

    def _do(self, now: float, service: Service, act: Start | Drain | End, seen: Sequence[Seen]) -> None:
        match act:
            case Start(revision=revision, count=count):
                there = sum(not one.leaving for one in seen)
                for already in range(count):
                    if not self._start(now, service, revision, there + already):
                        return
            case Drain(job=job, reason=reason):
                self._book.record(ReplicaDraining(at=now, service=service.name, job=job, reason=reason))
            case End(job=name):
                cancel(self._book, now, self._book.state.jobs[name], KEEPER)

    def _start(self, now: float, service: Service, revision: int, there: int) -> bool:
        """Submit a replica of a revision; return whether it was admitted."""
        if now < self._again_at.get(service.name, now):
            return False
        floor = there < service.current.scaling.replicas_min
        avoid, number = self.replicas.avoid(service), service.next_ordinal
        spec = replica_spec(self._book, service.spec(revision), revision, number, floor=floor, avoid=avoid)
        if not isinstance(spec, Refusal) and len(self._book.state.jobs) < self._book.config.jobs_max:
            self.refused.pop(service.name, None)
            job = JobId(str(self._book.state.next_job))
            self._book.record(JobSubmitted(at=now, job=job, spec=spec, user=service.spec(revision).replica.user))
            return True
        if isinstance(spec, Refusal):
            self.refused[service.name] = spec
        self._again_at[service.name] = now + AGAIN_S
        return False

    def _hasten(self, now: float, service: Service) -> None:
        """Let replicas that are stopped from outside end as soon as no request is under way there any more."""
        for replica in service.replicas.values():
            job = self._book.state.jobs[replica.job]
            gang = job.gangs[0]
            key = (job.id, gang.incarnation)
            if gang.stopping is None or not gang.live or key in self._hastened or job.cancelled_by == KEEPER:
                continue
            if self.replicas.idle(now, service, replica, job, gang):
                self._hastened.add(key)
                for stop in stops(job, gang, gang.stopping, epoch=self._book.epoch):
                    self._book.send(stop)

    # ---- what front ends and people are told -----------------------------------------------------------------------

    def table(self) -> RoutingTable | None:
        """Return the routing table when it is another one than at the last call. Call it before the book is drained."""
        self._take_notice()
        self._told = 0
        if not self._stale_table:
            return None
        self._stale_table = False
        table = table_of(self._book.state, self._book.epoch)
        if table.digest == self._digest:
            return None
        self._digest = table.digest
        return table

    def waits_for(self, now: float, service: Service) -> str:
        """Return what a service, or its next revision, waits for before all of it is ready; empty when all is well."""
        seen = self.replicas.seen(now, service)
        missing = service.wanted - sum(one.ready for one in seen)
        if (missing <= 0 and service.rollout is None) or service.removed_by is not None:
            return ""
        following = service.rollout.revision if service.rollout is not None else service.stable
        pause_s = start_at(service, following) - now
        staying = [one for one in seen if not one.leaving]
        if service.name in self.refused:
            return f"no replica can be started: {self.refused[service.name].message}"
        if pause_s > 0:
            return f"replicas ended by themselves: the next is started in {pause_s:.0f} s"
        homeless = [one.job for one in staying if one.placed_at is None]
        if homeless:
            return f"replicas wait for room: see `corral why {homeless[0]}`"
        unready = [self.replicas.health[one.job].message for one in staying if one.unready_s > 0]
        if unready:
            return f"replicas are not ready: {unready[0] or 'their probes fail'}"
        return "replicas are starting" if missing > 0 else ""


def _comes(service: Service) -> bool:
    """Return whether the newest revision is the stable one, or on its way to be."""
    following = service.rollout.revision if service.rollout is not None else service.stable
    return service.newest.number == following


def _scale_refusal(spec: ServiceSpec, replicas: int) -> Refusal | None:
    """Return why there cannot be so many replicas. Limits bind where load decides; elsewhere a person does."""
    scaling = spec.scaling
    low, high = (scaling.replicas_min, scaling.replicas_max) if scaling.automatic else (0, REPLICAS_MAX)
    if low <= replicas <= high:
        return None
    words = f"{replicas} replicas are not between {low} and {high}"
    return refuse(InvalidField, words, field="replicas", hint="change the limits: bring out another revision")


def _listen_refusal(listen: int | None, first: int, last: int) -> Refusal | None:
    """Say why a service cannot have a port of its own on front ends: a head is one, and listens itself."""
    if listen is None or (listen >= LISTEN_MIN and listen not in OWN_PORTS and not first <= listen <= last):
        return None
    words = f"{listen} is a port of the system, of corral, or one that the pool gives out itself"
    return refuse(InvalidField, words, field="listen", hint=f"take another one from {LISTEN_MIN} on")
