"""The process that solves global rounds: what goes in comes out, and what dies is started again."""

from __future__ import annotations

import asyncio
import os
import sys
import textwrap
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from corral.model.errors import SolverFault
from corral.model.experience import ServiceClass, ServiceHistory
from corral.model.ids import GangKey, JobId, TenantId
from corral.model.market import Loss, Market, RoundPlan
from corral.policy.config import SchedulingConfig
from corral.runtime.solving.solver import PART_GANGS, SolverProcess, join, parts_of
from tests.unit.policy.building import candidate, holding, node_spec, place_on, queue, snapshot, standings, tenant

CONFIG = SchedulingConfig(round_s=7.0)
TOY = """
    import os, sys, time
    from corral.model.ids import GangKey, JobId
    from corral.model.market import Loss, RoundPlan
    from corral.runtime.solving.solver import serve

    class Toy:
        def __init__(self, config):
            self.config = config
            self.rounds = 0

        def __call__(self, market):
            self.rounds += 1
            return solve(market, self.config, self.rounds)

    def solve(market, config, rounds):
        what = market.pending[0].key.job
        if what == "666":
            os._exit(3)
        if what == "13":
            raise ValueError("no luck")
        if what == "99":
            time.sleep(600)
        names = [c.key for c in market.pending] + [h.key for h in market.snapshot.holdings]
        losses = {key: Loss(config.round_s, float(rounds), "price") for key in names}
        return RoundPlan(market.snapshot.version, prices={"H100": float(len(market.snapshot.nodes))}, losses=losses)

    serve(Toy, sys.stdin.buffer, sys.stdout.buffer)
"""


def market(first: int, pending: int = 1, held: int = 1, nodes: int = 2) -> Market:
    specs = [node_spec(f"n{i}") for i in range(nodes)]
    holdings = [holding(10_000 + i, place_on("n0", i)) for i in range(held)]
    return Market(
        snapshot(specs, holdings),
        tuple(candidate(first + i) for i in range(pending)),
        standings(tenant("a")),
        dict([queue()]),
        history=ServiceHistory({ServiceClass(TenantId("a"), 2): (1.0, 2.0)}),
        trust={TenantId("a"): 0.5},
    )


def drill(scenario: Callable[[SolverProcess], Awaitable[None]], patience_s: float = 60.0) -> None:
    """Run a scenario with a solver of its own and clean up."""

    async def whole() -> None:
        solver = SolverProcess(CONFIG, [sys.executable, "-c", textwrap.dedent(TOY)], patience_s)
        try:
            await scenario(solver)
        finally:
            await solver.close()

    asyncio.run(whole())


def test_a_market_is_the_same_after_its_parts_were_joined() -> None:
    whole = market(1, pending=2 * PART_GANGS + 1, held=8)
    parts = list(parts_of(whole, CONFIG))
    assert len(parts) == 1 + 1 + 1 + 3 + 1
    assert join(parts) == (whole, CONFIG)
    with pytest.raises(ValueError, match="head"):
        join(parts[1:])


def test_plans_come_back_from_one_child_that_is_kept() -> None:
    async def scenario(solver: SolverProcess) -> None:
        assert solver.pid is None, "nothing is started before it is needed"
        plan = await solver.solve(market(1, pending=2))
        keys = [GangKey(JobId(n), 0) for n in ("1", "2", "10000")]
        assert plan == RoundPlan(1, prices={"H100": 2.0}, losses={key: Loss(7.0, 1.0, "price") for key in keys})
        first = solver.pid
        plan = await solver.solve(market(1, pending=3_000))
        assert len(plan.losses) == 3_001
        assert {loss.cost for loss in plan.losses.values()} == {2.0}, "the solver may remember the round before"
        assert solver.pid == first

    drill(scenario)


def test_a_round_that_fails_is_told_and_one_that_dies_or_hangs_is_replaced() -> None:
    async def scenario(solver: SolverProcess) -> None:
        with pytest.raises(SolverFault, match="a round failed: ValueError, its traceback"):
            await solver.solve(market(13))
        first = solver.pid
        assert first is not None
        assert (await solver.solve(market(1))).losses[GangKey(JobId("1"), 0)].cost == 1.0
        with pytest.raises(SolverFault, match="died"):
            await solver.solve(market(666))
        assert solver.pid is None
        assert (await solver.solve(market(1))).losses
        assert solver.pid not in (None, first)

    drill(scenario)


def test_a_child_that_hangs_is_killed() -> None:
    async def scenario(solver: SolverProcess) -> None:
        with pytest.raises(SolverFault, match=r"more than 2 s"):
            await solver.solve(market(99))
        assert solver.pid is None

    drill(scenario, patience_s=2.0)


def test_the_production_child_solves_a_round() -> None:
    async def whole() -> RoundPlan:
        solver = SolverProcess(CONFIG)
        try:
            return await solver.solve(market(1, pending=3, held=8, nodes=1))
        finally:
            await solver.close()

    plan = asyncio.run(whole())
    # Eight devices are held by as many gangs that had their tenure, three wait: whoever wins, all devices are in use.
    assert plan.version == 1
    assert len(plan.awards) == len(plan.evictions)
    assert plan.bound >= plan.value > 0


def test_the_child_ends_when_its_input_does() -> None:
    async def whole() -> int:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", textwrap.dedent(TOY), stdin=asyncio.subprocess.PIPE
        )
        assert child.stdin is not None
        child.stdin.write(b"\0\0\0")
        child.stdin.close()
        return await asyncio.wait_for(child.wait(), 60.0)

    assert asyncio.run(whole()) == 0


def test_the_daemon_never_loads_what_only_solving_needs() -> None:
    code = "import corral.runtime.daemon, sys; print([m for m in ('numpy', 'highspy') if m in sys.modules])"

    async def loaded() -> bytes:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, cwd=Path(os.sep)
        )
        return (await child.communicate())[0]

    assert asyncio.run(loaded()).strip() == b"[]"
