"""Heads that are killed, paused and cut from their database, again and again, under continuous submits: what is lost?

    python -m bench.failover --json [--runs 100] [--pools 3]

Prints one object: ``takeover_s_max`` (and ``_median``: from the fault to the first acknowledged write at the new
leader), ``stale_writes_accepted`` (journal entries of an older epoch behind one of a newer), ``acknowledged_lost``
(submits that were acknowledged and are not in the journal), ``submitted_twice`` (one idempotency key, two jobs),
``runs``, and how many there were of each fault. Every pool has three controllers of the product's own daemon on
loopback and a database of its own in a real PostgreSQL; each controller reaches it through a proxy that can be cut.

Faults: ``kill`` (kill -9), ``pause`` (SIGSTOP, and SIGCONT once another one leads), ``partition`` (the network swallows
what the leader and the database say), ``refuse`` (their connections break), ``hand_over`` (SIGTERM), ``commit`` (the
connection breaks at COMMIT, which reaches the server or not, and the leader is cut off then).
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import statistics
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from bench import postgres
from bench.heads import Head, Heads, Way
from bench.postgres import Cluster
from corral.client import Client
from corral.model.errors import CorralError
from corral.model.events import NodeJoined
from corral.model.ids import NodeId
from corral.model.resources import NodeSpec
from corral.ports.store import Batch
from corral.storage import PostgresStore

POOLS = 3
HEADS = 3
LIVE_MAX = 20
BETWEEN_S = 0.05
ANSWER_S = 2.0
PROBE_S = 0.02
SETTLE_S = 0.5
WHILE_S = 60.0


@dataclass
class Outcome:
    """What the runs of one pool showed."""

    takeovers_s: list[float] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    acknowledged: dict[str, str] = field(default_factory=dict)
    stale: int = 0
    lost: int = 0
    twice: int = 0


class Writer(threading.Thread):
    """Submits without end, each job under a name of its own; keeps what was acknowledged."""

    def __init__(self, urls: Sequence[str], token: str, outcome: Outcome) -> None:
        super().__init__(name="writer")
        self._client = Client(token=token, urls=urls, retry_s=WHILE_S, timeout_s=ANSWER_S)
        self._outcome = outcome
        self._live: list[str] = []
        self.stop = threading.Event()
        self.fault: CorralError | None = None

    def run(self) -> None:
        """Submit until told to stop."""
        try:
            while not self.stop.wait(BETWEEN_S):
                name = f"w-{uuid.uuid4().hex}"
                job = self._client.submit(name=name, run="true", cpus=1, idempotency_key=name)
                self._outcome.acknowledged[name] = job.id
                self._live.append(job.id)
                if len(self._live) > LIVE_MAX:
                    self._cancel(self._live.pop(0))
        except CorralError as error:
            self.fault = error
        finally:
            self._client.close()

    def _cancel(self, job: str) -> None:
        try:
            self._client.cancel(job)
        except CorralError as error:
            # A repeated cancel finds the job ended by the first.
            if error.code != "CONFLICT":
                raise


def kill(head: Head) -> Callable[[], None]:
    """Kill the head as a crash does; its supervisor would start it again at once, here once another one leads."""
    head.kill()
    return head.start


def pause(head: Head) -> Callable[[], None]:
    """Stop its process; it goes on later and believes at first that nothing has happened."""
    head.signal(signal.SIGSTOP)
    return lambda: head.signal(signal.SIGCONT)


def partition(head: Head) -> Callable[[], None]:
    """Lose everything between the head and the database; clients still reach the head."""
    head.proxy.turn(Way.SWALLOW)
    return lambda: head.proxy.turn(Way.CARRY)


def refuse(head: Head) -> Callable[[], None]:
    """Break its connections to the database, and refuse new ones."""
    head.proxy.turn(Way.REFUSE)
    return lambda: head.proxy.turn(Way.CARRY)


def hand_over(head: Head) -> Callable[[], None]:
    """End it in good order."""
    head.signal(signal.SIGTERM)
    assert head.process is not None
    head.process.wait(WHILE_S)
    return head.start


def commit(head: Head) -> Callable[[], None]:
    """Break the connection at the next COMMIT, whose outcome nobody knows then, and cut the head off."""
    before = head.proxy.commits_cut
    head.proxy.cut_at_commit(reaches=random.random() < 0.5)
    deadline = time.monotonic() + ANSWER_S
    while head.proxy.commits_cut == before and time.monotonic() < deadline:
        time.sleep(PROBE_S)
    return refuse(head)


FAULTS = (kill, pause, partition, refuse, hand_over, commit)


def one_run(heads: Heads, fault: Callable[[Head], Callable[[], None]]) -> float:
    """Inject a fault into the leader, wait for the next one, heal; return how long the takeover took in seconds."""
    old = heads.leader()
    others = [head for head in heads.heads if head is not old]
    began = time.monotonic()
    heal = fault(old)
    # What is measured begins with the fault, not with the wait for a transaction to break.
    began = time.monotonic() if fault is commit else began
    try:
        new = None
        while new is None:
            new = next((head for head in others if head.leads()), None)
            if time.monotonic() - began > WHILE_S:
                raise TimeoutError("nobody took over")
            time.sleep(PROBE_S)
        key = f"probe-{uuid.uuid4().hex}"
        with new.client(retry_s=WHILE_S) as client:
            client.cancel(client.submit(name=key, run="true", cpus=1, idempotency_key=key).id)
        took_s = time.monotonic() - began
    finally:
        heal()
    heads.until(lambda: not old.leads(), "the old leader to stand by")
    time.sleep(SETTLE_S)
    return took_s


def with_a_node(url: str) -> None:
    """Let the pool know a node, without which it admits nothing. It never answers: all jobs wait."""
    store = PostgresStore(url)
    store.open()
    spec = NodeSpec(NodeId("node-1"), "node-1", "127.0.0.1", 8_000, 8_192)
    store.append(0, store.acquire_leadership(), Batch((NodeJoined(at=time.time(), spec=spec),)))
    store.close()


def run_pool(cluster: Cluster, seed: int, runs: int, outcome: Outcome) -> None:
    """Put one pool through its faults and look at what its journal holds in the end."""
    dice, database = random.Random(seed), cluster.database()
    with_a_node(cluster.url(database))
    with Heads(HEADS, cluster.port, partial(cluster.url, database)) as heads:
        heads.start()
        writer = Writer(heads.urls, heads.heads[0].token, outcome)
        writer.start()
        order = [FAULTS[index % len(FAULTS)] for index in range(runs)]
        dice.shuffle(order)
        try:
            for number, fault in enumerate(order, start=1):
                took_s = one_run(heads, fault)
                outcome.takeovers_s.append(took_s)
                outcome.faults[fault.__name__] += 1
                sys.stderr.write(f"pool {seed}: {number}/{runs} {fault.__name__} {took_s:.2f} s\n")
        finally:
            writer.stop.set()
            writer.join(WHILE_S * 2)
        if writer.fault is not None:
            raise writer.fault
    judge(cluster, database, outcome)


def judge(cluster: Cluster, database: str, outcome: Outcome) -> None:
    """Hold the journal against what was acknowledged."""
    epoch = 0
    submitted: Counter[str] = Counter()
    there: dict[str, str] = {}
    for entry_epoch, kind, job, payload in cluster.query(
        database, "SELECT epoch, kind, job, payload FROM journal ORDER BY seq"
    ):
        outcome.stale += entry_epoch < epoch
        epoch = max(epoch, entry_epoch)
        if kind == "job-submitted":
            name = json.loads(payload)["spec"]["name"]
            submitted[name] += 1
            there[name] = job
    if not submitted:
        raise RuntimeError("the journal holds no submits: its names have changed")
    outcome.lost += sum(there.get(name) != job for name, job in outcome.acknowledged.items())
    outcome.twice += sum(count > 1 for count in submitted.values())


def measure(runs: int, pools: int) -> dict[str, object]:
    """Run everything; return the figures."""
    outcomes = [Outcome() for _ in range(pools)]
    faults: list[BaseException] = []
    with postgres.running() as cluster:

        def guarded(seed: int) -> None:
            try:
                run_pool(cluster, seed, -(-runs // pools), outcomes[seed])
            except BaseException as error:  # noqa: BLE001 - told by the main thread
                faults.append(error)

        threads = [threading.Thread(target=guarded, args=(seed,)) for seed in range(pools)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if faults:
        raise faults[0]
    takeovers = [took for outcome in outcomes for took in outcome.takeovers_s]
    return {
        "takeover_s_max": round(max(takeovers), 3),
        "takeover_s_median": round(statistics.median(takeovers), 3),
        "stale_writes_accepted": sum(outcome.stale for outcome in outcomes),
        "acknowledged_lost": sum(outcome.lost for outcome in outcomes),
        "submitted_twice": sum(outcome.twice for outcome in outcomes),
        "acknowledged": sum(len(outcome.acknowledged) for outcome in outcomes),
        "runs": len(takeovers),
        "faults": dict(sum((outcome.faults for outcome in outcomes), Counter())),
    }


def main() -> int:
    """Measure, print, and return 1 when anything was lost."""
    parser = argparse.ArgumentParser(prog="bench.failover")
    parser.add_argument("--json", action="store_true", help="print one JSON object (the default is a table)")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--pools", type=int, default=POOLS, help="pools that are put through it at the same time")
    asked = parser.parse_args()
    found = measure(asked.runs, asked.pools)
    print(json.dumps(found) if asked.json else "\n".join(f"{name:24}{value}" for name, value in found.items()))
    bad = ("stale_writes_accepted", "acknowledged_lost", "submitted_twice")
    return 1 if any(found[name] for name in bad) else 0


if __name__ == "__main__":
    raise SystemExit(main())
