"""Data-parallel training of a small network on the handwritten digits, one process on each node of a gang.

Every step each rank computes the gradient of its share of the batch, the gradients are summed over the ranks, and all
ranks make the same update. Rank 0 saves each epoch, and at its end by SIGTERM or by the loss of a peer; a restarted
gang continues there and reaches the same weights bit by bit, however often it was interrupted.

Environment: MASTER_ADDR, MASTER_PORT, NODE_RANK, NNODES, CORRAL_JOB, CORRAL_CHECKPOINT_DIR, CORRAL_OUTPUT_DIR, and
optionally EPOCHS (default 30), MIN_SECONDS (the least time of all steps together, default 0), SEED,
JOIN_TIMEOUT_SECONDS (30), STEP_TIMEOUT_SECONDS (10). Rank 0 writes gang.json and gang-weights.npy.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import time
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from demo import task
from demo.allreduce import Gang, place_from_environment
from demo.digits import CLASSES, PIXELS, Split, joined, splits

HIDDEN = 64
BATCH = 64
LEARNING_RATE = 0.3
MOMENTUM = 0.9
SHAPES = ((PIXELS, HIDDEN), (HIDDEN,), (HIDDEN, CLASSES), (CLASSES,))
SIZES = tuple(math.prod(shape) for shape in SHAPES)

Vector = NDArray[np.float64]


class State(NamedTuple):
    """The training after `step` steps: weights and velocity, flat vectors of one length."""

    step: int
    weights: Vector
    velocity: Vector


class Plan(NamedTuple):
    """What must be equal over all lives of one training."""

    seed: int
    epochs: int
    ranks: int
    rows: int

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches in the training digits."""
        return self.rows // BATCH

    @property
    def steps(self) -> int:
        """Steps of the whole training."""
        return self.epochs * self.steps_per_epoch


def layers(vector: Vector) -> list[Vector]:
    """The matrices and biases in a flat vector, as views."""
    parts = np.split(vector, np.cumsum(SIZES)[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, SHAPES, strict=True)]


def beginning(seed: int) -> State:
    """Weights as in He et al., Delving deep into rectifiers (2015); no velocity."""
    random = np.random.default_rng(seed)
    first = random.normal(0.0, math.sqrt(2 / PIXELS), SIZES[0])
    second = random.normal(0.0, math.sqrt(2 / HIDDEN), SIZES[2])
    weights = np.concatenate([first, np.zeros(HIDDEN), second, np.zeros(CLASSES)])
    return State(0, weights, np.zeros_like(weights))


def logits(weights: Vector, pixels: Vector) -> tuple[Vector, Vector]:
    """Hidden activations (rows, 64) and logits (rows, 10)."""
    first, first_bias, second, second_bias = layers(weights)
    hidden = np.maximum(pixels @ first + first_bias, 0.0)
    return hidden, hidden @ second + second_bias


def gradient(weights: Vector, pixels: Vector, digits: NDArray[np.int64]) -> Vector:
    """Gradient of the summed cross-entropy over the rows, with the sum itself as the last number."""
    hidden, scores = logits(weights, pixels)
    scores = scores - scores.max(axis=1, keepdims=True)
    log_share = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    rows = np.arange(len(digits))
    loss = -log_share[rows, digits].sum()
    error = np.exp(log_share)
    error[rows, digits] -= 1.0
    back = (error @ layers(weights)[2].T) * (hidden > 0)
    parts = (pixels.T @ back, back.sum(axis=0), hidden.T @ error, error.sum(axis=0), loss)
    return np.concatenate([np.ravel(part) for part in parts])


def share_of_batch(plan: Plan, step: int, rank: int) -> NDArray[np.int64]:
    """Rows of this rank in this step: they depend on the seed and the step alone, not on what happened before."""
    epoch, batch = divmod(step, plan.steps_per_epoch)
    order = np.random.default_rng((plan.seed, epoch)).permutation(plan.rows)
    return order[batch * BATCH : (batch + 1) * BATCH][rank :: plan.ranks]


def updated(plan: Plan, state: State, summed: Vector) -> State:
    """One step of gradient descent with momentum under a cosine schedule."""
    rate = LEARNING_RATE * 0.5 * (1.0 + math.cos(math.pi * state.step / plan.steps))
    velocity = MOMENTUM * state.velocity + summed / BATCH
    return State(state.step + 1, state.weights - rate * velocity, velocity)


def pack(plan: Plan, state: State) -> bytes:
    """A checkpoint as bytes."""
    packed = io.BytesIO()
    label = json.dumps({"plan": plan._asdict(), "step": state.step})
    np.savez(packed, weights=state.weights, velocity=state.velocity, label=np.array(label))
    return packed.getvalue()


