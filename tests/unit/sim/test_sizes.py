"""Sizes and speeds of trace jobs on a cluster: what is asked for is what a pool would be asked for."""

from __future__ import annotations

import pytest

from corral.model.errors import TraceInvalid
from corral.sim.cluster import parse_cluster
from corral.sim.information import Information, Teller
from corral.sim.workload import TraceJob, Workload

NODES = parse_cluster("4x8xH100")


def teller(job: TraceJob) -> Teller:
    return Teller(Workload("trace", (job,)), NODES, Information.BLIND, 30.0)


@pytest.mark.parametrize(
    "devices,nodes,gpus,node_counts,gpu_counts",
    [
        ((16,), 2, 8, (), ()),
        ((12,), 2, 6, (), ()),
        # As few equal ranks as possible at every size: whole nodes of eight.
        ((16, 8), 2, 8, (2, 1), ()),
        ((24, 12), 4, 6, (4, 2), ()),
        ((8, 4, 2), 1, 8, (), (8, 4, 2)),
        # What is larger than the cluster is not asked for: 32 devices are there.
        ((72, 64, 32, 8), 4, 8, (4, 1), ()),
        ((64, 8), 1, 8, (), ()),
    ],
)
def test_a_job_asks_for_whole_nodes(
    devices: tuple[int, ...], nodes: int, gpus: int, node_counts: tuple[int, ...], gpu_counts: tuple[int, ...]
) -> None:
    job = TraceJob("a", 0.0, devices, 10.0)
    ask = teller(job).ask(job)
    assert (ask.num_nodes, ask.gpu_milli, ask.node_counts, ask.gpu_counts) == (
        nodes,
        gpus * 1_000,
        node_counts,
        gpu_counts,
    )


@pytest.mark.parametrize("speeds", [{"V100": 1.0}, {"H100:2": 1.0}])
def test_a_job_without_a_speed_on_the_cluster_is_refused(speeds: dict[str, float]) -> None:
    job = TraceJob("a", 0.0, (1,), 10.0, speeds)
    with pytest.raises(TraceInvalid, match=r"^trace: job a: work.throughput: no speed on H100 for 1 devices"):
        teller(job).check()
