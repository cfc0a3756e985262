"""The training of `examples/elastic` as a job of a test: it stands still at given steps until it is asked to save."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from corral.client.handle import JobHandle
from tests.e2e.livepool import LivePool

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "elastic"
STEPS = 900
# The order of sums in a product of matrices must not depend on how many threads a library takes.
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

_PROGRAM = """
import os, pathlib, signal, sys, time
sys.path.insert(0, os.environ["EXAMPLE"])
import train

def after(done):
    if str(done) in os.environ["HOLDS"].split():
        print(f"waits at step {done} of {train.world_size()}", flush=True)
        while not train.asked_to_save:
            time.sleep(0.01)

signal.signal(signal.SIGUSR1, train.on_signal)
path = pathlib.Path(os.environ["CORRAL_CHECKPOINT_DIR"]) / "digits.npz"
weights = train.train(int(os.environ["STEPS"]), path, after)
if weights is not None:
    images, labels = train.digits()
    print(f"accuracy {train.accuracy(weights, images[train.TRAINED_ON:], labels[train.TRAINED_ON:]):.4f}")
"""


def submit(pool: LivePool, holds: Sequence[int], **fields: Any) -> JobHandle:
    """Submit the training. It waits after each of the steps in ``holds`` until it is preempted there."""
    envs = {**ONE_THREAD, "EXAMPLE": str(EXAMPLE), "STEPS": str(STEPS), "HOLDS": " ".join(map(str, holds))}
    fields.setdefault("checkpoint", {"signal": "USR1", "grace": "60s"})
    return pool.submit([sys.executable, "-c", _PROGRAM], envs=envs, restart_cost=0, **fields)


def weights_of(pool: LivePool, job: JobHandle) -> dict[str, NDArray[np.float64]]:
    """Return the weights that a training has left."""
    return _load(pool.state_dir / "jobs" / job.id / "checkpoint" / "0")


def undisturbed(directory: Path, workers: int) -> tuple[dict[str, NDArray[np.float64]], str]:
    """Train without a pool; return the weights and the line that tells the accuracy."""
    envs = {"CORRAL_CHECKPOINT_DIR": str(directory), "WORLD_SIZE": str(workers), "STEPS": str(STEPS)}
    done = subprocess.run(
        [sys.executable, EXAMPLE / "train.py"],
        env={**os.environ, **ONE_THREAD, **envs},
        check=True,
        capture_output=True,
        text=True,
    )
    return _load(directory), done.stdout.splitlines()[-1]


def _load(directory: Path) -> dict[str, NDArray[np.float64]]:
    with np.load(directory / "digits.npz") as found:
        return {name: found[name] for name in found.files}


def same(one: dict[str, NDArray[np.float64]], other: dict[str, NDArray[np.float64]], names: Iterable[str]) -> bool:
    """Return whether arrays are equal to the last bit."""
    return all(np.array_equal(one[name], other[name]) for name in names)
