"""Tiresias' traces: job_id, num_gpu, submit_time, iterations, model_name, duration, interval.

Gu et al., "Tiresias: A GPU Cluster Manager for Distributed Deep Learning", NSDI 2019. ``duration`` (s) is the time of
all ``iterations`` on ``num_gpu`` devices.
"""

from __future__ import annotations

from pathlib import Path

from corral.sim.formats.rows import csv_rows, finder
from corral.sim.workload import ANY_MODEL, Rows, TraceJob, Workload

COLUMNS = ("job_id", "num_gpu", "submit_time", "iterations", "model_name", "duration")

FIELDS = {
    "arrival": "submit_time",
    "duration": "duration",
    "num_nodes": "num_gpu",
    "resources.accelerators": "num_gpu",
    "work.family": "model_name",
    "work.total": "duration",
}


def read_tiresias(path: Path) -> Workload:
    """Return the jobs of a trace."""
    jobs = []
    for row in csv_rows(path, COLUMNS):
        duration_s, iterations = row.number("duration", above=True), row.number("iterations", above=True)
        gpus = row.whole("num_gpu", low=1)
        jobs.append(
            TraceJob(
                name=f"job-{row.text('job_id')}",
                arrival_s=row.number("submit_time"),
                devices=(gpus,),
                work=iterations,
                speeds={ANY_MODEL: iterations / duration_s},
                steps=True,
                family=f"{row.text('model_name')}-{gpus}",
                line=row.line,
            )
        )
    jobs.sort(key=lambda job: job.arrival_s)
    return Workload(str(path), tuple(jobs), rows=Rows(FIELDS, finder(lambda: csv_rows(path, COLUMNS))))
