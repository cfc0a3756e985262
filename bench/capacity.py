"""What a pool with much behind it and much before it costs: ``python -m bench.capacity --json``.

Prints one JSON object; memory in MiB, times in milliseconds.

10,000 real no-op jobs run to their end (``how`` says so; in submissions of 50, so that filling takes a minute or two),
then one job takes all devices and 1,000 jobs of several shapes and tenants wait behind it. Then, on the same daemon,
which has gone through all of it:

``daemon_rss_mib``: the daemon's resident memory; ``daemon_rss_peak_mib``: the most that it ever was.
``ps_api_ms_*``, ``why_api_ms_*``: median and 99th percentile of 200 answers of the API to what ``corral ps`` and
``corral why JOB`` ask, the pending jobs in turn.
``ps_all_api_ms_*``: the longest list that one call gives, 10,000 jobs.
``ps_cli_ms_*``, ``why_cli_ms_*``: 30 runs of each whole command, from before the process starts until it has ended.
``restart_s`` and ``daemon_rss_restarted_mib``: the daemon killed, back in service on the same journal, and its memory.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.launch import percentile
from bench.pool import Pool, PoolFailed
from bench.progress import end_tidily_on_signals, say
from corral.client import Client
from corral.model.ask import JobAsk
from corral.model.errors import CorralError
from corral.model.ids import TenantId
from corral.model.tenant import Tenant

FINISHED = 10_000
PENDING = 1_000
CHUNK = 50
AHEAD = 400
"""So many no-op jobs are submitted before the pool has ended the first of them: its devices never run dry."""
API_CALLS = 200
COMMANDS = 30
LIMIT_S = 900.0
POLL_S = 0.02
TENANTS = ("red", "green", "blue")
SHAPES: tuple[dict[str, Any], ...] = (
    {"gpu_milli": 1000},
    {"gpu_milli": 4000},
    {"gpu_milli": 500, "max_duration_s": 600.0},
    {"gpu_milli": 8000, "num_nodes": 2},
    {"gpu_milli": 2000, "max_duration_s": 3600.0},
)

Figures = dict[str, float | int | str]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure a pool with many finished and many pending jobs.")
    parser.add_argument("--json", action="store_true", help="accepted for likeness; the output is JSON anyway")
    parser.add_argument("--finished", type=int, default=FINISHED, metavar="N", help=f"default {FINISHED}")
    parser.add_argument("--pending", type=int, default=PENDING, metavar="N", help=f"default {PENDING}")
    options = parser.parse_args()
    if options.finished < 1 or options.pending < 1:
        parser.error("--finished and --pending must be at least 1")
    end_tidily_on_signals()
    try:
        print(json.dumps(measure(options.finished, options.pending)))
    except KeyboardInterrupt:
        sys.exit(130)
    except (PoolFailed, CorralError, TimeoutError) as error:
        sys.exit(f"bench.capacity: {error}")


def measure(finished: int, pending: int) -> Figures:
    """Fill a pool and measure it."""
    with Pool() as pool, pool.client() as client:
        say("a pool of 4 simulated nodes x 8 devices is up")
        for name in TENANTS:
            client.set_tenant(Tenant(TenantId(name)), create=True)
        per_s = run_noops(client, finished)
        say(f"{finished} no-op jobs have run: {per_s:.0f} jobs/s")
        waiting = queue_up(client, pending)
        say(f"{pending} jobs wait")
        figures = memory(client.status().pid, "daemon_rss_mib", "daemon_rss_peak_mib")
        figures |= api_times(client, waiting) | command_times(pool, waiting) | after_a_restart(client)
        status = client.status()
        return figures | {
            "finished": status.finished_jobs,
            "pending": status.pending_gangs,
            "how": f"real no-op jobs, {CHUNK} to a submission, {per_s:.0f} a second",
            "cpus": os.cpu_count() or 0,
            "load_1m": round(os.getloadavg()[0], 2),
        }


def run_noops(client: Client, jobs: int) -> float:
    """Run no-op jobs to their end; return how many a second."""
    began, submitted = time.monotonic(), 0
    while (done := client.status().finished_jobs) < jobs:
        if submitted < jobs and submitted - done < AHEAD:
            count = min(CHUNK, jobs - submitted)
            client.submit_all([_noop(submitted + n) for n in range(count)])
            submitted += count
        elif time.monotonic() - began > LIMIT_S:
            raise TimeoutError(f"{done} of {jobs} no-op jobs finished within {LIMIT_S:g} s")
        else:
            time.sleep(POLL_S)
    return jobs / (time.monotonic() - began)


def _noop(number: int) -> JobAsk:
    return JobAsk(name=f"noop-{number}", argv=("/bin/true",), gpu_milli=1000, tenant=_tenant(number))


def queue_up(client: Client, jobs: int) -> list[str]:
    """Take all devices with one job and submit others behind it; return the numbers of those."""
    holder = client.submit(JobAsk(name="holder", argv=("/bin/sleep", "86400"), gpu_milli=8000, num_nodes=4))
    _wait_until(lambda: client.summary(holder.id).state.value == "running", "the holder to run")
    waiting: list[str] = []
    while len(waiting) < jobs:
        count = min(CHUNK, jobs - len(waiting))
        asks = [_waiter(len(waiting) + n) for n in range(count)]
        waiting += [job.id for job in client.submit_all(asks)]
    _wait_until(lambda: client.status().pending_gangs == jobs, "all to wait")
    return waiting


def _waiter(number: int) -> JobAsk:
    shape = SHAPES[number % len(SHAPES)]
    return JobAsk(name=f"waits-{number}", argv=("/bin/true",), tenant=_tenant(number), priority=number % 4, **shape)


def _tenant(number: int) -> str:
    # A submission belongs to one tenant.
    return TENANTS[number // CHUNK % len(TENANTS)]


def _wait_until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {LIMIT_S:g} s for {what}")
        time.sleep(POLL_S)


def memory(pid: int, now: str, peak: str | None = None) -> Figures:
    """Return the resident memory of a process, now and at its largest, by the given names."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith(("VmRSS", "VmHWM"))}
    figures: Figures = {now: round(kib["VmRSS"] / 1024, 1)}
    return figures | ({peak: round(kib["VmHWM"] / 1024, 1)} if peak else {})


