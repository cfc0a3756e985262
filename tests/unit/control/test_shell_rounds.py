"""Global rounds through the shell: solved aside, while everything else goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from corral.control.config import ControlConfig
from corral.model.ask import JobAsk
from corral.model.errors import SolverFault
from corral.model.market import Market, RoundPlan
from corral.model.messages import AcknowledgeHeartbeat
from corral.policy.config import SchedulingConfig
from tests.unit.control.house import House, live
from tests.unit.control.solvers import just

QUICK = ControlConfig(scheduling=SchedulingConfig(round_s=1.0, tenure_s=0.0, tenure_restarts=0.0), node_silent_s=1e6)
ONE = JobAsk(argv=("x",), gpu_milli=1000)
URGENT = JobAsk(argv=("x",), gpu_milli=1000, priority=1)


async def begin(house: House) -> None:
    """Have job 1 on the pool's one device before anything contends."""
    await house.start("n1", gpus=1)
    await house.until(house.shell.core.book.board.offers, "the node")
    await house.submit(ONE)
    await house.running_task("1")


class Aside:
    """Implements ``ports.solver.RoundWorker``: waits at a gate, then fails or solves."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.asked: list[Market] = []
        self.fault: Exception | None = None
        self.closed = False

    async def solve(self, market: Market) -> RoundPlan:
        self.asked.append(market)
        await self.gate.wait()
        if self.fault is not None:
            raise self.fault
        return just(market)

    async def close(self) -> None:
        self.closed = True


def test_while_a_round_is_solved_everything_else_goes_on_and_then_its_plan_counts(state_dir: Path) -> None:
    async def scenario(house: House) -> None:
        aside = house.solver = Aside()
        await begin(house)
        await house.submit(URGENT)
        await house.until(lambda: aside.asked, "a round")
        before = len(house.engine.commands)
        house.engine.beat("n1")
        await house.until(
            lambda: any(isinstance(c, AcknowledgeHeartbeat) for c in house.engine.commands[before:]), "an answer"
        )
        assert house.job("1").gangs[0].stopping is None
        aside.gate.set()
        await house.running_task("2")
        assert house.job("1").gangs[0].preemptions == 1
        assert len(aside.asked) == 1
        await house.stop()
        assert aside.closed

    live(scenario, state_dir, QUICK)


@pytest.mark.parametrize(
    "fault,told",
    [(SolverFault("it died"), "it died"), (RuntimeError("a bug"), "it could not be solved (RuntimeError)")],
)
def test_a_solver_that_fails_is_asked_again_and_the_pool_goes_on(
    state_dir: Path, fault: Exception, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(house: House) -> None:
        aside = house.solver = Aside()
        aside.fault = fault
        aside.gate.set()
        await begin(house)
        await house.submit(URGENT)
        await house.until(lambda: str(fault) in caplog.text, "a word in the log")
        rounds = house.shell.core.rounds
        await house.until(lambda: rounds.fault == told, "what is told to who waits")
        aside.fault = None
        house.hands.at += 2.0
        await house.submit(ONE)
        await house.running_task("2")
        assert len(aside.asked) >= 2
        assert rounds.fault == ""
        await house.stop()

    live(scenario, state_dir, QUICK)
