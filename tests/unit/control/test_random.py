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
OFTEN = "batch commit hear obey quiet fork begin end tick notice connect start_agent beat obey_stop solve".split()
WEIGHTS = dict.fromkeys(OFTEN, 6) | {"submit": 10, "quiet": 12, "solve": 12, "fence": 4, "crash": 3, "end": 10}
NAMES = [name for name in vars(Walk) if not name.startswith("_") and name not in {"machine", "take", "heal"}]


FOUND: dict[str, list[Step]] = {
    "nobody decides after a crash between the end of a task and what follows from it": [
        ("submit", 423, 773), ("quiet", 0, 0), ("crash", 428, 70), ("connect", 500, 731), ("fork", 41, 246),
        ("crash", 512, 815),
    ],
    "a rank that never started while its gang was stopped cancels the gang": [
        ("submit", 259, 624), ("crash", 110, 772), ("connect", 563, 112), ("quiet", 0, 0), ("fail_launch", 470, 677),
        ("hear", 494, 649),
    ],
    "a silent node that is still connected is forgotten and never comes back": [
        ("submit", 616, 697), ("tick", 2, 0), ("tick", 2, 0), ("quiet", 0, 0), ("fork", 337, 630), ("end", 715, 735),
        ("quiet", 0, 0), ("remove", 19, 31),
    ],
    "decisions carry the time of a machine whose clock is ahead": [("submit", 82, 105), ("submit", 652, 541)],
}  # fmt: skip
"""The shortest parts of walks that failed once, by what was wrong."""


def walk_of(seed: int) -> list[Step]:
    """Return the walk of a seed."""
    chance = random.Random(seed)
    # Each walk leaves some steps out and loves others: rare states need lopsided walks (swarm testing, Groce 2012).
    weights = [WEIGHTS.get(name, 1) * chance.choice((0, 1, 1, 5)) for name in NAMES]
    names = chance.choices(NAMES, weights, k=STEPS_PER_WALK)
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


@pytest.mark.parametrize("steps", FOUND.values(), ids=FOUND)
def test_what_was_found_once_stays_mended(steps: list[Step]) -> None:
    go(steps, orderly=True)


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
