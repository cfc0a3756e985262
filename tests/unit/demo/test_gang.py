from __future__ import annotations

import json
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demo.gang import Plan, beginning, gradient, layers, pack, share_of_batch, unpack
from tests.unit.demo.conftest import Start
from tests.waiting import wait_until

RANKS = 4
EPOCHS = 8
STEPS_PER_EPOCH = 23
Ranks = list["subprocess.Popen[str]"]


class Home:
    """The directories that a job keeps over its lives, and how its ranks are started."""

    def __init__(self, folder: Path, start: Start, port: int) -> None:
        self.checkpoints, self.output = folder / "checkpoints", folder / "output"
        self.checkpoints.mkdir(parents=True)
        self.output.mkdir()
        self._start = start
        self._port = port
        self._lives = 0

    def rank(self, rank: int, **given: object) -> subprocess.Popen[str]:
        settings: dict[str, object] = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": self._port,
            "NODE_RANK": rank,
            "NNODES": RANKS,
            "NPROC_PER_NODE": 1,
            "CORRAL_JOB": "gang-1",
            "CORRAL_INCARNATION": self._lives,
            "CORRAL_CHECKPOINT_DIR": self.checkpoints,
            "CORRAL_OUTPUT_DIR": self.output,
            "EPOCHS": EPOCHS,
        }
        return self._start("gang", **{**settings, **given})

    def live(self, **given: object) -> Ranks:
        self._lives += 1
        return [self.rank(rank, **given) for rank in range(RANKS)]

    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.output / "gang.json").read_text())
        return found

    def weights(self) -> np.ndarray:
        found: np.ndarray = np.load(self.output / "gang-weights.npy")
        return found

    def saved_step(self) -> int:
        with np.load(self.checkpoints / "gang.npz") as arrays:
            return int(json.loads(str(arrays["label"]))["step"])


