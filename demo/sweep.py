"""One point of a hyper-parameter sweep: a kernel classifier of handwritten digits, judged on the validation digits.

Environment: C, GAMMA, SCALE (the point), CORRAL_ARRAY_INDEX, CORRAL_OUTPUT_DIR, optionally HOLD_SECONDS.
Writes result-<index>.json. `demo.best` chooses among the points.
"""

from __future__ import annotations

import json
import os
import time

import numpy as np
from numpy.typing import NDArray

from demo import task
from demo.digits import CLASSES, Split, splits

SCALES = ("unit", "root", "standard")


class KernelClassifier:
    """Least-squares support vector machine with a radial kernel, one against all.

    Solves `(K + I / C) a = T` with `K[i, j] = exp(-gamma * |x_i - x_j|^2)` and targets of -1 and +1 (Suykens and
    Vandewalle, Least squares support vector machine classifiers, 1999, without the bias). `gamma` is counted in units
    of 1 / (features * variance), so that it means the same under each scale of the pixels.
    """

    def __init__(self, part: Split, *, c: float, gamma: float, scale: str) -> None:
        """Fit to one part of the digits; raises `numpy.linalg.LinAlgError` when the system is singular."""
        self._scale = scale
        self._mean = part.pixels.mean(axis=0)
        deviation = part.pixels.std(axis=0)
        self._deviation = np.where(deviation > 0, deviation, 1.0)
        self._points = self._scaled(part.pixels)
        self._gamma = gamma / (self._points.shape[1] * self._points.var())
        targets = 2.0 * np.eye(CLASSES)[part.digits] - 1.0
        system = self._kernel(self._points)
        system[np.diag_indices_from(system)] += 1.0 / c
        self._weights = np.linalg.solve(system, targets)

    def _scaled(self, pixels: NDArray[np.float64]) -> NDArray[np.float64]:
        scaled = pixels
        if self._scale == "root":
            scaled = np.sqrt(pixels)
        elif self._scale == "standard":
            scaled = (pixels - self._mean) / self._deviation
        return scaled

    def _kernel(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        squares = (points**2).sum(axis=1)[:, None] + (self._points**2).sum(axis=1)[None, :]
        distances: NDArray[np.float64] = squares - 2.0 * points @ self._points.T
        similar: NDArray[np.float64] = np.exp(-self._gamma * distances)
        return similar

    def accuracy(self, part: Split) -> float:
        """Share of the digits named rightly, from 0 to 1."""
        named = (self._kernel(self._scaled(part.pixels)) @ self._weights).argmax(axis=1)
        return float((named == part.digits).mean())


def main() -> None:
    """Fit one point and write its result."""
    started_s = time.monotonic()
    index = task.integer("CORRAL_ARRAY_INDEX")
    c = task.number("C", at_least=1e-6)
    gamma = task.number("GAMMA", at_least=1e-6)
    scale = task.choice("SCALE", SCALES)
    output = task.directory("CORRAL_OUTPUT_DIR")
    hold_s = task.number("HOLD_SECONDS", 0.0)
    task.say(f"point {index}: C={c:g} GAMMA={gamma:g} SCALE={scale}")
    train, validation, _ = splits()
    accuracy = KernelClassifier(train, c=c, gamma=gamma, scale=scale).accuracy(validation)
    task.hold_until(started_s + hold_s)
    result = {
        "index": index,
        "C": c,
        "GAMMA": gamma,
        "SCALE": scale,
        "validation_accuracy": accuracy,
        "devices": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
        "incarnation": os.environ.get("CORRAL_INCARNATION", ""),
    }
    task.write_whole(output / f"result-{index}.json", json.dumps(result).encode())
    task.say(f"point {index}: validation accuracy {accuracy:.4f} in {time.monotonic() - started_s:.2f} s")


if __name__ == "__main__":
    task.run(main)
