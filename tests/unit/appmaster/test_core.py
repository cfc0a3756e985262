"""The AppMaster's own copy: facts, decisions, rehosting, places and progress."""

from __future__ import annotations

import msgspec
import pytest

from corral.appmaster.core import AppMasterCore
from corral.model.events import GangEnded, GangPlaced, GangRequeued, JobEnded, JobSubmitted, TaskEnded
from corral.model.ids import DeviceId, JobId, NodeId, TenantId
from corral.model.job import Cause, JobSpec, JobState, TaskExit, TaskState
from corral.model.messages import Usage
from corral.model.offer import FreeDevice, NodeOffer, Offer, Snapshot
from corral.model.resources import Amount, Demand, DeviceShare, GangShape, Placement
from corral.model.transitions import copy_job, new_job

J = JobId("3")
SPEC = JobSpec(
    name="j",
    tenant=TenantId("a"),
    shape=GangShape(1, Demand(gpu_milli=1000)),
    argv=("x",),
    data=("shard-a", "shard-b"),
    max_restarts=1,
)


def master() -> AppMasterCore:
    return AppMasterCore(new_job(JobSubmitted(at=1.0, job=J, spec=SPEC)))


def placed(incarnation: int = 1, node: str = "n1") -> GangPlaced:
    where = Placement(0, NodeId(node), (DeviceShare(DeviceId("d"), 1000),), 1000, 10)
    return GangPlaced(at=2.0, job=J, gang=0, incarnation=incarnation, placements=(where,))


def ended(code: int, incarnation: int = 1) -> TaskEnded:
    state = TaskState.SUCCEEDED if code == 0 else TaskState.FAILED
    exit_ = TaskExit(Cause.EXITED, exit_code=code)
    return TaskEnded(at=3.0, job=J, gang=0, incarnation=incarnation, rank=0, state=state, exit=exit_)


def test_success_ends_the_gang_and_the_job() -> None:
    mine = master()
    assert mine.handle(placed()) == ()
    decisions = mine.handle(ended(0))
    assert [type(d) for d in decisions] == [GangEnded, JobEnded]
    assert all(d.state is JobState.SUCCEEDED for d in decisions if isinstance(d, GangEnded | JobEnded))


def test_decisions_count_once_they_come_back_and_are_made_again_until_then() -> None:
    mine = master()
    mine.handle(placed())
    (first,) = mine.handle(ended(1))
    assert isinstance(first, GangRequeued)
    assert first.counted
    assert mine.resume(4.0) == (msgspec.structs.replace(first, at=4.0),)
    mine.handle(first)
    assert mine.resume(5.0) == ()
    assert mine.job.gangs[0].restarts == 1


def test_a_fact_that_its_copy_has_seen_changes_nothing() -> None:
    mine = master()
    mine.handle(placed())
    before = copy_job(mine.job)
    assert mine.handle(placed()) == ()
    assert mine.job == before


def test_a_new_host_decides_the_same_from_the_state() -> None:
    mine = master()
    mine.handle(placed())
    decisions = mine.handle(ended(0))
    other = AppMasterCore(copy_job(mine.job))
    assert other.resume(3.0) == decisions


def offer(*shards_of: frozenset[str]) -> Offer:
    nodes = tuple(
        NodeOffer(
            node=NodeId(f"n{i}"),
            rack="r",
            devices=(FreeDevice(DeviceId(f"d{i}"), "H100", 1000, 81_559),),
            cpus_milli=8000,
            memory_mib=8000,
            total=Amount(1000, 8000, 8000),
            shards=shards,
        )
        for i, shards in enumerate(shards_of)
    )
    return Offer(Snapshot(7, 1.0, nodes, (), Amount(2000, 16_000, 16_000)), credit=0.0)


def test_it_bids_for_the_place_of_its_data_and_remembers_it() -> None:
    mine = master()
    proposal = mine.propose(offer(frozenset(), frozenset({"shard-a", "shard-b"}), frozenset({"shard-a"})))
    assert proposal.version == 7
    cold = {str(p.node): p.cold_start_s for p in proposal.bids[0].preferred}
    assert cold["n1"] == pytest.approx(0.0)
    assert cold["n1"] < cold["n2"]
    assert mine.places.shards == {"shard-a": ("n1", "n2"), "shard-b": ("n1",)}


def test_it_watches_progress_and_knows_where_temporary_results_are() -> None:
    mine = master()
    mine.handle(placed(node="n2"))
    key = mine.job.task_key(0, 0)
    mine.observe([Usage(key, 1, progress=5.0)], now=10.0)
    mine.observe([Usage(key, 1, progress=5.0)], now=20.0)
    seen = mine.progress(0, 0)
    assert seen is not None
    assert (seen.value, seen.changed_at) == (5.0, 10.0)
    assert mine.progress(0, 1) is None
    assert mine.places.temporary == ("n2",)
