"""Everything goes wrong, for a while, on a pool of several machines: is anything lost, run twice, or wrong?

    python -m bench.chaos --json [--minutes 10] [--seed 1]

Four nodes, two heads and their PostgreSQL, each on a machine made of namespaces, run arrays and gangs with checkpoints.
Machines are killed, cut off, paused, slowed and restarted, and so are the parts of corral and Ray on them; some faults
come alone and are timed, some in pairs. Prints one object:

* ``minutes``, ``faults`` (kind to count), ``jobs`` (acknowledged), ``lost`` (of them), ``lost_writes`` (those that the
  pool forgot), ``wrong_results``, and ``double_runs``: exclusive tasks of which two incarnations ran at once;
* ``detect_s_max``: the longest time from a fault to its detection; and until tasks ran again: not fenced ones
  (``again_unfenced_s_max``), after proof of death (``again_proof_s_max``), exclusive ones less their lease
  (``again_over_lease_s_max``). In seconds; null where nothing was measured;
* ``lease_s``, the short lease of this load; ``paused_overlap_s_max``: pauses of a whole machine are counted apart, a
  task of such a machine may run beside its successor for at most 1 s.

Needs root.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bench.chaos_faults import HEAD_FAULTS, NODE_FAULTS, Fault, Proof
from bench.chaos_load import Load, Submitted, Verdict, placed_on
from bench.hosts import HostFailed, HostsUnavailable
from bench.machines import Machines
from bench.progress import end_tidily_on_signals, say
from bench.witness import Overlap, Witness
from corral.client import Client
from corral.model.errors import CorralError
from corral.model.job import Fencing

LEASE_S = 12.0
JOBS = 8
HEAL_S = 120.0
PAUSE_OVERLAP_S = 1.0
PAIRS = 0.3
BUSY_NODES = 0.8


@dataclass(frozen=True)
class Struck:
    """A running task on the machine that a fault struck."""

    task: str
    incarnation: int
    fencing: Fencing


@dataclass
class Times:
    """The longest times in seconds; ``None`` until something was measured."""

    detect: float | None = None
    again_unfenced: float | None = None
    again_proof: float | None = None
    again_over_lease: float | None = None

    def take(self, name: str, seconds: float) -> None:
        """Keep the longest."""
        known = getattr(self, name)
        setattr(self, name, seconds if known is None else max(known, seconds))


@dataclass
class Chaos:
    """One run on one pool."""

    pool: Machines
    load: Load
    witness: Witness
    rng: random.Random
    faults: Counter[str] = field(default_factory=Counter)
    times: Times = field(default_factory=Times)
    paused: set[tuple[str, int]] = field(default_factory=set)

    def run(self, seconds: float, kinds: Sequence[Fault] = (*NODE_FAULTS, *HEAD_FAULTS)) -> None:
        """Do one fault after the other until the time is over; the last one is undone."""
        while not self._busy():
            time.sleep(0.5)
        until = time.monotonic() + seconds
        deck: list[Fault] = []
        while time.monotonic() < until:
            if not deck:
                deck = [*kinds]
                self.rng.shuffle(deck)
            fault = deck.pop()
            if self.rng.random() < PAIRS and deck and (deck[-1] in NODE_FAULTS) != (fault in NODE_FAULTS):
                self._pair(fault, deck.pop())
            else:
                self._alone(fault)
            self.heal()

    def heal(self) -> None:
        """Wait until every node is up and every head leads or stands by. Raises ``SystemExit`` when one stays away."""
        began = time.monotonic()
        while (states := self._states()) is None or set(states.values()) != {"up"}:
            if time.monotonic() > began + HEAL_S:
                for name in (*self.pool.heads, *self.pool.nodes):
                    say(self.pool.last_words(name))
                raise SystemExit(f"the pool does not heal: {states}")
            time.sleep(0.2)

    # ---- faults ----------------------------------------------------------------------------------------------------

    def _alone(self, fault: Fault) -> None:
        name = self._target(fault)
        struck = self._struck_by(fault, name)
        with self._doing(fault, name, struck):
            since = time.time()
            until = time.monotonic() + self.rng.uniform(*fault.seconds)
            if fault.proof is Proof.NONE:
                self._time_detection(name, since, until)
            while time.monotonic() < until:
                time.sleep(0.2)
        self._time_tasks(fault, struck, since)

    def _pair(self, one: Fault, other: Fault) -> None:
        # Who is struck is asked before anything is broken: later there may be nobody to ask.
        targets = [
            (fault, name, self._struck_by(fault, name)) for fault in (one, other) for name in [self._target(fault)]
        ]
        with contextlib.ExitStack() as both:
            for fault, name, struck in targets:
                both.enter_context(self._doing(fault, name, struck))
            time.sleep(max(self.rng.uniform(*fault.seconds) for fault in (one, other)))

    def _target(self, fault: Fault) -> str:
        # The pool packs its tasks together: most faults are for nodes that have some.
        if fault in NODE_FAULTS and self.rng.random() < BUSY_NODES and (busy := self._busy()):
            return self.rng.choice(busy)
        return self.rng.choice(self.pool.nodes if fault in NODE_FAULTS else self.pool.heads)

    def _busy(self) -> list[str]:
        with self.pool.client() as client:
            return [node.spec.id for node in client.nodes() if node.gangs]

    @contextlib.contextmanager
    def _doing(self, fault: Fault, name: str, struck: Sequence[Struck]) -> Iterator[None]:
        say(f"{fault.name} at {name}, {len(struck)} tasks")
        self.faults[fault.name] += 1
        if fault.whole:
            self.paused.update((one.task, one.incarnation) for one in struck)
        with fault.act(self.pool, name, self.rng):
            yield

    def _struck_by(self, fault: Fault, node: str) -> list[Struck]:
        """Return the tasks that run on a node, have shown themselves, and are not done; none run on a head."""
        if fault not in NODE_FAULTS:
            return []
        found = []
        with self.pool.client() as client:
            for job in self.load.known():
                for (gang, rank), incarnation in placed_on(client.job(job.id), node).items():
                    task = f"{job.name}.{gang}.{rank}"
                    marks = self.witness.marks(task)
                    if marks and marks[-1].incarnation == incarnation and marks[-1].word != "end":
                        found.append(Struck(task, incarnation, job.fencing))
        return found

    # ---- times -----------------------------------------------------------------------------------------------------

    def _time_detection(self, node: str, since: float, until: float) -> None:
        while time.monotonic() < until:
            states = self._states()
            if states is not None and states.get(node) != "up":
                self.times.take("detect", time.time() - since)
                return
            time.sleep(0.05)

    def _time_tasks(self, fault: Fault, struck: Sequence[Struck], since: float) -> None:
        for one in struck:
            mark = self.witness.first(one.task, one.incarnation + 1)
            if mark is None:
                if fault.proof is not Proof.ALIVE:
                    silent_s = time.time() - self.witness.last(one.task)
                    say(f"{one.task} does not run again yet; it was seen {silent_s:.1f} s ago")
                continue
            again = mark.at - since
            say(f"{one.task} ({one.fencing}) runs again after {again:.1f} s")
            if fault.proof is Proof.DEAD:
                self.times.take("again_proof", again)
            elif fault.proof is Proof.NONE and one.fencing is Fencing.NONE:
                self.times.take("again_unfenced", again)
            elif fault.proof is Proof.NONE:
                self.times.take("again_over_lease", again - LEASE_S)

    def _states(self) -> dict[str, str] | None:
        """Return the states of the nodes as the newest leader sees them; ``None`` while there is none."""
        try:
            head, _ = self.pool.leader()
            with Client(state_dir=self.pool.state_dir(head), retry_s=0.0, timeout_s=5.0) as client:
                return {node.spec.id: node.state for node in client.nodes()}
        except CorralError:
            return None


def fenced(jobs: Sequence[Submitted]) -> list[str]:
    """Return the tasks that must never run twice at the same time."""
    return [task for job in jobs if job.fencing is Fencing.EXCLUSIVE for task in job.tasks()]


def split(overlaps: Sequence[Overlap], paused: set[tuple[str, int]]) -> tuple[list[Overlap], float]:
    """Return the double runs, and the longest overlap of tasks on machines that were paused as a whole."""
    excused = [one for one in overlaps if (one.task, one.older) in paused and one.seconds <= PAUSE_OVERLAP_S]
    return [one for one in overlaps if one not in excused], max((one.seconds for one in excused), default=0.0)


def rounded(seconds: float | None) -> float | None:
    """Return a time as it is printed."""
    return None if seconds is None else round(seconds, 2)


def measure(minutes: float, seed: int) -> dict[str, object]:
    """Run the whole benchmark."""
    with Machines(nodes=4, gpus_per_node=8, heads=2, database=True) as pool:
        folder = pool.hosts.directory / "witness"
        folder.mkdir()
        say(f"the pool is up, its machines are below {pool.hosts.directory}")
        load = Load(pool.client, folder, jobs=JOBS, lease_s=LEASE_S, seed=seed)
        chaos = Chaos(pool, load, Witness(folder), random.Random(seed))
        load.start()
        try:
            chaos.run(minutes * 60.0)
        finally:
            load.stop()
        chaos.heal()
        say("all faults are undone; waiting for every job")
        verdict = load.verdict(say)
        return report(chaos, verdict, minutes, seed)


def report(chaos: Chaos, verdict: Verdict, minutes: float, seed: int) -> dict[str, object]:
    """Return what is printed."""
    doubles, paused_overlap = split(chaos.witness.overlaps(fenced(chaos.load.known())), chaos.paused)
    for one in doubles:
        excuse = "its machine was paused" if (one.task, one.older) in chaos.paused else "its machine was not paused"
        say(f"{one.task}: incarnation {one.older} ran beside {one.newer} for {one.seconds:.3f} s; {excuse}")
    return {
        "minutes": minutes,
        "faults": dict(sorted(chaos.faults.items())),
        "jobs": len(chaos.load.known()),
        "lost": len(verdict.lost),
        "double_runs": len(doubles),
        "lost_writes": len(verdict.lost_writes),
        "wrong_results": len(verdict.wrong),
        "detect_s_max": rounded(chaos.times.detect),
        "again_unfenced_s_max": rounded(chaos.times.again_unfenced),
        "again_proof_s_max": rounded(chaos.times.again_proof),
        "again_over_lease_s_max": rounded(chaos.times.again_over_lease),
        "paused_overlap_s_max": rounded(paused_overlap),
        "lease_s": LEASE_S,
        "seed": seed,
        "simulated": True,
    }


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m bench.chaos", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    end_tidily_on_signals()
    try:
        found = measure(options.minutes, options.seed)
    except (HostsUnavailable, HostFailed, CorralError) as error:
        sys.exit(str(error))
    print(json.dumps(found) if options.json else "\n".join(f"{key}: {value}" for key, value in found.items()))
    return 0 if not (found["lost"] or found["double_runs"] or found["lost_writes"] or found["wrong_results"]) else 1


if __name__ == "__main__":
    raise SystemExit(main())
