"""A service in a storm: an owner who changes it, and front ends that follow routes and tell what they see.

It has chances of its own, so that a storm without one passes as it ever did. When all is repaired the service must have
its replicas again, all of one revision; then it is removed, and must go.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from corral.control.core import Answer, Input
from corral.control.inputs import Serve, ServiceAct
from corral.model.ask import JobAsk
from corral.model.errors import CorralError, Refusal
from corral.model.events import (
    Fact,
    GangPlaced,
    GangStopping,
    RolloutEnded,
    RolloutWidened,
    ServiceRemoved,
    ServiceScaled,
    ServiceSet,
)
from corral.model.ids import DEFAULT_TENANT, JobId, ServiceName
from corral.model.job import StopReason
from corral.model.routes import BackendLoad, FrontEndReport, RouteLoad, RoutingTable
from corral.model.service import Renewal, ReplicaPhase, Scaling, Secrets, Service, ServiceSpec, Traffic
from corral.model.serving import Probe, Probes
from corral.model.state import PoolState
from corral.sim.storm.controller import Head
from corral.sim.storm.course import Course
from corral.sim.storm.network import Network
from corral.sim.storm.people import People
from corral.sim.storm.run import Work

NAME = ServiceName("web")
EVERY, FIRST = 7, 4
"""Every so many seeds have a service, from this one on."""

LONG_S = 1e7
REPORT_S = 1.0
DRAINS_S = (0.5, 5.0)
PORT = 8_000


def has_service(seed: int) -> bool:
    """Return whether the storm of a seed has one."""
    return seed % EVERY == FIRST


class FrontEnd:
    """Follows the table of whoever leads, refuses older ones, tells every second."""

    def __init__(self, course: Course, network: Network, heads: Sequence[Head], chance: Random, name: str) -> None:
        self.name = name
        self.table = RoutingTable(0, "")
        self.requests = 0
        self._course = course
        self._network = network
        self._heads = heads
        self._chance = chance
        self._drained_at: dict[str, float] = {}

    def begin(self) -> None:
        """Go on for ever."""
        self._course.after(REPORT_S * self._chance.uniform(0.8, 1.2), self.begin)
        head = self._chance.choice(self._heads)
        self._course.after(self._network.delay_s(), lambda: self._arrive(head))

    def _arrive(self, head: Head) -> None:
        head.ask(self.report(), lambda _: None)
        table = head.shell.tables.newest if head.shell is not None else None
        if table is not None:
            self._course.after(self._network.delay_s(), lambda: self._take(table))

    def _take(self, table: RoutingTable) -> None:
        if table.epoch < self.table.epoch:
            return
        self.table = table
        leaving = {one.name for route in table.routes for one in route.backends if one.draining}
        for name in sorted(leaving - self._drained_at.keys()):
            self._drained_at[name] = self._course.now + self._chance.uniform(*DRAINS_S)
        for name in self._drained_at.keys() - leaving:
            del self._drained_at[name]

    def report(self) -> FrontEndReport:
        """Return what it sees: some requests, none of them bad."""
        loads = []
        for route in self.table.routes:
            self.requests += 1
            backends = tuple(
                BackendLoad(
                    one.name,
                    up=True,
                    requests=self.requests,
                    drained=one.name in self._drained_at and self._course.now >= self._drained_at[one.name],
                )
                for one in route.backends
            )
            outstanding = self._chance.choice((0, 0, 1, 2, 9))
            waiting = 0 if backends else self._chance.choice((0, 1))
            loads.append(
                RouteLoad(route.service, self.requests, outstanding=outstanding, waiting=waiting, backends=backends)
            )
        return FrontEndReport(self.name, "http://front", self.table.epoch, self.table.digest, tuple(loads))


class Offering:
    """The owner of the service, and its front ends."""

    def __init__(self, seed: int, course: Course, network: Network, heads: Sequence[Head], people: People) -> None:
        chance = self._chance = Random(f"{seed} serves")  # noqa: S311 - a course of events, not a secret
        self._course = course
        self._people = people
        self._made = 0
        self.over = False
        low = chance.choice((1, 2, 3))
        target = chance.choice((None, 3.0))
        self._scaling = Scaling(0 if target and chance.random() < 0.3 else low, low + 2, target, down_after_s=20.0)
        self._renewal = chance.choice((Renewal(), Renewal(surge=0, max_unavailable=1), Renewal(surge=2)))
        self._port = chance.choice((None, None, PORT))
        self._fronts = [FrontEnd(course, network, heads, chance, f"front-{i}") for i in range(chance.choice((0, 1, 2)))]

    def plan(self, until_s: float) -> None:
        """Make the service, and change it now and then."""
        for front in self._fronts:
            front.begin()
        self._course.after(self._chance.uniform(3.0, 10.0), self._set)
        for _ in range(self._chance.choice((1, 3, 6))):
            act = self._chance.choice((self._set, self._set, self._scale, self._undo, self._widen))
            self._course.after(self._chance.uniform(15.0, until_s), act)

    def _ask(self, fact: ServiceAct) -> None:
        def make(_: Head) -> Input:
            return Serve(fact)

        def answered(answer: Answer | CorralError) -> None:
            if isinstance(answer, Refusal) and answer.code not in {"NOT_FOUND", "CONFLICT", "UNAVAILABLE"}:
                self._people.faults.append(f"the service is refused: {answer.line()}")

        self._people.ask(make, answered)

    def _set(self) -> None:
        self._made += 1
        traffic = Traffic(drain_s=self._chance.choice((3.0, 30.0)))
        canary = self._chance.choice((None, None, 25))
        ask = JobAsk(
            argv=Work.argv(LONG_S, 0, stubborn=self._chance.random() < 0.2),
            gpu_milli=500,
            grace_s=1.0,
            envs={"MADE": str(self._made)},
        )
        spec = ServiceSpec(
            NAME,
            DEFAULT_TENANT,
            ask,
            port=self._port,
            probes=Probes(startup=Probe()),
            scaling=self._scaling,
            renewal=self._renewal,
            traffic=traffic,
        )
        fact = ServiceSet(
            at=0.0, service=NAME, spec=spec, revision=0, by="owner", secrets=Secrets("t"), canary_percent=canary
        )
        self._ask(fact)

    def _scale(self) -> None:
        count = self._chance.randint(max(1, self._scaling.replicas_min), self._scaling.replicas_max)
        self._ask(ServiceScaled(at=0.0, service=NAME, replicas=count, by="owner"))

    def _undo(self) -> None:
        self._ask(RolloutEnded(at=0.0, service=NAME, revision=0, undone=True, by="owner"))

    def _widen(self) -> None:
        self._ask(RolloutWidened(at=0.0, service=NAME, canary_percent=None, by="owner"))

    def finish(self) -> None:
        """Let every rollout go all the way: whoever left a canary would leave it for ever."""
        self._widen()

    def remove(self) -> None:
        """End the service."""
        self.over = True
        self._ask(ServiceRemoved(at=0.0, service=NAME, by="owner"))


def whole(state: PoolState) -> bool:
    """Return whether the service has all its replicas, of one revision, and nothing is under way."""
    service = state.services.get(NAME)
    if service is None or service.rollout is not None or len(service.replicas) != service.wanted:
        return False
    return all(
        one.phase is ReplicaPhase.SERVING
        and one.revision == service.stable
        and one.incarnation == state.jobs[one.job].gangs[0].incarnation
        and state.jobs[one.job].gangs[0].live
        for one in service.replicas.values()
    )


def check_service(state: PoolState, fact: Fact) -> None:
    """Check a fact that was just folded against what services promise."""
    if isinstance(fact, GangPlaced):
        _check_port(state, fact.job)
    elif isinstance(fact, GangStopping) and fact.reason is StopReason.PREEMPTED and fact.preemption is not None:
        _check_floor(state, fact.job)


def _check_port(state: PoolState, name: JobId) -> None:
    """A fixed port is given once on a machine."""
    serving = state.jobs[name].spec.serving
    if serving is None or serving.port is None:
        return
    here = [
        state.nodes[placement.node].spec.address
        for job in state.jobs.values()
        if job.spec.serving is not None and job.spec.serving.port == serving.port
        for placement in job.gangs[0].placements
    ]
    assert len(here) == len(set(here)), f"port {serving.port} is given twice on {max(here, key=here.count)}"


def _check_floor(state: PoolState, name: JobId) -> None:
    """Who gives way for others leaves the floor of its service as it is."""
    serving = state.jobs[name].spec.serving
    service: Service | None = state.services.get(serving.service) if serving is not None else None
    if service is None or service.removed_by is not None:
        return
    floor = min(service.current.scaling.replicas_min, service.wanted)
    left = [
        one.job
        for one in service.replicas.values()
        if one.phase is not ReplicaPhase.DRAINING
        and state.jobs[one.job].cancelled_by is None
        and state.jobs[one.job].gangs[0].live
        and state.jobs[one.job].gangs[0].stopping is None
    ]
    assert len(left) >= floor, f"replica {name} gives way and leaves {len(left)} of the {floor} that service keeps"


def service_words(state: PoolState) -> str:
    """Return how the service is, in one line."""
    service = state.services.get(NAME)
    if service is None:
        return "it is not there"
    replicas = [
        f"{one.job}r{one.revision} {one.phase} {state.jobs[one.job].gangs[0].state}"
        for one in service.replicas.values()
    ]
    return f"wanted {service.wanted}, stable {service.stable}, rollout {service.rollout}, replicas {replicas}"
