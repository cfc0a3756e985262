"""The faults of the chaos: how each is done to a pool of several machines, and undone.

Every fault is a context manager: entering does it, leaving undoes it and waits for nothing but what it started itself.
"""

from __future__ import annotations

import contextlib
import random
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import Enum

from bench.hosts import HostFailed
from bench.machines import Machines, kill


class Proof(Enum):
    """What the pool can know about the tasks of a node that a fault struck."""

    NONE = "silence only"
    DEAD = "proof that they are dead"
    ALIVE = "nothing is lost"


@dataclass(frozen=True)
class Fault:
    """One thing that can happen to one machine, for some seconds (least, most).

    ``whole`` pauses everything of a machine at once: the one fault under which an old task may run on for a moment.
    """

    name: str
    act: Callable[[Machines, str, random.Random], AbstractContextManager[None]]
    seconds: tuple[float, float]
    proof: Proof = Proof.ALIVE
    whole: bool = False


@contextmanager
def node_killed(pool: Machines, node: str, _: random.Random) -> Iterator[None]:
    """A node loses its power."""
    pool.hosts[node].kill()
    try:
        yield
    finally:
        pool.hosts[node].start()
        pool.return_node(node)


@contextmanager
def node_restarted(pool: Machines, node: str, _: random.Random) -> Iterator[None]:
    """A node is switched off and on, and joins as it does when a machine starts."""
    pool.hosts[node].kill()
    pool.hosts[node].start()
    starting = threading.Thread(target=pool.return_node, args=(node,), name=f"start-{node}")
    starting.start()
    try:
        yield
    finally:
        starting.join()


@contextmanager
def machine_cut(pool: Machines, name: str, _: random.Random) -> Iterator[None]:
    """A machine loses its network."""
    pool.hosts[name].cut()
    try:
        yield
    finally:
        pool.hosts[name].mend()


@contextmanager
def machine_paused(pool: Machines, name: str, _: random.Random) -> Iterator[None]:
    """Every process of a machine stops at once."""
    pool.hosts[name].pause()
    try:
        yield
    finally:
        pool.hosts[name].resume()


@contextmanager
def machine_slowed(pool: Machines, name: str, rng: random.Random) -> Iterator[None]:
    """A machine's network is as slow as a modem's or a bad line's."""
    pool.hosts[name].slow(rng.choice((256, 1024, 4096)))
    try:
        yield
    finally:
        pool.hosts[name].hurry()


@contextmanager
def agent_stopped(pool: Machines, node: str, _: random.Random) -> Iterator[None]:
    """A node's agent hangs."""
    agent = pool.agent(node)
    kill(agent, signal.SIGSTOP)
    try:
        yield
    finally:
        kill(agent, signal.SIGCONT)


@contextmanager
def agent_killed(pool: Machines, node: str, _: random.Random) -> Iterator[None]:
    """A node's agent dies."""
    kill(pool.agent(node))
    yield


@contextmanager
def raylet_killed(pool: Machines, node: str, _: random.Random) -> Iterator[None]:
    """A node's raylet dies."""
    for pid in pool.named(node, "/raylet/raylet "):
        kill(pid)
    yield


@contextmanager
def shims_killed(pool: Machines, node: str, _: random.Random) -> Iterator[None]:
    """Every shim of a node dies, and takes its task along."""
    for pid in shims(pool, node):
        kill(pid)
    yield


@contextmanager
def shims_stopped_and_cut(pool: Machines, node: str, _: random.Random) -> Iterator[None]:
    """The shims of a node hang while it has no network: its agent alone must keep the leases."""
    stopped = shims(pool, node)
    for pid in stopped:
        kill(pid, signal.SIGSTOP)
    pool.hosts[node].cut()
    try:
        yield
    finally:
        pool.hosts[node].mend()
        for pid in stopped:
            kill(pid, signal.SIGCONT)


