"""A small job: one piece of a k-fold evaluation of nearest neighbours, then a device held for a while.

Environment: QUERIES (digits to name, default 8), FOLDS (default 10), FOLD (default CORRAL_ARRAY_INDEX or 0, counted
modulo FOLDS), HOLD_SECONDS (the whole time the task keeps its devices, default 0).
"""

from __future__ import annotations

import time
from math import dist

from demo import task
from demo.digits import PIXELS, rows


def nearest(digit: bytes, known: list[bytes]) -> int:
    """The label of the known digit with the smallest Euclidean distance."""
    pixels = digit[:PIXELS]
    return min(known, key=lambda other: dist(pixels, other[:PIXELS]))[PIXELS]


def main() -> None:
    """Name the first digits of one fold by their nearest neighbours in the others."""
    started_s = time.monotonic()
    queries = task.integer("QUERIES", 8)
    folds = task.integer("FOLDS", 10, at_least=2)
    fold = task.integer("FOLD", task.integer("CORRAL_ARRAY_INDEX", 0)) % folds
    hold_s = task.number("HOLD_SECONDS", 0.0)
    digits = rows()
    asked = digits[fold::folds][:queries]
    known = [digit for row, digit in enumerate(digits) if row % folds != fold]
    right = sum(nearest(digit, known) == digit[PIXELS] for digit in asked)
    task.say(f"fold {fold} of {folds}: {right} of {len(asked)} right")
    task.hold_until(started_s + hold_s)
    task.say(f"device released after {time.monotonic() - started_s:.2f} s")


if __name__ == "__main__":
    task.run(main)