def unpack(plan: Plan, data: bytes) -> State:
    """The state in a checkpoint; raises ValueError when it is damaged or of another training."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            label = json.loads(str(arrays["label"]))
            state = State(int(label["step"]), arrays["weights"], arrays["velocity"])
    except (KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"it is damaged: {error!r}") from error
    if label["plan"] != plan._asdict():
        raise ValueError(f"it is of another training: {label['plan']}")
    return state


def resume(plan: Plan, checkpoint: Path) -> State:
    """The saved state or the beginning."""
    if not checkpoint.exists():
        return beginning(plan.seed)
    try:
        return unpack(plan, checkpoint.read_bytes())
    except ValueError as error:
        task.refuse(f"the checkpoint {checkpoint} cannot be used: {error}", task.EXIT_FAILED)


def received(plan: Plan, data: bytes) -> State:
    """The state that rank 0 starts from."""
    try:
        return unpack(plan, data)
    except ValueError as error:
        task.refuse(f"the state from rank 0 cannot be used: {error}", task.EXIT_FAILED)


def train(gang: Gang, plan: Plan, state: State, data: Split, pace_s: float, checkpoint: Path) -> State:
    """All remaining steps; rank 0 saves each epoch and, whatever ends the loop, the last whole step."""
    rank = gang.place.rank
    saved_step = state.step
    started_s, first_step = time.monotonic(), state.step
    losses: list[float] = []
    try:
        while state.step < plan.steps:
            rows = share_of_batch(plan, state.step, rank)
            summed = gang.sum(gradient(state.weights, data.pixels[rows], data.digits[rows]))
            losses.append(float(summed[-1]) / BATCH)
            state = updated(plan, state, summed[:-1])
            if rank == 0:
                task.hold_until(started_s + (state.step - first_step) * pace_s)
            if state.step % plan.steps_per_epoch == 0:
                if rank == 0:
                    task.write_whole(checkpoint, pack(plan, state))
                    saved_step = state.step
                epoch, loss = state.step // plan.steps_per_epoch, sum(losses) / len(losses)
                task.say(f"rank {rank}: epoch {epoch} of {plan.epochs}, loss {loss:.4f}")
                losses.clear()
    finally:
        if rank == 0 and state.step > saved_step:
            task.write_whole(checkpoint, pack(plan, state))
            task.say(f"rank 0: saved at step {state.step} of {plan.steps}")
    return state


def report(state: State, held_out: Split, resumed_step: int, output: Path) -> None:
    """Write the weights and what they are worth."""
    _, scores = logits(state.weights, held_out.pixels)
    accuracy = float((scores.argmax(axis=1) == held_out.digits).mean())
    packed = io.BytesIO()
    np.save(packed, state.weights)
    task.write_whole(output / "gang-weights.npy", packed.getvalue())
    result = {
        "accuracy": accuracy,
        "steps": state.step,
        "resumed_from_step": resumed_step,
        "incarnation": os.environ.get("CORRAL_INCARNATION", ""),
        "weights_sha256": hashlib.sha256(state.weights.tobytes()).hexdigest(),
    }
    task.write_whole(output / "gang.json", json.dumps(result).encode())
    task.say(f"held-out accuracy {accuracy:.4f} after {state.step} steps, resumed from step {resumed_step}")


def main() -> None:
    """Join the gang, train to the end, let rank 0 report."""
    epochs = task.integer("EPOCHS", 30, at_least=1)
    min_s = task.number("MIN_SECONDS", 0.0)
    seed = task.integer("SEED", 0)
    checkpoint = task.directory("CORRAL_CHECKPOINT_DIR") / "gang.npz"
    output = task.directory("CORRAL_OUTPUT_DIR")
    train_part, validation, held_out = splits()
    data = joined(train_part, validation)
    plan = Plan(seed, epochs, task.integer("NNODES", at_least=1), len(data.digits))
    pace_s = min_s / plan.steps
    place = place_from_environment(step_extra_s=pace_s)
    rank = place.rank
    # Only rank 0 reads the checkpoint: the others may run on nodes that have none.
    own = resume(plan, checkpoint) if rank == 0 else beginning(seed)
    task.say(f"rank {rank} of {place.ranks}: joining at {place.address}:{place.port}")
    gang = Gang(place)
    try:
        state = received(plan, gang.broadcast(pack(plan, own)))
        gang.started()
        task.say(f"rank {rank}: starting at step {state.step} of {plan.steps}")
        resumed_step = state.step
        state = train(gang, plan, state, data, pace_s, checkpoint)
        if rank == 0:
            report(state, held_out, resumed_step, output)
        # Nobody ends well before the result is written.
        gang.broadcast(b"done")
    finally:
        gang.close()


if __name__ == "__main__":
    task.run(main)
