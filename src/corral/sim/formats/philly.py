"""Microsoft's Philly trace as a table: timestamp, duration (s), num_gpus, gpu_time, cluster (virtual cluster).

Jeon et al., "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads", USENIX ATC 2019. What is
recorded is how long a job ran on its devices; the simulator takes that as its work.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from corral.model.errors import TraceInvalid
from corral.sim.formats.rows import csv_rows, finder
from corral.sim.workload import Rows, TraceJob, Workload

COLUMNS = ("timestamp", "duration", "num_gpus", "cluster")
FIELDS = {
    "arrival": "timestamp",
    "duration": "duration",
    "num_nodes": "num_gpus",
    "resources.accelerators": "num_gpus",
}
ROUND_S = 360.0
RESTART_COST_S = 30.0


def read_philly(path: Path, devices: int, select: Mapping[str, str]) -> Workload:
    """Return the jobs that ran at all, fit ``devices`` and have the selected values (``{"cluster": "ee9e8c"}``)."""
    kept: list[tuple[float, int, float, int]] = []
    left_out = 0
    for row in csv_rows(path, (*COLUMNS, *select)):
        if any(row.text(name) != value for name, value in select.items()):
            continue
        duration_s, gpus = row.number("duration"), row.whole("num_gpus")
        try:
            # The trace names no time zone; only differences of times count.
            at = datetime.fromisoformat(row.text("timestamp")).replace(tzinfo=UTC).timestamp()
        except ValueError:
            raise row.wrong("timestamp", f"{row.text('timestamp')!r} is not a date and time") from None
        if duration_s <= 0.0 or not 0 < gpus <= devices:
            left_out += 1
            continue
        kept.append((at, row.line, duration_s, gpus))
    if not kept:
        wanted = ", ".join(f"{name}={value}" for name, value in select.items()) or "the trace"
        raise TraceInvalid(f"no job of {wanted} ran and fits {devices} devices", where=str(path))
    kept.sort()
    origin = kept[0][0]
    jobs = tuple(
        TraceJob(f"line-{line}", at - origin, (gpus,), duration, line=line) for at, line, duration, gpus in kept
    )
    return Workload(
        str(path),
        jobs,
        round_s=ROUND_S,
        restart_cost_s=RESTART_COST_S,
        origin_s=origin,
        left_out=left_out,
        rows=Rows(FIELDS, finder(lambda: csv_rows(path, COLUMNS))),
    )
