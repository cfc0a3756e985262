"""Small worlds by hand: jobs of given arrival, devices and seconds, on clusters of a few devices."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from corral.sim.cluster import parse_cluster
from corral.sim.information import Information
from corral.sim.simulate import Options, build
from corral.sim.workload import TraceJob, Workload
from corral.sim.world import World


def job(name: str, arrival_s: float, devices: int, seconds: float, **fields: object) -> TraceJob:
    made = TraceJob(name, arrival_s, (devices,), seconds)
    return msgspec.structs.replace(made, **fields)


def workload(*jobs: TraceJob, **fields: object) -> Workload:
    made = Workload("hand", jobs, round_s=100.0, restart_cost_s=10.0)
    return msgspec.structs.replace(made, **fields)


def world(policy: str, cluster: str, work: Workload, information: str = "oracle", **fields: object) -> World:
    options = Options("hand", "corral", cluster, policy, Information(information), **fields)  # type: ignore[arg-type]
    return build(options, work, parse_cluster(cluster))


def ends(policy: str, cluster: str, jobs: Sequence[TraceJob], information: str = "oracle") -> dict[str, float]:
    """Return when each job ended."""
    made = world(policy, cluster, workload(*jobs), information)
    made.run()
    return {run.job.name: round(run.ended_at or -1.0, 6) for run in made.truth.runs.values()}
