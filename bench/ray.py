"""How fast jobs start over Ray: ``python -m bench.ray --json``.

Prints one JSON object; times in milliseconds. ``launch_ms_median``, ``launch_ms_p95``: single jobs on a quiet pool that
``corral head`` made of this machine (8 simulated devices), from the call of ``client.submit`` to the first instruction
of the job's program, in an empty working directory: through the API, the controller, the bridge, Ray, the relay, the
agent and the fork server. ``local_ms_median`` is the same on the embedded engine (``corral up``), just before: what Ray
adds is the difference. The rest says on what it was measured.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

from bench.launch import Figures, call_start_ms, new_file_us, percentile
from bench.pool import Pool, PoolFailed
from bench.progress import end_tidily_on_signals, say
from bench.stamp import Stamp, make_stamp
from corral.model.errors import CorralError

JOBS = 200
WARM_UP_JOBS = 20


class RayPool(Pool):
    """A pool of this machine alone whose agent is reached over Ray."""

    start_command = "head"

    def __init__(self) -> None:
        super().__init__()
        self.flags = ["--port", "0", "--gcs-port", "0", "--ray-ports", "0", "--name", "node-1"]
        self.flags += ["--address", "127.0.0.1", "--simulated", "h100", "--gpus-per-node", "8"]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure how fast jobs start over Ray on one machine.")
    parser.add_argument("--json", action="store_true", help="accepted for likeness; the output is JSON anyway")
    parser.add_argument("--jobs", type=int, default=JOBS, metavar="N", help=f"jobs (default {JOBS})")
    options = parser.parse_args()
    if options.jobs < 1:
        parser.error("--jobs must be at least 1")
    end_tidily_on_signals()
    try:
        print(json.dumps(measure(options.jobs)))
    except KeyboardInterrupt:
        sys.exit(130)
    except (PoolFailed, CorralError, TimeoutError) as error:
        sys.exit(f"bench.ray: {error}")


def measure(jobs: int) -> Figures:
    """Measure the embedded engine, then the same over Ray."""
    with tempfile.TemporaryDirectory(prefix="bench-ray-") as name:
        directory = Path(name)
        stamp = make_stamp(directory)
        load = round(os.getloadavg()[0], 2)
        local_ms = starts_ms(Pool(nodes=1), stamp, directory / "local", jobs)
        ray_ms = starts_ms(RayPool(), stamp, directory / "ray", jobs)
        return {
            "launch_ms_median": round(statistics.median(ray_ms), 1),
            "launch_ms_p95": round(percentile(ray_ms, 95), 1),
            "local_ms_median": round(statistics.median(local_ms), 1),
            "jobs": jobs,
            "stamp": stamp.kind,
            "cpus": os.cpu_count() or 0,
            "load_1m_before": load,
            "new_file_us": round(new_file_us(directory)),
        }


def starts_ms(pool: Pool, stamp: Stamp, directory: Path, jobs: int) -> list[float]:
    """Start the pool, submit jobs one after the other, and return how long each took to start."""
    directory.mkdir()
    work = directory / "work"
    work.mkdir()
    # The working directory travels to the nodes of a pool of several machines: here it is an empty one.
    with pool, pool.client() as client, contextlib.chdir(work):
        times = [call_start_ms(client, stamp, directory / str(number)) for number in range(WARM_UP_JOBS + jobs)]
    measured = times[WARM_UP_JOBS:]
    say(f"{directory.name}: {statistics.median(measured):.1f} ms, p95 {percentile(measured, 95):.1f} ms")
    return measured


if __name__ == "__main__":
    main()
