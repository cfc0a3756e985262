"""The load of the chaos: jobs whose results are known beforehand, submitted until the pool has acknowledged them."""

from __future__ import annotations

import random
import sys
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench import chaos_task
from corral.client import Client
from corral.model.errors import CorralError, NotFound
from corral.model.job import Fencing, Job, JobState

STEP_S = 0.05
ARRAY_SIZE = 3
GANG_RANKS = 2
GANG_EVERY = 3
END_S = 300.0


@dataclass(frozen=True)
class Submitted:
    """An acknowledged job and what it has to come to."""

    id: str
    name: str
    fencing: Fencing
    seed: int
    steps: int
    elements: int
    ranks: int

    def tasks(self) -> list[str]:
        """Return its tasks as the witness calls them."""
        return [f"{self.name}.{gang}.{rank}" for gang in range(self.elements) for rank in range(self.ranks)]

    def result(self, element: int) -> int:
        """Return what an element must end with."""
        return chaos_task.result(self.seed + element, self.steps, self.ranks)


@dataclass
class Verdict:
    """How the acknowledged jobs ended: those that did not succeed, those the pool forgot, and wrong values."""

    lost: list[str] = field(default_factory=list)
    lost_writes: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


class Load:
    """Keeps a number of jobs unfinished until it is told to stop. ``client`` makes a client of the pool."""

    def __init__(
        self,
        client: Callable[[], Client],
        witness: Path,
        *,
        jobs: int,
        lease_s: float,
        seed: int,
        steps: tuple[int, int] = (200, 900),
    ) -> None:
        self._client = client
        self._witness = witness
        self._unfinished_max = jobs
        self._lease_s = lease_s
        self._steps = steps
        self._random = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self.submitted: list[Submitted] = []
        self.faults: list[CorralError] = []

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Submit nothing more. Raises the first error that no repetition helps against."""
        self._stop.set()
        self._thread.join()
        if self.faults:
            raise self.faults[0]

    def known(self) -> list[Submitted]:
        """Return the acknowledged jobs."""
        return list(self.submitted)

    def _run(self) -> None:
        with self._client() as client:
            while not self._stop.wait(0.5):
                try:
                    status = client.status()
                    if status.running_gangs + status.pending_gangs < self._unfinished_max:
                        self._submit(client)
                except CorralError as error:
                    if not error.retryable:
                        self.faults.append(error)
                        return

    def _submit(self, client: Client) -> None:
        number = len(self.submitted)
        gang = number % GANG_EVERY == 0
        asked = Submitted(
            id="",
            name=f"{'gang' if gang else 'array'}-{number}",
            fencing=Fencing.EXCLUSIVE if gang or number % GANG_EVERY == 1 else Fencing.NONE,
            seed=self._random.randrange(1 << 32),
            steps=self._random.randint(*self._steps),
            elements=1 if gang else ARRAY_SIZE,
            ranks=GANG_RANKS if gang else 1,
        )
        key = uuid.uuid4().hex
        while not self._stop.is_set():
            try:
                self.submitted.append(self._asked(client, asked, key))
                return
            except CorralError as error:
                # The same key: what was taken without an answer is not taken twice.
                if not error.retryable:
                    raise

    def _asked(self, client: Client, asked: Submitted, key: str) -> Submitted:
        program = [sys.executable, chaos_task.__file__, str(self._witness), asked.name]
        job = client.submit(
            run=[*program, str(asked.seed), str(asked.steps), str(STEP_S)],
            name=asked.name,
            gpus=1,
            cpus=1,
            memory="1G",
            num_nodes=asked.ranks,
            array=None if asked.elements == 1 else f"0-{asked.elements - 1}",
            fencing=asked.fencing.value,
            lease=self._lease_s,
            max_restarts=1000,
            workdir=None,
            idempotency_key=key,
        )
        return Submitted(job.id, asked.name, asked.fencing, asked.seed, asked.steps, asked.elements, asked.ranks)

    def verdict(self, say: Callable[[str], None]) -> Verdict:
        """Wait until every acknowledged job has ended and compare it with what it should be."""
        verdict = Verdict()
        with self._client() as client:
            for job in self.submitted:
                try:
                    ended = client.wait(job.id, END_S)
                except NotFound:
                    verdict.lost_writes.append(job.name)
                    continue
                if ended.name != job.name:
                    verdict.lost_writes.append(job.name)
                elif ended.state is not JobState.SUCCEEDED:
                    say(f"{job.name} (job {job.id}) is {ended.state}: {ended.message}")
                    verdict.lost.append(job.name)
                else:
                    verdict.wrong += self._wrong(client, job, say)
        return verdict

    def _wrong(self, client: Client, job: Submitted, say: Callable[[str], None]) -> list[str]:
        wrong = []
        for element in range(job.elements):
            for rank in range(job.ranks):
                ref = f"{job.id}.{element}" if job.elements > 1 else job.id
                text = b"".join(chunk.data for chunk in client.logs(ref, rank=rank)).decode()
                said = text.splitlines()[-1:]
                if said != [f"result {job.result(element)}"]:
                    say(f"{job.name}, element {element}, rank {rank}: {said} is not {job.result(element)}")
                    wrong.append(f"{job.name}.{element}.{rank}")
        return wrong


def placed_on(job: Job, node: str) -> dict[tuple[int, int], int]:
    """Return the running tasks of a job on a node: (gang, rank) to incarnation."""
    return {
        (gang.index, task.rank): gang.incarnation
        for gang in job.gangs.values()
        for task in gang.tasks
        if not gang.state.ended and task.placement is not None and task.placement.node == node
    }
