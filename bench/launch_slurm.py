"""What a real, tuned Slurm needs to start jobs: the same work as ``bench.launch``, on the same machine."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from bench.parallel import in_threads
from bench.progress import say
from bench.slurm import Slurm, SlurmFailed
from bench.slurm_config import TUNED, Shape
from bench.stamp import Stamp

START_LIMIT_S = 60.0
END_LIMIT_S = 900.0
QUIET_S = 0.05


def measure_slurm(
    directory: Path, stamp: Stamp, *, jobs: int, singles: int, submitters: int, warm_up: int
) -> dict[str, float | str]:
    """Start Slurm, measure it and return the figures; times in milliseconds, throughput in jobs per second."""
    with Slurm(Shape(extra=TUNED)) as slurm:
        say(f"Slurm {slurm.version()} is up, 4 nodes x 8 GPUs, {TUNED}")
        throughput(slurm, directory, warm_up, submitters)
        sbatch_ms = [batch_start_ms(slurm, stamp, directory / f"sbatch-{n}") for n in range(singles)]
        say(f"sbatch, submit to start: {statistics.median(sbatch_ms):.1f} ms")
        srun_ms = [direct_start_ms(slurm, stamp, directory / f"srun-{n}") for n in range(singles)]
        say(f"srun, submit to start: {statistics.median(srun_ms):.1f} ms")
        per_s = throughput(slurm, directory, jobs, submitters)
        say(f"{jobs} no-op jobs through sbatch: {per_s:.1f} jobs/s")
        return {
            "slurm_sbatch_ms_median": round(statistics.median(sbatch_ms), 1),
            "slurm_srun_ms_median": round(statistics.median(srun_ms), 1),
            "slurm_noop_jobs_per_s": round(per_s, 1),
            "slurm_version": slurm.version(),
            "slurm_settings": ", ".join(f"{name}={value}" for name, value in TUNED.items()),
        }


def batch_start_ms(slurm: Slurm, stamp: Stamp, file: Path) -> float:
    """Submit one batch script on the quiet cluster; return the time to the job's first instruction."""
    script = file.with_suffix(".sh")
    # The program is the interpreter of the script: nothing else starts before it.
    script.write_text(f"#!{' '.join(stamp.argv(file))}\n")
    return _start_ms(slurm, stamp, file, ["sbatch", "--gres=gpu:1", "--output=/dev/null", str(script)])


def direct_start_ms(slurm: Slurm, stamp: Stamp, file: Path) -> float:
    """Run one job with srun on the quiet cluster; return the time from before srun to the job's first instruction."""
    return _start_ms(slurm, stamp, file, ["srun", "--quiet", "--gres=gpu:1", *stamp.argv(file)])


def _start_ms(slurm: Slurm, stamp: Stamp, file: Path, argv: list[str]) -> float:
    time.sleep(QUIET_S)
    began = stamp.now_ns()
    slurm.run(argv)
    started = stamp.wait(file, START_LIMIT_S)
    slurm.wait_until_idle(START_LIMIT_S)
    return (started - began) / 1e6


def throughput(slurm: Slurm, directory: Path, jobs: int, submitters: int) -> float:
    """Submit no-op jobs, one sbatch each; return jobs per second from the first submit until the last has ended."""
    script = directory / "noop.sh"
    script.write_text("#!/bin/true\n")
    argv = ["sbatch", "--gres=gpu:1", "--output=/dev/null", str(script)]
    began = time.monotonic()
    in_threads(jobs, submitters, lambda _: slurm.run(argv))
    slurm.wait_until_idle(END_LIMIT_S)
    took_s = time.monotonic() - began
    states = slurm.run(["scontrol", "--oneliner", "show", "jobs"]).split()
    failed = sum(word.startswith("JobState=") and word != "JobState=COMPLETED" for word in states)
    if failed:
        raise SlurmFailed(f"{failed} of {jobs} no-op jobs of Slurm did not complete")
    return jobs / took_s
