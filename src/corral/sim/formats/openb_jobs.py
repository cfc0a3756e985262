"""Alibaba's openb pods as jobs that come and go: the columns creation_time and deletion_time (s) tell when.

A pod without GPUs is left out, as it has no device to be measured on; one that allows several device models takes the
first that its list names.
"""

from __future__ import annotations

from pathlib import Path

from corral.model.errors import TraceInvalid
from corral.model.resources import MILLI
from corral.sim.formats.openb import POD_COLUMNS
from corral.sim.formats.rows import csv_rows, finder
from corral.sim.workload import Rows, TraceJob, Workload

COLUMNS = {
    "arrival": "creation_time",
    "duration": "deletion_time",
    "num_nodes": "num_gpu",
    "resources.accelerators": "num_gpu",
    "model": "gpu_spec",
    "resources.cpus": "cpu_milli",
    "resources.memory": "memory_mib",
}


def read_openb(path: Path) -> Workload:
    """Return the pods of a list in order of arrival. Raises ``TraceUnreadable`` or ``TraceInvalid``."""
    jobs: list[TraceJob] = []
    left_out = 0
    for row in csv_rows(path, (*POD_COLUMNS, "creation_time", "deletion_time")):
        count, created_s = row.whole("num_gpu"), row.number("creation_time")
        lived_s = row.number("deletion_time") - created_s
        if lived_s < 0.0:
            raise row.wrong("deletion_time", "the pod was deleted before it was created")
        if not count or not lived_s:
            left_out += 1
            continue
        milli = row.whole("gpu_milli", low=1)
        if milli > MILLI or (count > 1 and milli != MILLI):
            raise row.wrong("gpu_milli", f"{count} x {milli} is neither a share of one GPU nor whole GPUs")
        jobs.append(
            TraceJob(
                name=row.text("name"),
                arrival_s=created_s,
                devices=(count,),
                work=lived_s,
                model=row.text("gpu_spec").split("|")[0].strip() or None,
                milli=milli if milli < MILLI else None,
                cpus_milli=max(1, row.whole("cpu_milli")),
                memory_mib=max(1, row.whole("memory_mib")),
                line=row.line,
            )
        )
    if not jobs:
        raise TraceInvalid("the list names no pod with a GPU", where=str(path))
    jobs.sort(key=lambda job: job.arrival_s)
    return Workload(
        str(path), tuple(jobs), left_out=left_out, rows=Rows(COLUMNS, finder(lambda: csv_rows(path, POD_COLUMNS)))
    )
