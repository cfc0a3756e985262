"""Tasks before a witness, on a pool of several machines: where they were put, and who ran when."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from bench import chaos_task, postgres
from bench.hosts import PACKAGES
from bench.machines import Machines
from bench.witness import Witness
from corral.client.handle import JobHandle
from corral.model.errors import Conflict
from tests import needs
from tests.waiting import wait_until

START_S = 60.0
LEASE_S = 10.0


def machines(**shape: Any) -> Machines:
    """Return a pool of several machines that is not started yet."""
    needs.root()
    for name, package in PACKAGES.items():
        needs.program(name, package=package)
    if postgres.binaries() is None:
        needs.unmet("needs a PostgreSQL server: apt-get install postgresql")
    # Found, not imported: beside a machine's wheel of AMD's library without that library the import fails.
    if importlib.util.find_spec("ray") is None:
        needs.unmet("needs the module ray: pip install 'corral[ray]'")
    return Machines(**shape)


class Crowd:
    """Tasks with names of their own, each of one rank and one GPU."""

    def __init__(self, pool: Machines) -> None:
        self.pool = pool
        self.client = pool.client()
        folder = Path(tempfile.mkdtemp(prefix="witness-", dir=pool.hosts.directory))
        self.witness = Witness(folder)
        self.jobs: dict[str, JobHandle] = {}

    def start(self, name: str, node: str, **fields: Any) -> JobHandle:
        """Run a task that never ends on a node, and return once it has shown itself."""
        others = [other for other in self.pool.nodes if other != node]
        for other in others:
            self.client.cordon(other)
        argv = [sys.executable, chaos_task.__file__, str(self.witness.folder), name, "7", "1000000", "0.02"]
        job = self.client.submit(run=argv, name=name, gpus=1, workdir=None, **fields)
        self.jobs[name] = job
        wait_until(lambda: self.witness.marks(f"{name}.0.0"), START_S, what=f"{name} to run on {node}")
        for other in others:
            self.client.uncordon(other)
        return job

    def states(self) -> dict[str, str]:
        """Return the state of each node, as `corral nodes` shows it."""
        return {node.spec.id: node.state for node in self.client.nodes()}

    def await_state(self, node: str, *states: str, timeout_s: float = START_S) -> None:
        """Wait until a node is in one of some states."""
        wait_until(lambda: self.states()[node] in states, timeout_s, 0.05, what=f"{node} to be {' or '.join(states)}")

    def await_again(self, *names: str) -> None:
        """Wait until each of some tasks runs as a second incarnation."""
        for name in names:
            wait_until(partial(self.witness.first, f"{name}.0.0", 2), START_S, 0.05, what=f"{name} to run again")

    def last(self, name: str, incarnation: int = 1) -> float:
        """Return when an incarnation was seen last (wall clock)."""
        return max(mark.at for mark in self.witness.marks(f"{name}.0.0") if mark.incarnation == incarnation)

    def lives(self, name: str, incarnation: int = 1) -> bool:
        """Wait for the next sign of life of a task; return whether it is of this incarnation."""
        task = f"{name}.0.0"
        seen = len(self.witness.marks(task))
        wait_until(lambda: len(self.witness.marks(task)) > seen, START_S, what=f"a sign of life of {name}")
        return self.witness.marks(task)[-1].incarnation == incarnation

    def outlives(self, name: str, duration_s: float) -> bool:
        """Wait until a task has gone on for so long from now; return whether its first incarnation is its only one."""
        task, until = f"{name}.0.0", time.time() + duration_s
        wait_until(lambda: self.witness.marks(task)[-1].at > until, duration_s + START_S, 0.1, what=f"{name} to go on")
        return self.witness.newest(task) == 1

    def overlap_s(self, *names: str) -> float:
        """Return the longest time for which two incarnations of one of these tasks ran."""
        return max((found.seconds for found in self.witness.overlaps(f"{name}.0.0" for name in names)), default=0.0)

    def never_twice(self, *names: str) -> bool:
        """Return whether no two incarnations of one of these tasks ever ran at the same time."""
        return not self.witness.overlaps(f"{name}.0.0" for name in names)

    def await_no_tasks(self, node: str) -> None:
        """Wait until no process of a task is left on a node."""
        wait_until(lambda: not self.pool.named(node, "chaos_task"), START_S, what=f"the ghosts of {node} to end")

    def cancel_all(self) -> None:
        """End every task."""
        jobs, self.jobs = self.jobs, {}
        for job in jobs.values():
            try:
                job.cancel()
            except Conflict:
                continue
        for job in jobs.values():
            assert job.wait(START_S).state.ended


@contextmanager
def crowd_on(pool: Machines) -> Iterator[Crowd]:
    """Give a crowd on a pool that is whole before and after."""
    crowd = Crowd(pool)
    with crowd.client:
        yield crowd
        crowd.cancel_all()
