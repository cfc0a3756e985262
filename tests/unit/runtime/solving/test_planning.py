"""Questions to a real process of the planner: answers, refusals, deaths and silence."""

from __future__ import annotations

import asyncio
import sys

import pytest

from corral.control.config import ControlConfig
from corral.model.ask import JobAsk
from corral.model.errors import PlanTooLarge, Unavailable, Unschedulable
from corral.model.ids import NodeId
from corral.model.plan import PlanAsk, PlanReport
from corral.ports.planner import PlanQuestion
from corral.runtime.solving.planning import WAITING_MAX, PlannerProcess
from tests.unit.control.world import World


def asked(ask: PlanAsk) -> PlanQuestion:
    world = World(n0=4)
    (job,) = world.submit(JobAsk(name="holds", argv=("true",), gpu_milli=4_000, max_duration_s=600.0))
    world.start(job)
    world.now += 60.0
    return PlanQuestion(world.core.image(), world.now, [NodeId("n0")], ask)


def plan(question: PlanQuestion, *command: str, patience_s: float = 100.0) -> PlanReport:
    async def once() -> PlanReport:
        config = ControlConfig()
        planner = PlannerProcess(config, command, patience_s) if command else PlannerProcess(config)
        return await planner.plan(question)

    return asyncio.run(once())


def test_a_question_is_answered_by_a_process_of_its_own() -> None:
    question = asked(PlanAsk(submit=(JobAsk(name="new", argv=("true",), gpu_milli=1_000, max_duration_s=60.0),)))
    (new,) = plan(question).submitted
    # What has run for 60 s goes on for 60 s more in half of all cases.
    assert new.start == pytest.approx(question.at + 60.0)


def test_what_the_pool_would_refuse_is_refused() -> None:
    with pytest.raises(Unschedulable):
        plan(asked(PlanAsk(submit=(JobAsk(argv=("true",), gpu_milli=64_000),))))


def test_a_process_that_dies_or_says_nothing_is_told_as_such() -> None:
    question = asked(PlanAsk(drain=(NodeId("n0"),)))
    with pytest.raises(PlanTooLarge, match="died with code 3"):
        plan(question, sys.executable, "-c", "import sys; sys.stdin.buffer.read(); sys.exit(3)")
    with pytest.raises(PlanTooLarge, match=r"no answer within 0\.5 s"):
        plan(question, sys.executable, "-c", "import time; time.sleep(100)", patience_s=0.5)


def test_who_asks_beside_others_waits_and_not_for_ever() -> None:
    question = asked(PlanAsk(drain=(NodeId("n0"),)))
    silent = (sys.executable, "-c", "import time; time.sleep(100)")

    async def many() -> list[PlanReport | BaseException]:
        planner = PlannerProcess(ControlConfig(), silent, patience_s=1.0, turn_s=0.1)
        return await asyncio.gather(*(planner.plan(question) for _ in range(WAITING_MAX + 2)), return_exceptions=True)

    first, *others = asyncio.run(many())
    assert isinstance(first, PlanTooLarge)
    assert len(others) == WAITING_MAX + 1
    assert all(isinstance(one, Unavailable) for one in others)


def test_a_process_of_the_planner_computes_with_one_thread() -> None:
    question = asked(PlanAsk(drain=(NodeId("n0"),)))
    code = "import os, sys; sys.stdin.buffer.read(); sys.exit(int(os.environ['OPENBLAS_NUM_THREADS']) + 6)"
    with pytest.raises(PlanTooLarge, match="died with code 7"):
        plan(question, sys.executable, "-c", code)
