"""Random walks over controller and agents: whatever happens, nothing runs twice, nothing is lost, everything ends.

``python -m tests.unit.control.test_random SEED [unruly]`` prints the shortest failing part of a walk;
``CORRAL_WALKS=500`` makes the test take more of them.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable

import pytest

from tests.unit.control.walk import Step, Walk

STEPS_PER_WALK = 250
OFTEN = "batch commit hear obey quiet fork begin end tick notice connect start_agent beat obey_stop".split()
WEIGHTS = dict.fromkeys(OFTEN, 6) | {"submit": 10, "quiet": 12, "fence": 3, "crash": 3, "end": 10}
NAMES = [name for name in vars(Walk) if not name.startswith("_") and name not in {"machine", "take", "heal"}]


def walk_of(seed: int) -> list[Step]:
    """Return the walk of a seed."""
    chance = random.Random(seed)
    names = chance.choices(NAMES, [WEIGHTS.get(name, 1) for name in NAMES], k=STEPS_PER_WALK)
    return [(name, chance.randrange(840), chance.randrange(840)) for name in names]


def go(steps: list[Step], *, orderly: bool) -> None:
    """Take a walk to its end."""
    walk = Walk(orderly=orderly)
    for step in steps:
        walk.take(step)
    walk.heal()


def shortest(steps: list[Step], fails: Callable[[list[Step]], bool]) -> list[Step]:
    """Return a part of a failing walk from which no step can be left out (delta debugging, Zeller 2002)."""
    size = len(steps) // 2
    while size:
        start = 0
        while start < len(steps):
            fewer = steps[:start] + steps[start + size :]
            if fails(fewer):
                steps = fewer
            else:
                start += size
        size //= 2
    return steps


@pytest.mark.parametrize("orderly", [True, False], ids=["orderly", "unruly"])
@pytest.mark.parametrize("seed", range(int(os.environ.get("CORRAL_WALKS", "20"))))
def test_nothing_is_lost_or_run_twice_and_everything_ends(seed: int, orderly: bool) -> None:
    go(walk_of(seed), orderly=orderly)


def main(seed: int, *, orderly: bool) -> None:
    """Print the shortest failing part of a walk and its failure."""

    def failure(steps: list[Step]) -> str:
        try:
            go(steps, orderly=orderly)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong is looked for
            return f"{type(error).__name__}: {error}"
        return ""

    steps = walk_of(seed)
    kind = failure(steps).partition(":")[0]
    if kind:
        steps = shortest(steps, lambda fewer: failure(fewer).startswith(kind))
        sys.stdout.write(f"{failure(steps)}\n{steps}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), orderly="unruly" not in sys.argv)
