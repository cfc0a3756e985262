"""Who solves global rounds: the production solver in a worker process, or a policy of the simulator in place."""

from __future__ import annotations

from typing import Protocol

from corral.model.market import Market, RoundPlan


class Solver(Protocol):
    """Turns a market into a plan. It may keep state from round to round, but must not depend on wall-clock time."""

    def __call__(self, market: Market) -> RoundPlan:
        """Return the plan of one round on ``market.snapshot``."""


class RoundWorker(Protocol):
    """Solves markets somewhere else, one at a time, while the event loop goes on."""

    async def solve(self, market: Market) -> RoundPlan:
        """Return the plan of one round. Raises ``SolverFault`` when the solver failed; the next call may work."""

    async def close(self) -> None:
        """Let go of whatever solves."""
