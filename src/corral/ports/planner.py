"""Who answers what-if questions: production cores on a copy of the pool, in a process of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from corral.model.ids import NodeId
from corral.model.plan import PlanAsk, PlanReport


class PlanQuestion(msgspec.Struct, frozen=True):
    """What is asked of which pool: the controller's snapshot, its time (s since the epoch) and who answers there."""

    image: bytes
    at: float
    answering: Sequence[NodeId]
    ask: PlanAsk


class Planner(Protocol):
    """Answers one question at a time; a few more wait."""

    async def plan(self, question: PlanQuestion) -> PlanReport:
        """Return what the changes would do.

        Raises what the pool itself would answer, ``PlanTooLarge``, and ``Unavailable`` when too many ask.
        """
