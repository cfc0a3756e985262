"""A pool whose nodes fall silent, and what tests of silence need."""

from __future__ import annotations

from msgspec.structs import replace

from corral.control.config import ControlConfig
from corral.model.ask import JobAsk
from corral.model.events import TaskEnded
from corral.model.ids import JobId, TaskKey
from corral.model.job import Fencing, JobState
from corral.model.messages import (
    Hello,
    TaskPhase,
    TaskReport,
)
from tests.unit.control.world import World

LEASES = ControlConfig(leases=True)
EXCLUSIVE = JobAsk(argv=("x",), gpu_milli=4000)
UNFENCED = replace(EXCLUSIVE, fencing=Fencing.NONE)
KEY = TaskKey(JobId("1"), 0, 0)


def pool(*names: str, config: ControlConfig = LEASES) -> World:
    """Return a pool whose nodes have all been heard."""
    world = World(config, **dict.fromkeys(names or ("n1", "n2", "n3", "n4"), 4))
    pass_time(world, 1.0, *world.specs)
    return world


def pass_time(world: World, seconds: float, *heard: str) -> None:
    """Let time pass, with heartbeats of some nodes every half second."""
    end = world.now + seconds
    while world.now < end - 1e-9:
        for name in heard:
            world.heartbeat(name)
        world.advance(min(0.5, end - world.now))


def place(world: World, ask: JobAsk, job: str = "1") -> tuple[str, list[str]]:
    """Start a job and return the node of its first rank and all other nodes."""
    world.submit(ask)
    for rank in range(ask.num_nodes):
        world.start(job, rank=rank)
    home = world.placed_on(job)[0]
    return home, [name for name in world.specs if name != home]


def lost_after(world: World, limit_s: float, *heard: str) -> float | None:
    """Return after how many seconds of silence the first job's task was ended as lost."""
    begun = world.now
    while world.now - begun < limit_s:
        pass_time(world, 0.5, *heard)
        if any(isinstance(fact, TaskEnded) for fact in world.journal):
            return world.now - begun
    return None


def running(incarnation: int = 1, task: TaskKey = KEY) -> TaskReport:
    return TaskReport(task, incarnation, TaskPhase.RUNNING, 5)


def hello_of(world: World, name: str, *tasks: TaskReport, sent_s: float = 1.0, asked: int | None = None) -> None:
    spec = world.specs[name]
    world.tell(
        Hello(
            node=spec.id,
            protocol=1,
            spec=spec,
            agent_pid=1,
            supervisor_start="s",
            tasks=tasks,
            devices=(),
            sent_boottime_s=sent_s,
            asked=asked,
        )
    )


def again(world: World, job: str = "1") -> bool:
    gang = world.job(job).gangs[0]
    return gang.incarnation == 2 and gang.state is JobState.RUNNING
