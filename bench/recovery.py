"""kill -9 of the daemon, many times, under continuous submits and running jobs: what is lost?

    python -m bench.recovery --json [--kills 100]

Prints one object: ``kills`` (and by point), ``lost`` (acknowledged jobs that did not finish as they should),
``run_twice`` (jobs whose witness file shows more than one start), ``lost_log_lines``, ``lost_exit_codes``,
``back_in_service_ms_max`` and ``_median``. ``running_min`` is the least number of jobs that ran when a kill was
prepared. The daemon is restarted by the product's own supervisor. Every job appends
its incarnation to a witness file first, writes numbered lines and ends with a code of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from bench.processes import kill_carriers
from corral.client import Client
from corral.model.errors import CorralError
from corral.model.job import JobState
from corral.ports.faults import FaultPoint
from corral.runtime.options import PoolOptions
from corral.runtime.starting.launcher import start_pool
from corral.runtime.starting.stopping import stop_pool

PER_POINT_MIN = 5
LINES = 20
LINE_S = 0.5
RUNNING = 20
LONG_EVERY_S = 0.2
SUBMIT_EVERY_S = 0.04
WAIT_S = 120.0
POINT_WAIT_S = 20.0

STEP = 'echo "line $i"; i=$((i+1));'
BODY = 'echo "$CORRAL_INCARNATION" >> "$WITNESS"; i=0; while [ $i -lt $LINES ]; do {step} done; exit $CODE'
SHORT = BODY.format(step=STEP)
LONG = BODY.format(step=f"{STEP} sleep {LINE_S};")


@dataclass
class Ledger:
    """What was acknowledged: key -> (job number, expected exit code)."""

    acknowledged: dict[str, tuple[str, int]] = field(default_factory=dict)
    faults: list[CorralError] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


def submitter(state_dir: Path, witness: Path, ledger: Ledger, stop: threading.Event, *, long: bool) -> None:
    """Submit jobs until told to stop; an unanswered submit is repeated with its key until it is acknowledged."""
    try:
        _submit_all(state_dir, witness, ledger, stop, long=long)
    except CorralError as error:
        ledger.faults.append(error)


def _submit_all(state_dir: Path, witness: Path, ledger: Ledger, stop: threading.Event, *, long: bool) -> None:
    rng = random.Random(7 if long else 11)
    with Client(state_dir=state_dir, retry_s=WAIT_S) as client:
        while not stop.is_set():
            key, code = uuid.uuid4().hex, rng.randrange(0, 100)
            handle = client.submit(
                name=f"w-{key[:8]}",
                run=LONG if long else SHORT,
                gpus=0.5,
                envs={"WITNESS": str(witness / key), "CODE": str(code), "LINES": str(LINES)},
                idempotency_key=key,
            )
            with ledger.lock:
                ledger.acknowledged[key] = (handle.id, code)
            stop.wait(LONG_EVERY_S if long else SUBMIT_EVERY_S)


def daemon_pid(state_dir: Path) -> int:
    """Return the pid that the running daemon announced. Raises ``SystemExit`` when none did."""
    try:
        return int(json.loads((state_dir / "daemon.json").read_text())["pid"])
    except (OSError, ValueError, KeyError) as error:
        raise SystemExit(f"no daemon announced itself: {error}") from error


def back_in_service_ms(state_dir: Path, killed: int, since: float) -> float:
    """Wait until another daemon than ``killed`` answers and has announced itself; return the milliseconds."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        try:
            with Client(state_dir=state_dir, retry_s=0.0) as client:
                if client.status().pid == daemon_pid(state_dir) != killed:
                    return (time.monotonic() - since) * 1000.0
        except CorralError:
            pass
        time.sleep(0.005)
    raise SystemExit("the daemon did not come back")


