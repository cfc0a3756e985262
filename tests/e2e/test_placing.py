"""Gangs, arrays, dependencies, fractions, priorities, quotas and cancels, with real processes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from corral.client.handle import JobHandle
from corral.model.errors import Conflict, QuotaExceeded, Unschedulable
from corral.model.events import GangPlaced, JobEnded
from corral.model.ids import TenantId
from corral.model.job import JobState, TaskState
from corral.model.resources import Placement
from corral.model.tenant import Quota, Tenant
from tests.e2e.livepool import LivePool
from tests.waiting import wait_until

RENDEZVOUS = """
import os, socket, time
address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
rank, size = int(os.environ["NODE_RANK"]), int(os.environ["NNODES"])
if rank == 0:
    server = socket.create_server(address)
    peers = [server.accept()[0] for _ in range(size - 1)]
    said = sorted(peer.makefile().readline().strip() for peer in peers)
    for peer in peers:
        peer.sendall(f"{len(said)} came\\n".encode())
    print("heard", *said)
else:
    while True:
        try:
            link = socket.create_connection(address)
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
    link.sendall(f"rank-{rank}@{os.environ['CORRAL_NODE']}\\n".encode())
    print("answer", link.makefile().readline().strip())
"""


def place(job: JobHandle, gang: int = 0, rank: int = 0) -> Placement:
    found = job.details().gangs[gang].tasks[rank].placement
    assert found is not None
    return found


@contextmanager
def taken(pool: LivePool, *gpus: int) -> Iterator[list[JobHandle]]:
    """Hold devices while the block runs: so many by one job each, the largest first."""
    jobs = [pool.submit(["sleep", "600"], gpus=count, max_duration="1h") for count in sorted(gpus, reverse=True)]
    try:
        for job in jobs:
            pool.started(job)
        yield jobs
    finally:
        for job in jobs:
            if not job.status().state.ended:
                job.cancel()
        for job in jobs:
            pool.result(job)


def test_the_ranks_of_a_gang_meet_at_the_address_they_are_given(shared: LivePool) -> None:
    job = shared.submit([sys.executable, "-c", RENDEZVOUS], num_nodes=2, gpus=4)
    assert shared.result(job).state is JobState.SUCCEEDED
    nodes = [place(job, rank=rank).node for rank in (0, 1)]
    assert sorted(nodes) == ["node-1", "node-2"]
    assert shared.log(job, rank=0).decode() == f"heard rank-1@{nodes[1]}\n"
    assert shared.log(job, rank=1).decode() == "answer 1 came\n"


def test_a_gang_starts_as_a_whole_or_waits(shared: LivePool) -> None:
    with taken(shared, 1) as (holder,):
        job = shared.submit(["sleep", "600"], num_nodes=2, gpus=4)
        small = shared.submit(["true"], max_duration="10s")
        assert shared.result(small).state is JobState.SUCCEEDED
        gang = job.details().gangs[0]
        assert [task.state for task in gang.tasks] == [TaskState.PENDING] * 2
        why = job.why()
        assert (why.shortfall, why.own_reservation) == (1, True)
        assert holder.id in {who.job for node in why.constraints for who in node.holders}
        holder.cancel()
        for rank in (0, 1):
            shared.started(job, rank=rank)
        job.cancel()
        assert shared.result(job).state is JobState.CANCELLED
    with pytest.raises(Unschedulable):
        shared.submit(["true"], num_nodes=2, gpus=5)


def test_a_rank_that_fails_takes_its_gang_down(shared: LivePool) -> None:
    script = 'if [ "$NODE_RANK" = 1 ]; then exit 4; fi; sleep 600'
    job = shared.submit(script, num_nodes=2, gpus=4, max_restarts=1)
    found = shared.result(job)
    assert (found.state, found.exit_code, found.restarts) == (JobState.FAILED, 4, 1)
    tasks = job.details().gangs[0].tasks
    assert [task.state for task in tasks] == [TaskState.CANCELLED, TaskState.FAILED]


def test_elements_of_an_array_have_indices_parameters_and_ends_of_their_own(shared: LivePool) -> None:
    job = shared.submit('echo "$CORRAL_ARRAY_INDEX"; [ "$CORRAL_ARRAY_INDEX" != 4 ] || exit 6', array="0-6:2")
    found = shared.result(job)
    assert (found.state, found.exit_code, found.elements) == (JobState.FAILED, 6, 4)
    assert [shared.log(job, element=n) for n in range(4)] == [b"0\n", b"2\n", b"4\n", b"6\n"]
    states = [gang.state for _, gang in sorted(job.details().gangs.items())]
    assert states == [JobState.SUCCEEDED, JobState.SUCCEEDED, JobState.FAILED, JobState.SUCCEEDED]
    job = shared.submit('echo "$C/$KERNEL"', sweep={"C": [0.1, 10], "KERNEL": ["rbf", "linear"]})
    assert shared.result(job).state is JobState.SUCCEEDED
    assert [shared.log(job, element=n) for n in range(4)] == [
        b"0.1/rbf\n",
        b"0.1/linear\n",
        b"10/rbf\n",
        b"10/linear\n",
    ]


def test_a_job_waits_for_those_that_it_names(shared: LivePool) -> None:
    good, bad = shared.submit("sleep 0.2", name="prepare"), shared.submit("sleep 0.2; exit 2")
    after_good = shared.submit(["echo", "trained"], after="prepare")
    after_bad = shared.submit(["echo", "never"], after=[good, bad])
    mourner = shared.submit(["echo", "mourned"], after={bad.id: "failed"})
    either = shared.submit(["echo", "cleaned"], after=[{bad.id: "ended"}, {good.id: "ended"}])
    late = shared.submit(["echo", "never"], after=after_bad)
    for job, log in ((after_good, b"trained\n"), (mourner, b"mourned\n"), (either, b"cleaned\n")):
        assert shared.result(job).state is JobState.SUCCEEDED
        assert shared.log(job) == log
    for job, cause in ((after_bad, bad), (late, after_bad)):
        found = shared.result(job)
        assert found.state is JobState.CANCELLED
        assert f"job {cause.id}" in found.message
    placed = next(e.seq for e in shared.client.history(after_good.id) if isinstance(e.fact, GangPlaced))
    ended = next(e.seq for e in shared.client.history(good.id) if isinstance(e.fact, JobEnded))
    assert ended < placed


def test_two_halves_of_a_device_run_at_once_and_a_third_waits(shared: LivePool, tmp_path: Path) -> None:
    with taken(shared, 4, 3):
        both = f'while [ "$(ls {tmp_path} | wc -l)" -lt 2 ]; do sleep 0.02; done'
        script = f'touch {tmp_path}/"$CORRAL_JOB"; {both}; sleep 600'
        halves = [shared.submit(script, gpus=0.5) for _ in range(2)]
        for half in halves:
            shared.started(half)
        third = shared.submit(["true"], gpus=0.5)
        wait_until(lambda: len(list(tmp_path.iterdir())) == 2, what="both to run at once")
        shares = [place(half).devices for half in halves]
        assert shares[0] == shares[1]
        assert [share.milli for share in shares[0]] == [500]
        assert third.status().state is JobState.PENDING
        assert third.why().shortfall == 1
        halves[0].cancel()
        assert shared.result(third).state is JobState.SUCCEEDED
        halves[1].cancel()
        for half in halves:
            assert shared.result(half).state is JobState.CANCELLED


def test_a_higher_priority_goes_first(shared: LivePool) -> None:
    with taken(shared, 4, 4) as holders:
        low = shared.submit(["true"], gpus=4, num_nodes=2)
        high = shared.submit(["true"], gpus=4, num_nodes=2, priority=5)
        wait_until(lambda: [line.key.job for line in shared.client.queue()] == [high.id, low.id], what="the order")
        for holder in holders:
            holder.cancel()
        for job in (low, high):
            assert shared.result(job).state is JobState.SUCCEEDED
    placed = {
        job.id: next(e.seq for e in shared.client.history(job.id) if isinstance(e.fact, GangPlaced))
        for job in (low, high)
    }
    assert placed[high.id] < placed[low.id]


def test_a_limit_holds_in_an_empty_pool_and_why_names_it(shared: LivePool) -> None:
    tenant = Tenant(TenantId("frugal"), limit=Quota(gpu_milli=1000))
    shared.client.set_tenant(tenant, create=True)
    first, second = (shared.submit(["sleep", "600"], gpus=1, tenant="frugal") for _ in range(2))
    shared.started(first)
    assert second.status().state is JobState.PENDING
    why = second.why()
    assert "limit" in " ".join((why.verdict, *why.blocked_by))
    with pytest.raises(QuotaExceeded):
        shared.submit(["true"], gpus=2, tenant="frugal")
    first.cancel()
    shared.started(second)
    second.cancel()
    for job in (first, second):
        assert shared.result(job).state is JobState.CANCELLED
    shared.client.remove_tenant("frugal")


def test_a_job_can_be_cancelled_wherever_it_is(shared: LivePool) -> None:
    with taken(shared, 4, 4) as holders:
        waits = shared.submit(["true"], gpus=1)
        depends = shared.submit(["true"], after=holders[0])
        for job in (waits, depends):
            assert job.cancel().state is JobState.CANCELLED
            assert shared.result(job).exit_code is None
            with pytest.raises(Conflict):
                job.cancel()
    # Between submit and start: wherever the cancel finds it.
    for job in [shared.submit(["sleep", "600"], gpus=1) for _ in range(8)]:
        job.cancel()
        assert shared.result(job).state is JobState.CANCELLED
    array = shared.submit('[ "$CORRAL_ARRAY_INDEX" = 0 ] || sleep 600', array="0-9", gpus=1)
    wait_until(lambda: array.details().gangs[0].state.ended, what="the first element to end")
    array.cancel()
    array.cancel()
    assert shared.result(array).state is JobState.CANCELLED
    assert {g.state for i, g in array.details().gangs.items() if i} == {JobState.CANCELLED}
    assert array.details().gangs[0].state is JobState.SUCCEEDED
    assert all(node.held.gpu_milli == 0 for node in shared.client.nodes())
