"""Global rounds in a real pool: guarantees come back, whatever happens to the process that solves them."""

from __future__ import annotations

from pathlib import Path

from corral.model.events import GangStopping
from corral.model.ids import TenantId
from corral.model.market import PreemptionKind
from corral.model.tenant import Quota, Tenant
from tests.e2e.livepool import LivePool, alive, command_of, kill, parent_of
from tests.waiting import wait_until

QUICK = "round_s = 0.3\ntenure_s = 3\ntenure_restarts = 0\n"


def solver_of(pool: LivePool) -> int | None:
    """Return the process that solves the rounds of a pool's daemon."""
    daemon = pool.daemon()
    numbers = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    found = (pid for pid in numbers if parent_of(pid) == daemon and b"corral.runtime.solving.solver" in command_of(pid))
    return next((pid for pid in found if alive(pid)), None)


def test_a_guarantee_comes_back_after_tenure_though_the_solver_was_killed(pool: LivePool) -> None:
    pool.state_dir.mkdir(parents=True)
    (pool.state_dir / "config.toml").write_text(QUICK)
    pool.up(nodes=2, gpus=2)
    pool.client.set_tenant(Tenant(TenantId("urgent"), guaranteed=Quota(gpu_milli=1_000)), create=True)
    assert solver_of(pool) is None, "nothing contends: no process is started"
    holders = [pool.submit(["sleep", "600"], gpus=2, restart_cost=0) for _ in range(2)]
    for holder in holders:
        pool.started(holder)
    guaranteed = pool.submit(["sleep", "600"], gpus=1, tenant="urgent", restart_cost=0)
    first = wait_until(lambda: solver_of(pool), what="the process that solves rounds")
    assert first is not None
    kill(first)
    pool.started(guaranteed)
    assert solver_of(pool) not in (None, first)
    stops = [
        entry.fact
        for holder in holders
        for entry in pool.client.history(holder.id)
        if isinstance(entry.fact, GangStopping)
    ]
    (stop,) = stops
    assert stop.preemption is not None
    assert (stop.preemption.kind, stop.preemption.beneficiary) == (PreemptionKind.RECLAIM, guaranteed.id)
    assert stop.preemption.tenant == "urgent"