def alive(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def kill_at(state_dir: Path, faults: Path, point: FaultPoint | None, rng: random.Random) -> float:
    """Kill the daemon once, at a named point or at random; return the milliseconds until it serves again."""
    pid = daemon_pid(state_dir)
    if point is None:
        time.sleep(rng.uniform(0.02, 0.4))
        os.kill(pid, signal.SIGKILL)
    else:
        (faults / point.value).touch()
        deadline = time.monotonic() + POINT_WAIT_S
        while alive(pid):
            if time.monotonic() > deadline:
                raise SystemExit(f"the point {point} was not reached")
            time.sleep(0.002)
    while alive(pid):
        time.sleep(0.001)
    return back_in_service_ms(state_dir, pid, time.monotonic())


def verdict(state_dir: Path, witness: Path, ledger: Ledger) -> dict[str, object]:
    """Wait for all acknowledged jobs and compare them with what they should be."""
    lost: list[str] = []
    lost_lines = lost_codes = 0
    with Client(state_dir=state_dir, retry_s=WAIT_S) as client:
        for key, (job, code) in ledger.acknowledged.items():
            ended = client.wait(job, WAIT_S)
            expected = JobState.SUCCEEDED if code == 0 else JobState.FAILED
            if ended.state is not expected or not (witness / key).exists():
                lost.append(job)
                continue
            lost_codes += ended.exit_code != code
            text = b"".join(chunk.data for chunk in client.logs(job)).decode()
            lost_lines += len({f"line {i}" for i in range(LINES)} - set(text.splitlines()))
    starts = [len(path.read_text().split()) for path in witness.iterdir()]
    return {
        "jobs": len(ledger.acknowledged),
        "lost": len(lost),
        "lost_jobs": lost[:20],
        "run_twice": sum(1 for n in starts if n > 1) + max(0, len(starts) - len(ledger.acknowledged)),
        "lost_log_lines": lost_lines,
        "lost_exit_codes": lost_codes,
    }


def running_jobs(state_dir: Path) -> int:
    """Return how many jobs run now."""
    with Client(state_dir=state_dir, retry_s=WAIT_S) as client:
        return client.status().running_gangs


def await_running(state_dir: Path) -> int:
    """Wait until as many jobs run as the benchmark promises; return how many."""
    deadline = time.monotonic() + WAIT_S
    while (running := running_jobs(state_dir)) < RUNNING:
        if time.monotonic() > deadline:
            raise SystemExit(f"fewer than {RUNNING} jobs run")
        time.sleep(0.05)
    return running


def schedule(kills: int, rng: random.Random) -> list[FaultPoint | None]:
    """Return the order of kills: each named point at least five times, the rest at random."""
    points: list[FaultPoint | None] = [p for p in FaultPoint for _ in range(PER_POINT_MIN)]
    points += [None] * max(0, kills - len(points))
    rng.shuffle(points)
    return points[:kills]


def measure(kills: int, seed: int) -> dict[str, object]:
    """Run the whole benchmark in a state directory of its own."""
    root = Path(tempfile.mkdtemp(prefix="crl-"))
    state, witness, faults = root / "s", root / "w", root / "f"
    for folder in (witness, faults):
        folder.mkdir()
    rng = random.Random(seed)
    ledger, stop = Ledger(), threading.Event()
    threads = [
        threading.Thread(target=submitter, args=(state, witness, ledger, stop), kwargs={"long": long}, daemon=True)
        for long in (True, False)
    ]
    back: list[float] = []
    running: list[int] = []
    points = schedule(kills, rng)
    try:
        start_pool(PoolOptions(state_dir=state, port=0, nodes=4, gpus_per_node=8, simulated="h100", fault_dir=faults))
        for thread in threads:
            thread.start()
        for number, point in enumerate(points, start=1):
            running.append(await_running(state))
            back.append(kill_at(state, faults, point, rng))
            sys.stderr.write(f"\rkill {number}/{kills} ({point or 'random'}), back after {back[-1]:.0f} ms    ")
            sys.stderr.flush()
        stop.set()
        for thread in threads:
            thread.join(WAIT_S)
        if ledger.faults:
            raise SystemExit(f"a submit was refused: {ledger.faults[0]}")
        found = verdict(state, witness, ledger)
    finally:
        stop.set()
        with contextlib.suppress(CorralError):
            stop_pool(state, force=True, leave_tasks=False)
        kill_carriers(root)
        shutil.rmtree(root, ignore_errors=True)
    by_point = {str(p or "random"): points.count(p) for p in dict.fromkeys(points)}
    return {
        "kills": len(back),
        "by_point": by_point,
        "running_min": min(running),
        **found,
        "back_in_service_ms_max": round(max(back), 1),
        "back_in_service_ms_median": round(statistics.median(back), 1),
        "seed": seed,
        "simulated": True,
    }


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m bench.recovery", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    found = measure(options.kills, options.seed)
    sys.stderr.write("\n")
    print(json.dumps(found) if options.json else "\n".join(f"{k}: {v}" for k, v in found.items()))
    return 0 if found["lost"] == found["run_twice"] == found["lost_log_lines"] == found["lost_exit_codes"] == 0 else 1


if __name__ == "__main__":
    raise SystemExit(main())
