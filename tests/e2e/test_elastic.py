"""Elastic jobs with real processes: a training shrinks when another job comes and grows again when that has gone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from corral.client.handle import JobHandle
from corral.model.events import GangPlaced, GangStopping
from corral.model.ids import TenantId
from corral.model.job import JobState
from corral.model.market import PreemptionKind
from corral.model.tenant import Tenant
from tests.e2e import training
from tests.e2e.command import Corral
from tests.e2e.livepool import LivePool

QUICK = "round_s = 0.3\ntenure_s = 0\ntenure_restarts = 0\n"
"""Rounds and tenures of a pool whose jobs last seconds."""


@pytest.fixture
def quick(pool: LivePool) -> LivePool:
    """Give a pool of one node with 4 GPUs whose rounds come quickly."""
    pool.state_dir.mkdir(parents=True)
    (pool.state_dir / "config.toml").write_text(QUICK)
    pool.up(nodes=1, gpus=4)
    return pool


def sizes(pool: LivePool, job: JobHandle) -> list[int]:
    """Return the GPUs of each run of a job."""
    placed = [entry.fact for entry in pool.client.history(job.id) if isinstance(entry.fact, GangPlaced)]
    return [sum(len(placement.devices) for placement in fact.placements) for fact in placed]


def test_a_training_shrinks_for_another_job_and_grows_again(quick: LivePool, tmp_path: Path) -> None:
    expected, accuracy = training.undisturbed(tmp_path, workers=1)
    quick.client.set_tenant(Tenant(TenantId("other")), create=True)
    job = training.submit(quick, holds=(300, 600), num_gpus=[2, 4], max_restarts=0)
    quick.said(job, b"waits at step 300 of 4")
    # What the other one does ends with the file, when the training has shrunk for it and works again.
    flag = tmp_path / "go"
    other = quick.submit(["sh", "-c", f"while ! [ -e {flag} ]; do sleep 0.02; done"], gpus=2, tenant="other")
    quick.started(other)
    quick.said(job, b"waits at step 600 of 2")
    assert quick.client.summary(other.id).state is JobState.RUNNING
    flag.touch()
    assert quick.result(other).exit_code == 0
    found = quick.result(job)
    assert (found.exit_code, found.restarts) == (0, 0)
    assert sizes(quick, job) == [4, 2, 4]
    assert quick.log(job).decode().splitlines() == ["begins at step 600 with 4 workers", accuracy]
    # The order of sums differs with the number of workers, the result does not.
    weights = training.weights_of(quick, job)
    assert all(np.allclose(weights[name], expected[name], rtol=1e-9, atol=1e-12) for name in expected)
    stops = [entry.fact.preemption for entry in quick.client.history(job.id) if isinstance(entry.fact, GangStopping)]
    assert [why.kind for why in stops if why is not None] == [PreemptionKind.RESIZE] * 2


def test_sizes_from_the_command_line(corral: Corral) -> None:
    assert corral.ok("run", "--gpus", "1-2", "echo $CORRAL_NUM_GPUS of $WORLD_SIZE") == "2 of 2\n"
    said = corral.ok(
        "run", "--nodes", "1,2", "--gpus", "4", "echo $CORRAL_NUM_NODES with $CORRAL_NUM_GPUS of $WORLD_SIZE"
    )
    assert "2 with 4 of 8\n" in said
    # More than a node has is no mistake as long as a smaller size fits.
    assert corral.ok("run", "--gpus", "2,64", "echo $CORRAL_NUM_GPUS") == "2\n"
    corral.refused("run", "--gpus", "32-64:32", "--", "true", code="UNSCHEDULABLE", exit_code=2)
    corral.refused("run", "--gpus", "2-1", "--", "true", code="INVALID_FIELD", exit_code=2)
    corral.refused("run", "--gpus", "1-2", "--nodes", "1-2", "--", "true", code="INVALID_FIELD", exit_code=2)


def test_a_batch_script_with_a_range_of_nodes(corral: Corral, tmp_path: Path) -> None:
    script = tmp_path / "old.sbatch"
    script.write_text("#!/bin/bash\n#SBATCH --nodes=1-2 --gpus-per-node=4\necho $SLURM_NNODES $SLURM_GPUS_ON_NODE\n")
    job = corral.ok("submit", "--wait", str(script)).strip()
    assert corral.ok("logs", job).splitlines()[0].endswith("2 4")
