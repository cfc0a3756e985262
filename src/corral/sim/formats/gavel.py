"""Gavel's traces and its table of throughputs.

Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads", OSDI 2020. A line has
10 fields (job type, command, directory, name of the steps argument, whether it needs a data directory, total steps,
number of devices, priority weight, SLO, arrival in s), 7 in an older layout, or 12 in that of Shockwave (Zheng et al.,
NSDI 2023), whose changes of the batch size are not simulated. The table holds, by worker type and
``"('job type', devices)"``, the steps per second alone (``null``) and beside another job (not used here).
"""

from __future__ import annotations

import ast
from pathlib import Path

import msgspec

from corral.model.errors import TraceInvalid
from corral.sim.formats.rows import Row, finder, read_text, tab_rows
from corral.sim.workload import CANNOT, Rows, TraceJob, Workload

LAYOUT_10 = (
    "job type", "command", "directory", "steps argument", "needs data", "total steps", "devices", "weight", "SLO",
    "arrival",
)  # fmt: skip
LAYOUT_12 = (
    "job type", "command", "directory", "steps argument", "needs data", "total steps", "devices", "adaptation",
    "weight", "SLO", "duration", "arrival",
)  # fmt: skip
LAYOUT_7 = ("job type", "command", "steps argument", "needs data", "total steps", "arrival", "devices")
LAYOUTS = (LAYOUT_12, LAYOUT_10, LAYOUT_7)
COLUMNS = {
    "arrival": "arrival",
    "duration": "total steps",
    "num_nodes": "devices",
    "resources.accelerators": "devices",
    "work.family": "job type",
    "work.throughput": "job type",
    "work.total": "total steps",
}
ROUND_S = 360.0
TABLE = "simulation_throughputs.json"

UNCONSOLIDATED = "_unconsolidated"
"""Worker types of the table whose devices are spread over servers: Gavel's simulator does not use them by default."""

Table = dict[str, dict[tuple[str, int], float]]


def read_gavel(path: Path, throughputs: Path | None = None) -> Workload:
    """Return the jobs of a trace; the table of throughputs lies beside it unless it is named."""
    table_path = throughputs if throughputs is not None else path.with_name(TABLE)
    table = read_table(table_path)
    jobs = [_job(row, table, table_path) for row in tab_rows(path, LAYOUTS)]
    jobs.sort(key=lambda job: job.arrival_s)
    return Workload(
        str(path),
        tuple(jobs),
        round_s=ROUND_S,
        restart_cost_s=0.0,
        whole_steps=True,
        table_known=True,
        rows=Rows(COLUMNS, finder(lambda: tab_rows(path, LAYOUTS))),
    )


def _job(row: Row, table: Table, table_path: Path) -> TraceJob:
    kind, devices = row.text("job type"), row.whole("devices", low=1)
    speeds = {f"{model}:{devices}": rate for model in table if (rate := table[model].get((kind, devices)))}
    if speeds:
        # Zero in the table: it does not run there at all, and a claim has to be above zero.
        least = max(speeds.values()) * CANNOT
        speeds.update({f"{model}:{devices}": least for model in table if not table[model].get((kind, devices), 0.0)})
    else:
        raise row.wrong("job type", f"{kind!r} on {devices} devices is not in {table_path}")
    return TraceJob(
        name=f"line-{row.line}",
        arrival_s=row.number("arrival"),
        devices=(devices,),
        work=row.number("total steps", above=True),
        speeds=speeds,
        steps=True,
        family=kind,
        line=row.line,
    )


def read_table(path: Path) -> Table:
    """Return steps per second alone by worker type (in capitals) and (job type, number of devices)."""
    try:
        found = msgspec.json.decode(read_text(path), type=dict[str, dict[str, dict[str, float | list[float]]]])
    except msgspec.MsgspecError as error:
        raise TraceInvalid(f"this is no table of throughputs: {error}", where=str(path)) from None
    table: Table = {}
    for worker, rows in found.items():
        if worker.endswith(UNCONSOLIDATED):
            continue
        alone = table.setdefault(worker.upper(), {})
        for name, rates in rows.items():
            rate = rates.get("null")
            if isinstance(rate, float | int):
                alone[_key(name, path)] = float(rate)
    return table


def _key(name: str, path: Path) -> tuple[str, int]:
    try:
        kind, devices = ast.literal_eval(name)
        return str(kind), int(devices)
    except (ValueError, SyntaxError, TypeError):
        raise TraceInvalid(f"{name!r} is not a pair of job type and number of devices", where=str(path)) from None