def read_until(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            return
    pytest.fail(f"the output ended before {text!r}: {process.stderr.read() if process.stderr else ''}")


def codes(ranks: Ranks) -> list[int]:
    for process in ranks:
        process.communicate(timeout=60)
    return [process.returncode for process in ranks]


@pytest.fixture
def home(tmp_path: Path, start: Start, free_port: int) -> Home:
    return Home(tmp_path / "gang", start, free_port)


@pytest.mark.timeout(120)
def test_a_training_that_was_disturbed_three_times_ends_with_the_same_weights(
    home: Home, tmp_path: Path, start: Start, free_port: int
) -> None:
    calm = Home(tmp_path / "calm", start, free_port)
    assert codes(calm.live()) == [0, 0, 0, 0]
    assert calm.result()["resumed_from_step"] == 0
    assert calm.result()["accuracy"] >= 0.97

    # A peer is killed: all the others end, and rank 0 keeps what was reached.
    ranks = home.live(MIN_SECONDS=12)
    read_until(ranks[0], "epoch 1 of 8")
    ranks[2].kill()
    assert codes(ranks) == [1, 1, -signal.SIGKILL, 1]
    first = home.saved_step()
    assert STEPS_PER_EPOCH <= first < EPOCHS * STEPS_PER_EPOCH

    # Rank 0 is asked to stop: it saves within its grace.
    ranks = home.live(MIN_SECONDS=12)
    read_until(ranks[0], "epoch 3 of 8")
    ranks[0].terminate()
    assert codes(ranks) == [143, 1, 1, 1]
    second = home.saved_step()
    assert max(first, 3 * STEPS_PER_EPOCH) <= second < EPOCHS * STEPS_PER_EPOCH

    # Rank 0 is killed: the last whole epoch remains.
    ranks = home.live(MIN_SECONDS=12)
    read_until(ranks[0], "epoch 4 of 8")
    ranks[0].kill()
    assert codes(ranks) == [-signal.SIGKILL, 1, 1, 1]
    third = home.saved_step()
    assert third % STEPS_PER_EPOCH == 0
    assert third >= 4 * STEPS_PER_EPOCH

    assert codes(home.live()) == [0, 0, 0, 0]
    assert home.result()["resumed_from_step"] == third
    assert home.result()["steps"] == EPOCHS * STEPS_PER_EPOCH
    assert np.array_equal(home.weights(), calm.weights())
    assert home.result()["weights_sha256"] == calm.result()["weights_sha256"]


def test_a_finished_training_reports_again(home: Home) -> None:
    assert codes(home.live(EPOCHS=1)) == [0, 0, 0, 0]
    before = home.weights()
    assert codes(home.live(EPOCHS=1)) == [0, 0, 0, 0]
    assert home.result()["resumed_from_step"] == STEPS_PER_EPOCH
    assert np.array_equal(home.weights(), before)


def test_a_rank_that_hangs_does_not_hang_the_gang(home: Home) -> None:
    ranks = home.live(MIN_SECONDS=60, STEP_TIMEOUT_SECONDS=0.5)
    read_until(ranks[1], "starting at step 0")
    ranks[1].send_signal(signal.SIGSTOP)
    assert codes([ranks[0], ranks[2], ranks[3]]) == [1, 1, 1]


def test_a_rank_that_never_comes_is_named(home: Home) -> None:
    ranks = [home.rank(rank, JOIN_TIMEOUT_SECONDS=2) for rank in (0, 1, 3)]
    _, errors = ranks[0].communicate(timeout=60)
    assert ranks[0].returncode == 1
    assert errors == "gang: no word from rank 2 in 2 s\n"
    assert codes(ranks[1:]) == [1, 1]


def test_without_rank_0_the_others_end(home: Home, free_port: int) -> None:
    process = home.rank(1, JOIN_TIMEOUT_SECONDS=0.3)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors == f"gang: rank 0 does not listen at 127.0.0.1:{free_port} in 0.3 s\n"


def test_a_taken_port_is_one_line(home: Home, free_port: int) -> None:
    with socket.create_server(("127.0.0.1", free_port)):
        process = home.rank(0)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Address already in use" in errors
    assert errors.count("\n") == 1


def test_strangers_at_the_port_do_not_disturb(home: Home, free_port: int) -> None:
    first = home.rank(0, EPOCHS=1)
    read_until(first, "joining at")
    greetings = [
        b"GET / HTTP/1.0\r\n\r\n",
        b"\0\0\0\2{}",
        b'\0\0\0\x2f{"job": "other", "rank": 1, "incarnation": 99}  ',
    ]

    def connected() -> socket.socket | None:
        try:
            return socket.create_connection(("127.0.0.1", free_port), timeout=5)
        except ConnectionRefusedError:
            return None

    strangers = [wait_until(connected, what="rank 0 to listen") for _ in greetings]
    for stranger, greeting in zip(strangers, greetings, strict=True):
        assert stranger is not None
        stranger.sendall(greeting)
    ranks = [first, *(home.rank(rank, EPOCHS=1) for rank in range(1, RANKS))]
    assert codes(ranks) == [0, 0, 0, 0]
    for stranger in strangers:
        assert stranger is not None
        stranger.close()


def test_an_older_life_of_a_rank_is_turned_away(home: Home) -> None:
    first = home.rank(0, EPOCHS=1)
    old = home.rank(1, EPOCHS=1, CORRAL_INCARNATION=1)
    read_until(old, "joining at")
    young = home.rank(1, EPOCHS=1, CORRAL_INCARNATION=2)
    assert codes([old]) == [1]
    ranks = [first, young, *(home.rank(rank, EPOCHS=1) for rank in (2, 3))]
    assert codes(ranks) == [0, 0, 0, 0]


@pytest.mark.parametrize("damage", ["cut", "empty", "other seed"])
def test_a_checkpoint_that_cannot_be_used_is_told_in_one_line(home: Home, damage: str) -> None:
    plan = Plan(seed=1 if damage == "other seed" else 0, epochs=EPOCHS, ranks=RANKS, rows=1497)
    data = pack(plan, beginning(plan.seed))
    kept = {"cut": data[:100], "empty": b"", "other seed": data}[damage]
    (home.checkpoints / "gang.npz").write_bytes(kept)
    process = home.rank(0)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "cannot be used" in errors
    assert errors.count("\n") == 1


def test_a_checkpoint_comes_back_as_it_was() -> None:
    plan = Plan(seed=0, epochs=2, ranks=RANKS, rows=1497)
    state = beginning(0)._replace(step=7)
    back = unpack(plan, pack(plan, state))
    assert back.step == 7
    assert np.array_equal(back.weights, state.weights)
    assert np.array_equal(back.velocity, state.velocity)


def test_the_gradient_agrees_with_finite_differences() -> None:
    random = np.random.default_rng(1)
    weights = beginning(0).weights
    pixels, digits = random.random((5, 64)), np.array([0, 3, 9, 3, 1])
    exact = gradient(weights, pixels, digits)[:-1]
    step = 1e-6
    for place in random.choice(len(weights), 60, replace=False):
        moved = np.zeros_like(weights)
        moved[place] = step
        rise = gradient(weights + moved, pixels, digits)[-1] - gradient(weights - moved, pixels, digits)[-1]
        assert exact[place] == pytest.approx(rise / (2 * step), abs=1e-5)


def test_the_layers_of_a_vector() -> None:
    assert [part.shape for part in layers(beginning(0).weights)] == [(64, 64), (64,), (64, 10), (10,)]


def test_the_shares_of_a_batch_are_the_batch() -> None:
    plan = Plan(seed=0, epochs=2, ranks=RANKS, rows=1497)
    for epoch in range(2):
        seen: list[int] = []
        for batch in range(STEPS_PER_EPOCH):
            for rank in range(RANKS):
                seen += share_of_batch(plan, epoch * STEPS_PER_EPOCH + batch, rank).tolist()
        assert len(seen) == len(set(seen)) == STEPS_PER_EPOCH * 64
