"""How a control core and its nodes talk within one instant, until nothing changes any more."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from corral.control.core import ControlCore, Input
from corral.control.inputs import Outcome
from corral.model.errors import SimulationStuck

STEPS_MAX = 10_000
"""Exchanges within one instant: more means that core and nodes talk in circles."""

Obey = Callable[[Outcome], list[Input]]
"""Does what the core wants done and returns what nodes and solver say to it."""


def exchange(core: ControlCore, now: float, inputs: Sequence[Input], obey: Obey, *, settles: bool) -> list[object]:
    """Tell a core some inputs and let it talk with its nodes; return its answers to them.

    With ``settles`` it also looks at the pool (its scheduling round) until that changes nothing. Raises
    ``SimulationStuck`` when they do not come to rest.
    """
    answers: list[object] = [core.handle(now, item) for item in inputs]
    for _ in range(STEPS_MAX):
        todo = obey(core.drain())
        if not todo:
            if not settles:
                return answers
            core.settle(now)
            outcome = core.drain()
            todo = obey(outcome)
            if not todo and not outcome.facts:
                return answers
        for item in todo:
            core.handle(now, item)
    raise SimulationStuck(f"core and nodes do not come to rest at {now:.0f} s")
