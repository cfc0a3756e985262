"""Chooses the best point of a finished sweep and measures it once on the held-out digits.

Environment: POINTS (how many the sweep has), INPUT_DIR (the sweep's output directory; default CORRAL_OUTPUT_DIR),
CORRAL_OUTPUT_DIR. Writes best.json. The choice sees the validation digits only.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from demo import task
from demo.digits import joined, splits
from demo.sweep import KernelClassifier


def read_points(folder: Path, count: int) -> list[dict[str, Any]]:
    """Results of the points 0 to count - 1 in their order; ends the program when one is missing or unreadable."""
    points: list[dict[str, Any]] = []
    for index in range(count):
        path = folder / f"result-{index}.json"
        if not path.exists():
            task.refuse(f"point {index} of {count} has no result in {folder}", task.EXIT_FAILED)
        try:
            point = json.loads(path.read_bytes())
            points.append({name: point[name] for name in ("index", "C", "GAMMA", "SCALE", "validation_accuracy")})
        except (ValueError, KeyError, TypeError) as error:
            task.refuse(f"{path} is not a result of the sweep: {error!r}", task.EXIT_FAILED)
    return points


def main() -> None:
    """Choose, refit on training and validation digits together, and report the held-out accuracy."""
    count = task.integer("POINTS", at_least=1)
    output = task.directory("CORRAL_OUTPUT_DIR")
    points = read_points(task.directory("INPUT_DIR", str(output)), count)
    # Equal points are common on 300 digits: the smoother one, then the lower index, is taken.
    chosen = max(points, key=lambda point: (point["validation_accuracy"], -point["C"], -point["index"]))
    task.say(f"chosen of {count}: {chosen}")
    train, validation, held_out = splits()
    model = KernelClassifier(joined(train, validation), c=chosen["C"], gamma=chosen["GAMMA"], scale=chosen["SCALE"])
    chosen["accuracy"] = model.accuracy(held_out)
    task.write_whole(output / "best.json", json.dumps(chosen).encode())
    task.say(f"held-out accuracy {chosen['accuracy']:.4f}")


if __name__ == "__main__":
    task.run(main)
