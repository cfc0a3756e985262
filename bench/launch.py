"""How fast jobs start, and how many a pool can start: ``python -m bench.launch --json [--slurm]``.

Prints one JSON object; times in milliseconds.

``submit_to_start_ms_median``, ``submit_to_start_ms_p99``: 50 single jobs on a quiet pool of 4 simulated nodes x 8
devices, from the call of ``client.submit`` to the first instruction of the job's program.
``cli_submit_to_start_ms_median``: the same from just before ``corral submit`` is started as a process.
``noop_jobs_per_s``: 2,000 jobs that run ``/bin/true`` on one device, each submitted by a call of its own (in several
threads), from the first call until the pool has finished all.

``--slurm`` does the same with a real, tuned Slurm in the same run (sbatch and srun against the processes here, one
sbatch for each no-op job, as many submitters): ``slurm_sbatch_ms_median``, ``slurm_srun_ms_median``,
``slurm_noop_jobs_per_s``, ``throughput_ratio`` (ours through Slurm's, more is better) and ``latency_ratio``
(``corral submit`` through sbatch, less is better). ``--jobs N`` makes it smaller: N no-op jobs, at most N single ones.

The rest says on what it was measured; state is kept where ``TMPDIR`` points, on both sides.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.launch_slurm import measure_slurm
from bench.parallel import in_threads
from bench.pool import Pool, PoolFailed
from bench.progress import end_tidily_on_signals, say
from bench.slurm import SlurmFailed, SlurmUnavailable, require
from bench.stamp import Stamp, make_stamp
from corral.client import Client
from corral.model.errors import CorralError

JOBS = 2_000
SINGLES = 50
SUBMITTERS = 4
WARM_UP_JOBS = 64
START_LIMIT_S = 60.0
END_LIMIT_S = 900.0
POLL_S = 0.02
QUIET_S = 0.05
NOOP = ("/bin/true",)

Figures = dict[str, float | int | str]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure how fast jobs start and how many a pool starts per second.")
    parser.add_argument("--json", action="store_true", help="accepted for likeness; the output is JSON anyway")
    parser.add_argument("--slurm", action="store_true", help="measure a real Slurm on the same work, and compare")
    parser.add_argument("--jobs", type=int, default=JOBS, metavar="N", help=f"no-op jobs (default {JOBS})")
    parser.add_argument("--submitters", type=int, default=SUBMITTERS, metavar="N", help="threads that submit them")
    options = parser.parse_args()
    if options.jobs < 1 or options.submitters < 1:
        parser.error("--jobs and --submitters must be at least 1")
    end_tidily_on_signals()
    try:
        print(json.dumps(measure(options.jobs, options.submitters, slurm=options.slurm)))
    except KeyboardInterrupt:
        sys.exit(130)
    except (SlurmUnavailable, SlurmFailed, PoolFailed, CorralError, TimeoutError) as error:
        sys.exit(f"bench.launch: {error}")


def measure(jobs: int, submitters: int, *, slurm: bool) -> Figures:
    """Measure corral and, with ``slurm``, Slurm after it; never both at once."""
    if slurm:
        require()
    singles = min(SINGLES, jobs)
    with tempfile.TemporaryDirectory(prefix="bench-launch-") as name:
        directory = Path(name)
        stamp = make_stamp(directory)
        about: Figures = {
            "jobs": jobs,
            "singles": singles,
            "submitters": submitters,
            "stamp": stamp.kind,
            "cpus": os.cpu_count() or 0,
            "load_1m_before": round(os.getloadavg()[0], 2),
            "new_file_us": round(new_file_us(directory)),
        }
        figures = measure_corral(directory, stamp, jobs=jobs, singles=singles, submitters=submitters)
        if slurm:
            theirs = measure_slurm(
                directory, stamp, jobs=jobs, singles=singles, submitters=submitters, warm_up=WARM_UP_JOBS
            )
            figures |= theirs | ratios(figures, theirs)
    return figures | about


def new_file_us(directory: Path, files: int = 200) -> float:
    """Return what a new file costs here in microseconds: a job makes about ten, so this is part of every figure.

    It is about 20 on a quiet ext4, and up to 1,000 for some minutes after many files of the same block group were
    deleted, whose inodes ext4 then steps over one by one (``recently_deleted`` in fs/ext4/ialloc.c).
    """
    place = Path(tempfile.mkdtemp(dir=directory))
    began = time.perf_counter()
    for number in range(files):
        (place / str(number)).touch()
    return (time.perf_counter() - began) * 1e6 / files


def ratios(ours: Figures, theirs: Figures) -> Figures:
    """Compare: throughput (more is better) and latency of a submit, process against process (less is better)."""
    throughput = float(ours["noop_jobs_per_s"]) / float(theirs["slurm_noop_jobs_per_s"])
    latency = float(ours["cli_submit_to_start_ms_median"]) / float(theirs["slurm_sbatch_ms_median"])
    return {"throughput_ratio": round(throughput, 2), "latency_ratio": round(latency, 3)}


def measure_corral(directory: Path, stamp: Stamp, *, jobs: int, singles: int, submitters: int) -> Figures:
    """Start a pool, measure it and return the figures."""
    with Pool() as pool, pool.client() as client:
        say("a pool of 4 simulated nodes x 8 devices is up")
        throughput(client, WARM_UP_JOBS, submitters)
        call_ms = [call_start_ms(client, stamp, directory / f"call-{n}") for n in range(singles)]
        say(f"client.submit, submit to start: {statistics.median(call_ms):.1f} ms, p99 {percentile(call_ms, 99):.1f}")
        command_ms = [command_start_ms(pool, client, stamp, directory / f"command-{n}") for n in range(singles)]
        say(f"corral submit, submit to start: {statistics.median(command_ms):.1f} ms")
        per_s = throughput(client, jobs, submitters)
        say(f"{jobs} no-op jobs: {per_s:.1f} jobs/s")
    return {
        "submit_to_start_ms_median": round(statistics.median(call_ms), 1),
        "submit_to_start_ms_p99": round(percentile(call_ms, 99), 1),
        "cli_submit_to_start_ms_median": round(statistics.median(command_ms), 1),
        "noop_jobs_per_s": round(per_s, 1),
    }


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the nearest-rank percentile: the least value that ``percent`` of all values do not exceed."""
    return sorted(values)[max(1, math.ceil(percent / 100 * len(values))) - 1]


