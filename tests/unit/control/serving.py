"""A world with services: replicas that answer when a test says so, front ends that tell what a test says."""

from __future__ import annotations

from typing import Any

from corral.control.config import ControlConfig
from corral.control.inputs import Serve
from corral.model.ask import JobAsk
from corral.model.errors import Refusal
from corral.model.events import ServiceSet
from corral.model.ids import ServiceName, TenantId
from corral.model.messages import Readiness
from corral.model.routes import BackendLoad, FrontEndReport, RouteLoad, RoutingTable
from corral.model.service import Replica, ReplicaPhase, Scaling, Secrets, Service, ServiceSpec
from corral.policy.serving.routing import table_of
from tests.unit.control.world import World

WEB = ServiceName("web")


def spec(*, replicas: tuple[int, int] = (1, 1), argv: str = "serve", **changes: Any) -> ServiceSpec:
    """Return a service whose replicas hold one GPU each."""
    scaling = changes.pop("scaling", Scaling(*replicas))
    ask = changes.pop("replica", JobAsk(argv=(argv,), gpu_milli=1000))
    return ServiceSpec(name=WEB, tenant=TenantId("default"), replica=ask, scaling=scaling, **changes)


class Serving(World):
    """``World`` with one service and its traffic.

    ``sick`` names replicas that do not answer (``j3=False``), ``traffic`` is what the front end tells if there is one.
    """

    def __init__(self, config: ControlConfig | None = None, **gpus: int) -> None:
        super().__init__(config, **gpus)
        self.sick: dict[str, bool] = {}
        self.fronted = False
        self.traffic: dict[str, Any] = {}

    def serve(self, wanted: ServiceSpec, canary_percent: int | None = None) -> Refusal | None:
        """Bring a service out, as the API would."""
        secrets = Secrets("secret") if WEB not in self.core.book.state.services else None
        fact = ServiceSet(
            at=0.0, service=WEB, spec=wanted, revision=0, by="me", secrets=secrets, canary_percent=canary_percent
        )
        answer = self.tell(Serve(fact))
        assert answer is None or isinstance(answer, Refusal)
        return answer

    @property
    def service(self) -> Service:
        return self.core.book.state.services[WEB]

    @property
    def replicas(self) -> list[Replica]:
        return sorted(self.service.replicas.values(), key=lambda replica: int(replica.job))

    def phases(self) -> list[ReplicaPhase]:
        return [replica.phase for replica in self.replicas]

    def begin(self) -> None:
        """Let the program of every placed replica begin."""
        for job in list(self.core.book.state.jobs.values()):
            for task in job.gangs[0].tasks:
                if job.spec.serving is not None and task.state == "placed":
                    self.start(job.id)

    def readiness(self, *, ready: bool = True, since: float | None = None, **of: bool) -> None:
        """Let the agents tell how all running replicas answer; ``of`` says it of single jobs (``j3=False``)."""
        by_node: dict[str, list[Readiness]] = {name: [] for name in self.core.book.state.nodes}
        for job in self.core.book.state.jobs.values():
            gang = job.gangs[0]
            if job.spec.serving is not None and gang.live and gang.tasks[0].state == "running":
                good = of.get(f"j{job.id}", ready)
                told = Readiness(job.task_key(0, 0), gang.incarnation, good, self.now if since is None else since)
                by_node[gang.placements[0].node].append(told)
        for node, told_of in by_node.items():
            self.heartbeat(node, readiness=tuple(told_of))

    def up(self) -> None:
        """Let everything that is placed begin and answer."""
        self.begin()
        self.readiness()

    def table(self) -> RoutingTable:
        return table_of(self.core.book.state, 1)

    def front(self, *, name: str = "front", drained: bool = True, **load: Any) -> None:
        """Let a front end tell its load; every backend that is on its way out has no session when ``drained``."""
        table = self.table()
        counts = load.pop("backends", {})
        self.fronted = True
        backends = tuple(
            BackendLoad(one.name, up=True, drained=one.draining and drained, **counts.get(one.job, {}))
            for route in table.routes
            for one in route.backends
        )
        told = RouteLoad(WEB, backends=backends, **load)
        self.tell(FrontEndReport(name, "http://front", table.epoch, table.digest, (told,)))

    def advance(self, seconds: float) -> None:
        """Let time pass, with heartbeats of all nodes and a report of the front end every second."""
        end = self.now + seconds
        while self.now < end:
            super().advance(min(1.0, end - self.now))
            self.readiness(**self.sick)
            if self.fronted:
                self.front(**self.traffic)
