"""Admission of what a job says of its sizes, its work and its proposer."""

from __future__ import annotations

from typing import Any

import pytest

from corral.model.experience import WorkSpec
from corral.model.ids import TenantId
from corral.model.job import JobSpec
from corral.model.resources import Demand, GangShape
from corral.model.tenant import Quota, Tenant
from tests.unit.policy.test_admission import ask, refusal


def test_an_elastic_job_has_a_shape_for_each_size_the_largest_first() -> None:
    spec = ask(gpu_milli=8_000, gpu_model="H100", gpu_counts=(2, 4, 8))
    assert isinstance(spec, JobSpec)
    # node-0 and node-1: 8 CPUs and 8,000 MiB per device.
    assert spec.shapes == tuple(GangShape(1, Demand(n * 1_000, "H100", n * 8_000, n * 8_000)) for n in (8, 4, 2))
    assert spec.shape == spec.shapes[0]
    spec = ask(num_nodes=4, node_counts=(1, 2, 4), cpus_milli=500, memory_mib=64)
    assert isinstance(spec, JobSpec)
    assert spec.shapes == tuple(GangShape(n, Demand(0, None, 500, 64)) for n in (4, 2, 1))


def test_what_is_said_of_cpus_and_memory_holds_at_every_size() -> None:
    spec = ask(gpu_milli=4_000, gpu_counts=(1, 4), cpus_milli=2_000, memory_mib=512)
    assert isinstance(spec, JobSpec)
    assert spec.shapes == (GangShape(1, Demand(4_000, None, 2_000, 512)), GangShape(1, Demand(1_000, None, 2_000, 512)))


def test_the_shape_is_the_largest_that_the_pool_could_ever_run() -> None:
    spec = ask(gpu_milli=16_000, gpu_model="H100", gpu_counts=(4, 8, 16))
    assert isinstance(spec, JobSpec)
    assert (spec.shape.demand.gpu_milli, [s.demand.gpu_milli for s in spec.shapes]) == (8_000, [16_000, 8_000, 4_000])
    # Two nodes of 8 and one of 4 hold five ranks of 4.
    spec = ask(gpu_milli=4_000, num_nodes=8, node_counts=(1, 5, 8))
    assert isinstance(spec, JobSpec)
    assert (spec.shape.ranks, [shape.ranks for shape in spec.shapes]) == (5, [8, 5, 1])
    # The limit of the tenant counts as well.
    small = Tenant(TenantId("a"), limit=Quota(gpu_milli=4_000))
    spec = ask(of=small, gpu_milli=8_000, gpu_counts=(2, 4, 8))
    assert isinstance(spec, JobSpec)
    assert spec.shape.demand.gpu_milli == 4_000


def test_an_elastic_job_that_fits_in_no_size_is_told_of_its_smallest() -> None:
    assert "9 H100 on one node" in refusal(gpu_milli=12_000, gpu_model="H100", gpu_counts=(9, 12)).message
    small = Tenant(TenantId("a"), limit=Quota(gpu_milli=1_000))
    answer = refusal(of=small, gpu_milli=8_000, gpu_counts=(2, 8))
    assert (answer.code, answer.message[:6]) == ("QUOTA_EXCEEDED", "2 GPUs")


def test_a_single_size_is_no_elastic_job() -> None:
    spec = ask(gpu_milli=2_000, gpu_counts=(2,))
    assert isinstance(spec, JobSpec)
    assert spec.shapes == ()


def test_work_restart_cost_and_proposer_are_kept() -> None:
    work = WorkSpec(90_000.0, "resnet50", {"V100:4": 40.0})
    spec = ask(work=work, restart_cost_s=45.0, appmaster="mine:propose")
    assert isinstance(spec, JobSpec)
    assert (spec.work, spec.restart_cost_s, spec.appmaster) == (work, 45.0, "mine:propose")
    spec = ask()
    assert isinstance(spec, JobSpec)
    assert (spec.work, spec.restart_cost_s, spec.appmaster) == (None, 30.0, None)


@pytest.mark.parametrize(
    "fields, field",
    [
        ({"gpu_milli": 2_000, "gpu_counts": (0, 2)}, "resources.accelerators"),
        ({"gpu_milli": 2_000, "gpu_counts": (2, 2)}, "resources.accelerators"),
        ({"gpu_milli": 500, "gpu_counts": (1, 2)}, "resources.accelerators"),
        ({"gpu_milli": 40_000, "gpu_counts": tuple(range(1, 41))}, "resources.accelerators"),
        ({"gpu_milli": 10**10, "gpu_counts": (1, 10**7)}, "resources.accelerators"),
        ({"num_nodes": 2, "node_counts": (-1, 2)}, "num_nodes"),
        ({"num_nodes": 1, "node_counts": (1, 2)}, "num_nodes"),
        ({"num_nodes": 2, "node_counts": (1, 2), "gpu_milli": 2_000, "gpu_counts": (1, 2)}, "num_nodes"),
        ({"restart_cost_s": -1.0}, "restart_cost"),
        ({"restart_cost_s": float("nan")}, "restart_cost"),
        ({"restart_cost_s": 1e6}, "restart_cost"),
        ({"work": WorkSpec(0.0)}, "work.total"),
        ({"work": WorkSpec(float("inf"))}, "work.total"),
        ({"work": WorkSpec(None, "")}, "work.family"),
        ({"work": WorkSpec(None, "a\nb")}, "work.family"),
        ({"work": WorkSpec(None, None, {"V100:0": 1.0})}, "work.throughput"),
        ({"work": WorkSpec(None, None, {"V100": float("nan")})}, "work.throughput"),
        ({"work": WorkSpec(None, None, {f"M{i}": 1.0 for i in range(257)})}, "work.throughput"),
        ({"appmaster": "mine"}, "appmaster"),
        ({"appmaster": "mine.py:propose"}, "appmaster"),
        ({"appmaster": "m:" + "p" * 300}, "appmaster"),
        ({"appmaster": "mine:propose\n"}, "appmaster"),
    ],
)
def test_sizes_work_and_proposers_that_are_none_are_refused(fields: dict[str, Any], field: str) -> None:
    answer = refusal(**fields)
    assert (answer.code, answer.field) == ("INVALID_FIELD", field)