def call_start_ms(client: Client, stamp: Stamp, file: Path) -> float:
    """Submit one job through the SDK; return the time from the call to the first instruction of its program."""
    time.sleep(QUIET_S)
    began = stamp.now_ns()
    job = client.submit(run=stamp.argv(file), gpus=1)
    return _started_ms(client, job.id, stamp, file, began)


def command_start_ms(pool: Pool, client: Client, stamp: Stamp, file: Path) -> float:
    """Submit one job through ``corral submit``; return the time from before it to the first instruction."""
    time.sleep(QUIET_S)
    began = stamp.now_ns()
    number = pool.run("submit", "--gpus", "1", "--", *stamp.argv(file)).strip()
    return _started_ms(client, number, stamp, file, began)


def _started_ms(client: Client, job: str, stamp: Stamp, file: Path, began_ns: int) -> float:
    ended = client.wait(job, START_LIMIT_S)
    if not ended.state.ended or ended.exit_code != 0:
        raise PoolFailed(f"job {job} should have ended well and is {ended.state.value}: {ended.message}")
    return (stamp.wait(file, START_LIMIT_S) - began_ns) / 1e6


def throughput(client: Client, jobs: int, submitters: int) -> float:
    """Submit no-op jobs, each by a call; return jobs per second from the first call until the pool has finished all."""
    finished_before = client.status().finished_jobs
    began = time.monotonic()
    in_threads(jobs, submitters, lambda _: client.submit(run=NOOP, gpus=1))
    while (finished := client.status().finished_jobs - finished_before) < jobs:
        if time.monotonic() - began > END_LIMIT_S:
            raise TimeoutError(f"{finished} of {jobs} no-op jobs finished within {END_LIMIT_S:g} s")
        time.sleep(POLL_S)
    took_s = time.monotonic() - began
    _check(client, jobs)
    return jobs / took_s


def _check(client: Client, jobs: int) -> None:
    """Raise ``PoolFailed`` unless the newest ``jobs`` jobs have all run to exit code 0."""
    before: int | None = None
    seen = 0
    while seen < jobs:
        page = client.jobs(live=True, finished=True, before=before, limit=min(500, jobs - seen))
        for row in page.jobs:
            if not row.state.ended or row.exit_code != 0:
                raise PoolFailed(f"no-op job {row.id} is {row.state.value}: {row.message}")
        seen += len(page.jobs)
        before = page.next_before
        if before is None and seen < jobs:
            raise PoolFailed(f"the pool knows {seen} of {jobs} no-op jobs")


if __name__ == "__main__":
    main()
