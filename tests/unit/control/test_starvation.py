"""A gang that needs the whole pool, behind short jobs that do not cease to come: one day it is let through."""

from __future__ import annotations

import pytest

from corral.control.config import ControlConfig
from corral.model.ask import JobAsk
from corral.model.experience import WorkSpec
from corral.model.job import Cause, CheckpointSpec
from corral.policy.config import SchedulingConfig
from corral.policy.market.solve import RoundSolver
from tests.unit.control.world import World

SHORT_S, LONG_S, STEP_S = 120.0, 1_200.0, 60.0
GPUS = 4
OVERLOAD = 1.25
PATIENCE_S = 3_600.0


def work(gpus: int, seconds: float) -> JobAsk:
    spec = WorkSpec(total=seconds, throughput={f"H100:{gpus}": 1.0})
    return JobAsk(argv=("x",), gpu_milli=gpus * 1_000, work=spec, checkpoint=CheckpointSpec(), restart_cost_s=0.0)


class Stream:
    """Short jobs of one GPU come faster than the pool can serve them; what runs does its work, step by step."""

    def __init__(self, patience_s: float) -> None:
        scheduling = SchedulingConfig(tenure_s=STEP_S, tenure_restarts=0.0, round_s=STEP_S, patience_s=patience_s)
        self.world = World(ControlConfig(scheduling=scheduling, node_silent_s=1e9, node_lost_s=1e9), n1=GPUS)
        self.world.solver = RoundSolver(scheduling)
        self._left: dict[str, float] = {}
        self._owed = 0.0
        for _ in range(2 * GPUS):
            self.submit(1, SHORT_S)

    def submit(self, gpus: int, seconds: float) -> str:
        (name,) = self.world.submit(work(gpus, seconds))
        self._left[name] = seconds
        return name

    def started_after_s(self, name: str, limit_s: float) -> float | None:
        begun = self.world.now
        while self.world.now - begun < limit_s:
            self._step()
            if name not in self._left or self._left[name] < LONG_S:
                return self.world.now - begun
        return None

    def _step(self) -> None:
        world = self.world
        world.now += STEP_S
        self._owed += OVERLOAD * GPUS * STEP_S / SHORT_S
        while self._owed >= 1.0:
            self._owed -= 1.0
            self.submit(1, SHORT_S)
        for name in list(self._left):
            gang = world.job(name).gangs[0]
            if gang.live and gang.stopping is not None:
                world.end(name, cause=Cause.PREEMPTED)
            elif gang.live:
                if gang.tasks[0].started_at is None:
                    world.start(name)
                self._left[name] -= STEP_S
                if self._left[name] <= 0.0:
                    del self._left[name]
                    world.end(name)
        world.settle()


def test_nothing_overtakes_for_ever() -> None:
    stream = Stream(PATIENCE_S)
    waited_s = stream.started_after_s(stream.submit(GPUS, LONG_S), 4 * PATIENCE_S)
    assert waited_s is not None
    # Its worth for its size is a root of (4 GPUs x 1,200 s) / (1 GPU x 60 s left at least) below that of a short job
    # that came with it: a factor of 9. Those that came up to a quarter of the time later are ahead by less than that.
    assert PATIENCE_S < waited_s < 2 * PATIENCE_S


def test_without_patience_least_service_first_would_starve_it() -> None:
    stream = Stream(1e9)
    assert stream.started_after_s(stream.submit(GPUS, LONG_S), 4 * PATIENCE_S) is None


@pytest.mark.parametrize("gpus", [1, 2])
def test_usual_gangs_do_not_need_it(gpus: int) -> None:
    stream = Stream(1e9)
    assert stream.started_after_s(stream.submit(gpus, SHORT_S), 4 * SHORT_S) is not None
