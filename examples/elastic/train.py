"""A training that can be interrupted at any step, and that runs on as many devices as it gets.

It fits a two-layer network to handwritten digits (scikit-learn's) by stochastic gradient descent, in numpy. Three
things make it a good citizen of a pool:

- it saves itself every ``SAVE_EVERY`` steps and when it is sent SIGUSR1, into ``$CORRAL_CHECKPOINT_DIR``, and begins
  from what it finds there;
- it says how far it is (``corral.report_progress``), so that the pool knows what is left;
- it divides each batch among ``$WORLD_SIZE`` workers. The batch stays the same, so the result does not depend on how
  many there are. (Here a worker is a thread; with PyTorch it is a rank, and the sum of gradients an all-reduce.)

Run it without a pool, too: ``python train.py``.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

import corral

Array: TypeAlias = NDArray[np.float64]
Weights: TypeAlias = dict[str, Array]

HIDDEN = 48
BATCH = 96
RATE = 0.1
SAVE_EVERY = 200
TRAINED_ON = 1_437
"""Four fifths of the 1,797 images; the others measure the accuracy."""

asked_to_save = False


def on_signal(_number: int, _frame: FrameType | None) -> None:
    """Note that a checkpoint was asked for; it is made between two steps."""
    global asked_to_save  # noqa: PLW0603 - what a signal handler may do
    asked_to_save = True


def digits() -> tuple[Array, NDArray[np.int64]]:
    """Return images (n, 64) in 0..1 and their digits (n,), in a fixed order without meaning."""
    from sklearn.datasets import load_digits

    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    return found.data[order] / 16.0, found.target[order]


def fresh() -> Weights:
    """Return the weights before the first step."""
    random = np.random.default_rng(1)
    first, second = random.normal(0, 0.1, (64, HIDDEN)), random.normal(0, 0.1, (HIDDEN, 10))
    return {"w1": first, "b1": np.zeros(HIDDEN), "w2": second, "b2": np.zeros(10)}


def gradients(weights: Weights, images: Array, labels: NDArray[np.int64]) -> Weights:
    """Return the sum over a part of a batch of the gradients of the cross-entropy."""
    hidden = np.maximum(images @ weights["w1"] + weights["b1"], 0.0)
    scores = hidden @ weights["w2"] + weights["b2"]
    chances = np.exp(scores - scores.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    chances[np.arange(len(labels)), labels] -= 1.0
    back = (chances @ weights["w2"].T) * (hidden > 0)
    return {"w1": images.T @ back, "b1": back.sum(axis=0), "w2": hidden.T @ chances, "b2": chances.sum(axis=0)}


def step(weights: Weights, number: int, images: Array, labels: NDArray[np.int64], workers: ThreadPoolExecutor) -> None:
    """Take one step in place. Which images it sees depends on its number alone."""
    chosen = np.random.default_rng((2, number)).choice(TRAINED_ON, BATCH, replace=False)
    parts = np.array_split(chosen, world_size())
    sums = list(workers.map(lambda part: gradients(weights, images[part], labels[part]), parts))
    for name in weights:
        weights[name] -= RATE / BATCH * np.sum([one[name] for one in sums], axis=0)


def world_size() -> int:
    """Return how many workers there are in this run."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def accuracy(weights: Weights, images: Array, labels: NDArray[np.int64]) -> float:
    """Return the share of images that are recognised."""
    hidden = np.maximum(images @ weights["w1"] + weights["b1"], 0.0)
    return float(np.mean(np.argmax(hidden @ weights["w2"] + weights["b2"], axis=1) == labels))


def save(path: Path, weights: Weights, done: int) -> None:
    """Write a checkpoint: whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    with new.open("wb") as file:
        np.savez(file, **(weights | {"done": np.array(done)}))
    new.replace(path)


def load(path: Path) -> tuple[Weights, int]:
    """Return the weights and the number of steps done of the last checkpoint, or those of the beginning."""
    if not path.exists():
        return fresh(), 0
    with np.load(path) as found:
        return {name: found[name] for name in ("w1", "b1", "w2", "b2")}, int(found["done"])


def train(steps: int, path: Path, after: Callable[[int], None] = lambda _done: None) -> Weights | None:
    """Return the trained weights, or ``None`` when the task is being stopped and has saved itself.

    ``after`` is called after each step with the number of steps done.
    """
    global asked_to_save  # noqa: PLW0603 - what a signal handler has set
    images, labels = digits()
    weights, done = load(path)
    print(f"begins at step {done} with {world_size()} workers", flush=True)
    with ThreadPoolExecutor(world_size()) as workers:
        while done < steps:
            step(weights, done, images, labels, workers)
            done += 1
            after(done)
            saves = asked_to_save or done % SAVE_EVERY == 0
            asked_to_save = False
            if saves:
                save(path, weights, done)
            corral.report_progress(done, steps, checkpoint=saves)
            if saves and corral.stopping():
                print(f"saved at step {done}", flush=True)
                return None
    save(path, weights, done)
    return weights


def main() -> None:
    """Train, and say how well it went."""
    signal.signal(signal.SIGUSR1, on_signal)
    path = Path(os.environ.get("CORRAL_CHECKPOINT_DIR", ".")) / "digits.npz"
    weights = train(int(os.environ.get("STEPS", "2000")), path)
    if weights is not None:
        images, labels = digits()
        print(f"accuracy {accuracy(weights, images[TRAINED_ON:], labels[TRAINED_ON:]):.4f}")


if __name__ == "__main__":
    main()
