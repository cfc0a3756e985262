"""What a task of the chaos does: a sum that nobody can guess, step by step, with checkpoints, before a witness.

    python chaos_task.py WITNESS NAME SEED STEPS STEP_S

Standard library only, and nothing of this repository: it runs wherever the pool puts it. With more than one rank every
step is a sum over all ranks, taken by rank 0 at ``MASTER_ADDR``:``MASTER_PORT``; whoever loses a peer ends with 75.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

WORD = 1 << 64
CHECKPOINT_EVERY = 10
PEER_S = 120.0
LOST_A_PEER = 75


def contribution(seed: int, step: int, rank: int) -> int:
    """Return what a rank adds in a step."""
    return (seed * 2654435761 + step * 40503 + rank * 69069) % WORD


def advance(value: int, total: int) -> int:
    """Return the value after a step in which all ranks together added ``total``. The constants are Knuth's MMIX."""
    return (value * 6364136223846793005 + total + 1442695040888963407) % WORD


def result(seed: int, steps: int, ranks: int) -> int:
    """Return what the task must end with."""
    value = seed
    for step in range(steps):
        value = advance(value, sum(contribution(seed, step, rank) for rank in range(ranks)) % WORD)
    return value


class Said:
    """The task's line in the witness; the format is that of ``bench.witness``."""

    def __init__(self, folder: Path, name: str) -> None:
        gang, rank = os.environ["CORRAL_GANG"], os.environ["CORRAL_RANK"]
        self._incarnation = os.environ["CORRAL_INCARNATION"]
        self._file = os.open(
            folder / f"{name}.{gang}.{rank}", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666
        )

    def __call__(self, word: str, value: int = 0) -> None:
        """Append a line in one piece."""
        os.write(self._file, f"{self._incarnation} {time.time():.6f} {word} {value}\n".encode())


class Checkpoint:
    """How far the task has come: written whole or not at all."""

    def __init__(self, rank: int) -> None:
        folder = Path(os.environ["CORRAL_CHECKPOINT_DIR"])
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / f"rank-{rank}.json"

    def load(self, seed: int) -> tuple[int, int]:
        """Return the next step and the value before it."""
        try:
            state = json.loads(self._file.read_text())
        except FileNotFoundError:
            return 0, seed
        return int(state["step"]), int(state["value"])

    def save(self, step: int, value: int) -> None:
        """Write it down."""
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps({"step": step, "value": value}))
        new.rename(self._file)


class Alone:
    """A task of one rank."""

    def agree(self, step: int, value: int) -> tuple[int, int]:
        """Return where to begin."""
        return step, value

    def total(self, part: int) -> int:
        """Return the sum over all ranks."""
        return part


class Peers:
    """The ranks of a gang, joined to rank 0. Raises ``OSError`` when one is lost."""

    def __init__(self, rank: int, ranks: int) -> None:
        self._rank = rank
        address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        if rank == 0:
            with socket.create_server(("", address[1])) as server:
                server.settimeout(PEER_S)
                self._streams = [self._stream(server.accept()[0]) for _ in range(ranks - 1)]
        else:
            self._streams = [self._stream(self._reach(address))]

    def agree(self, step: int, value: int) -> tuple[int, int]:
        """Return where rank 0 begins: its checkpoint is the one that counts."""
        if self._rank == 0:
            self._send([step, value])
            return step, value
        first, before = self._receive()[0]
        return first, before

    def total(self, part: int) -> int:
        """Return the sum over all ranks."""
        if self._rank == 0:
            total = (part + sum(one[0] for one in self._receive())) % WORD
            self._send([total])
            return total
        self._send([part])
        return self._receive()[0][0]

    def _reach(self, address: tuple[str, int]) -> socket.socket:
        deadline = time.monotonic() + PEER_S
        while True:
            try:
                return socket.create_connection(address, timeout=5.0)
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def _stream(self, peer: socket.socket) -> tuple[socket.socket, Iterator[str]]:
        peer.settimeout(PEER_S)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return peer, iter(peer.makefile("r"))

    def _send(self, numbers: list[int]) -> None:
        for peer, _ in self._streams:
            peer.sendall((json.dumps(numbers) + "\n").encode())

    def _receive(self) -> list[list[int]]:
        received = []
        for _, lines in self._streams:
            line = next(lines, "")
            if not line.endswith("\n"):
                raise ConnectionError("a peer has ended")
            received.append(json.loads(line))
        return received


def main(folder: Path, name: str, seed: int, steps: int, step_s: float) -> int:
    """Run the task; return its exit code."""
    rank, ranks = int(os.environ["CORRAL_RANK"]), int(os.environ["CORRAL_NUM_NODES"])
    seed += int(os.environ.get("CORRAL_ARRAY_INDEX", "0"))
    said, checkpoint = Said(folder, name), Checkpoint(rank)
    said("start")

    def stop(_number: int, _frame: FrameType | None) -> None:
        said("stop")
        raise SystemExit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, stop)
    with contextlib.suppress(OSError):
        peers = Peers(rank, ranks) if ranks > 1 else Alone()
        step, value = peers.agree(*checkpoint.load(seed))
        while step < steps:
            value = advance(value, peers.total(contribution(seed, step, rank)))
            step += 1
            if step % CHECKPOINT_EVERY == 0:
                checkpoint.save(step, value)
            said("step")
            time.sleep(step_s)
        said("end", value)
        print(f"result {value}", flush=True)
        return 0
    return LOST_A_PEER


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])))