@contextmanager
def daemon_killed(pool: Machines, head: str, _: random.Random) -> Iterator[None]:
    """A head's daemon dies."""
    for pid in pool.named(head, "corral.runtime.daemon"):
        kill(pid)
    yield


@contextmanager
def gcs_killed(pool: Machines, head: str, _: random.Random) -> Iterator[None]:
    """Ray's GCS dies, wherever it is."""
    for pid in pool.named(head, "gcs_server"):
        kill(pid)
    yield


@contextmanager
def head_killed(pool: Machines, head: str, _: random.Random) -> Iterator[None]:
    """A head loses its power."""
    pool.hosts[head].kill()
    try:
        yield
    finally:
        pool.hosts[head].start()
        pool.return_head(head)


@contextmanager
def head_cut_from_database(pool: Machines, head: str, _: random.Random) -> Iterator[None]:
    """A head loses its database, but not the nodes."""
    pool.hosts.part(pool.hosts[head], pool.hosts["db"])
    try:
        yield
    finally:
        pool.hosts.rejoin(pool.hosts[head], pool.hosts["db"])


@contextmanager
def head_cut_from_node(pool: Machines, head: str, rng: random.Random) -> Iterator[None]:
    """A head loses one of the nodes, and nothing else."""
    node = rng.choice(pool.nodes)
    pool.hosts.part(pool.hosts[head], pool.hosts[node])
    try:
        yield
    finally:
        pool.hosts.rejoin(pool.hosts[head], pool.hosts[node])


@contextmanager
def database_stopped(pool: Machines, _: str, rng: random.Random) -> Iterator[None]:
    """The database stops, cleanly or as in a crash, and comes back."""
    database = pool.database
    assert database is not None
    database.stop(rng.choice((signal.SIGINT, signal.SIGQUIT)))
    try:
        yield
    finally:
        database.start()


NODE_FAULTS: Sequence[Fault] = (
    Fault("node_killed", node_killed, (35.0, 45.0), Proof.NONE),
    Fault("node_restarted", node_restarted, (5.0, 10.0), Proof.DEAD),
    Fault("node_cut", machine_cut, (35.0, 45.0), Proof.NONE),
    Fault("node_cut_short", machine_cut, (2.0, 6.0)),
    Fault("node_paused", machine_paused, (35.0, 45.0), Proof.NONE, whole=True),
    Fault("node_slowed", machine_slowed, (10.0, 20.0)),
    Fault("agent_stopped", agent_stopped, (35.0, 45.0), Proof.NONE),
    Fault("agent_killed", agent_killed, (3.0, 8.0)),
    Fault("raylet_killed", raylet_killed, (10.0, 20.0)),
    Fault("shims_killed", shims_killed, (5.0, 10.0), Proof.DEAD),
    Fault("shims_stopped_and_cut", shims_stopped_and_cut, (35.0, 45.0), Proof.NONE),
)

HEAD_FAULTS: Sequence[Fault] = (
    Fault("daemon_killed", daemon_killed, (2.0, 5.0)),
    Fault("gcs_killed", gcs_killed, (5.0, 15.0)),
    Fault("head_killed", head_killed, (10.0, 25.0)),
    Fault("head_cut", machine_cut, (10.0, 25.0)),
    Fault("head_paused", machine_paused, (8.0, 20.0)),
    Fault("head_slowed", machine_slowed, (10.0, 20.0)),
    Fault("head_cut_from_database", head_cut_from_database, (10.0, 25.0)),
    Fault("head_cut_from_node", head_cut_from_node, (10.0, 25.0)),
    Fault("database_stopped", database_stopped, (5.0, 20.0)),
)


def shims(pool: Machines, node: str) -> list[int]:
    """Return the shims of a node: the parents of its tasks' programs."""
    found = []
    for path in pool.state_dir(node).glob("nodes/*/tasks/*/shim.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, ProcessLookupError, HostFailed):
            found.append(pool.shim(node, path.parent.name)[0])
    return found
