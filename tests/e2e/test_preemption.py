"""Preemption with real processes: a training that is made to give way twice ends as one that nobody disturbed."""

from __future__ import annotations

from pathlib import Path

import pytest

from corral.client.handle import JobHandle
from corral.model.events import GangStopping, TaskEnded
from corral.model.ids import TenantId
from corral.model.job import Cause, StopReason
from corral.model.market import PreemptionKind
from corral.model.tenant import Quota, Tenant
from tests.e2e import training
from tests.e2e.livepool import LivePool

QUICK = "round_s = 0.3\ntenure_s = 0\ntenure_restarts = 0\n"
"""Rounds and tenures of a pool whose jobs last seconds."""


@pytest.fixture
def quick(pool: LivePool) -> LivePool:
    """Give a pool of one node with 4 GPUs, of which 2 are guaranteed to the tenant ``urgent``."""
    pool.state_dir.mkdir(parents=True)
    (pool.state_dir / "config.toml").write_text(QUICK)
    pool.up(nodes=1, gpus=4)
    pool.client.set_tenant(Tenant(TenantId("urgent"), guaranteed=Quota(gpu_milli=2_000)), create=True)
    return pool


def interrupts(pool: LivePool, victim: JobHandle, incarnation: int) -> None:
    """Let a job of another tenant take the devices, run, and end."""
    other = pool.submit(["true"], gpus=2, tenant="urgent")
    assert pool.result(other).exit_code == 0
    task = next(
        fact
        for entry in pool.client.history(victim.id)
        if isinstance(fact := entry.fact, TaskEnded) and fact.incarnation == incarnation
    )
    assert task.exit is not None
    assert (task.exit.cause, task.exit.exit_code) == (Cause.PREEMPTED, 0)


def test_a_training_that_is_preempted_twice_ends_with_exactly_the_same_result(quick: LivePool, tmp_path: Path) -> None:
    expected, accuracy = training.undisturbed(tmp_path, workers=4)
    job = training.submit(quick, holds=(300, 600), gpus=4)
    quick.said(job, b"waits at step 300 of 4")
    interrupts(quick, job, 1)
    quick.said(job, b"waits at step 600 of 4")
    interrupts(quick, job, 2)
    found = quick.result(job)
    assert (found.exit_code, found.restarts, found.moves) == (0, 0, 2)
    assert training.same(training.weights_of(quick, job), expected, ("w1", "b1", "w2", "b2", "done"))
    log = quick.log(job).decode().splitlines()
    assert log == ["begins at step 600 with 4 workers", accuracy]
    assert float(accuracy.split()[1]) > 0.9
    stops = [entry.fact for entry in quick.client.history(job.id) if isinstance(entry.fact, GangStopping)]
    assert [stop.reason for stop in stops] == [StopReason.PREEMPTED] * 2
    assert [stop.preemption.kind for stop in stops if stop.preemption is not None] == [PreemptionKind.RECLAIM] * 2
    assert job.details().gangs[0].preemptions == 2


def test_who_is_preempted_without_saving_itself_begins_anew(quick: LivePool) -> None:
    quick.client.set_tenant(Tenant(TenantId("urgent"), guaranteed=Quota(gpu_milli=4_000)))
    victim = quick.submit(["sh", "-c", "echo began; exec sleep 600"], gpus=4, restart_cost=0)
    quick.said(victim, b"began")
    assert quick.result(quick.submit(["true"], gpus=4, tenant="urgent")).exit_code == 0
    quick.started(victim, incarnation=2)
    victim.cancel()
    assert quick.result(victim).exit_code is not None
