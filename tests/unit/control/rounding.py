"""A pool in which rounds come quickly and tenures are short, and what tests of rounds do in it."""

from __future__ import annotations

from msgspec.structs import replace

from corral.control.config import ControlConfig
from corral.control.inputs import Administer, Solved
from corral.model.ask import JobAsk
from corral.model.events import GangPlaced, GangStopping, TenantSet
from corral.model.ids import DeviceId, NodeId, TenantId
from corral.model.job import Cause
from corral.model.market import RoundPlan
from corral.model.resources import DeviceShare, Placement
from corral.model.tenant import Quota, Tenant
from corral.policy.config import SchedulingConfig
from tests.unit.control.solvers import just
from tests.unit.control.world import World

TENURE_S = 20.0
QUICK = ControlConfig(
    scheduling=SchedulingConfig(round_s=10.0, tenure_s=TENURE_S, tenure_restarts=0.0), node_silent_s=1e6
)
ONE = JobAsk(argv=("x",), gpu_milli=1000)


def asked(tenant: str = "default", gpus: int = 1, nodes: int = 1, **changes: object) -> JobAsk:
    return replace(ONE, tenant=tenant, gpu_milli=1000 * gpus, num_nodes=nodes, **changes)


def house(config: ControlConfig = QUICK, *, floor: int = 2, **nodes: int) -> World:
    """Return a pool in which tenant ``b`` is guaranteed ``floor`` GPUs."""
    world = World(config, **(nodes or {"n1": 2, "n2": 2}))
    tenant = Tenant(TenantId("b"), guaranteed=Quota(1000 * floor))
    world.tell(Administer(TenantSet(at=world.now, tenant=tenant, by="me"), create=True))
    world.solver = just
    return world


def obey_stops(world: World) -> None:
    """Let every gang that was told to stop end."""
    for job in list(world.core.book.state.jobs.values()):
        for gang in job.gangs.values():
            for task in gang.tasks:
                if gang.stopping is not None and task.state.holds:
                    world.end(job.id, gang.index, task.rank, cause=Cause.PREEMPTED)


def stopping(world: World) -> list[GangStopping]:
    return [fact for fact in world.journal if isinstance(fact, GangStopping)]


def here(world: World, *devices: str) -> tuple[Placement, ...]:
    """Return placements of a rank with one GPU each on devices, with what a job without a word on CPUs gets."""
    other = next(p for fact in world.journal if isinstance(fact, GangPlaced) for p in fact.placements)
    return tuple(
        Placement(
            rank, NodeId(d.partition("-")[0]), (DeviceShare(DeviceId(d), 1000),), other.cpus_milli, other.memory_mib
        )
        for rank, d in enumerate(devices)
    )


def answer(world: World, plan: RoundPlan) -> None:
    """Answer the round that is under way."""
    world.tell(Solved(world.markets[-1].snapshot.version, plan))