def api_times(client: Client, waiting: list[str]) -> Figures:
    """Time the answers of the API."""
    day_ago = time.time() - 86_400.0
    figures = _times("ps_api_ms", API_CALLS, lambda _: client.jobs(finished=True, since=day_ago))
    figures |= _times("ps_all_api_ms", 5, lambda _: client.jobs(finished=True, limit=10_000))
    return figures | _times("why_api_ms", API_CALLS, lambda n: client.why(waiting[n * 37 % len(waiting)]))


def command_times(pool: Pool, waiting: list[str]) -> Figures:
    """Time whole commands."""
    figures = _times("ps_cli_ms", COMMANDS, lambda _: pool.run("ps"))
    return figures | _times("why_cli_ms", COMMANDS, lambda n: pool.run("why", waiting[n * 37 % len(waiting)]))


def _times(name: str, count: int, act: Callable[[int], object]) -> Figures:
    took: list[float] = []
    for number in range(count):
        began = time.perf_counter()
        act(number)
        took.append((time.perf_counter() - began) * 1e3)
    median, p99 = statistics.median(took), percentile(took, 99)
    say(f"{name}: median {median:.1f}, p99 {p99:.1f}")
    return {f"{name}_median": round(median, 1), f"{name}_p99": round(p99, 1)}


def after_a_restart(client: Client) -> Figures:
    """Kill the daemon; return how long until it answers again, and its memory then."""
    before = client.status().pid
    began = time.monotonic()
    os.kill(before, signal.SIGKILL)
    _wait_until(lambda: client.status().pid != before, "the daemon to be back")
    took_s = time.monotonic() - began
    return memory(client.status().pid, "daemon_rss_restarted_mib") | {"restart_s": round(took_s, 2)}


if __name__ == "__main__":
    main()
