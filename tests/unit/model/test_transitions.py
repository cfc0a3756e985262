"""Transitions by hand: what each fact does, and what is refused without a trace."""

from __future__ import annotations

import msgspec
import pytest

from corral.model.errors import CorralError, IllegalTransition, Refusal, Stale, by_code
from corral.model.events import (
    DeviceFailed,
    Fact,
    FactCodec,
    GangEnded,
    GangPlaced,
    GangRequeued,
    GangStopping,
    JobCancelRequested,
    JobEnded,
    JobSubmitted,
    MaintenanceEnded,
    MaintenanceSettled,
    MaintenanceStarted,
    NodeJoined,
    NodeRemoved,
    QueueRemoved,
    TaskEnded,
    TaskStarted,
    TenantRemoved,
    TenantSet,
)
from corral.model.ids import DeviceId, GangKey, JobId, NodeId, QueueName, TaskKey, TenantId
from corral.model.job import Cause, JobSpec, JobState, StopReason, TaskExit, TaskState, deciding_exit
from corral.model.offer import Bid
from corral.model.resources import Amount, Demand, DeviceShare, DeviceSpec, GangShape, NodeSpec, Placement
from corral.model.state import Maintenance, PoolState
from corral.model.tenant import Tenant
from corral.model.transitions import fold

SPEC = JobSpec(name="j", tenant=TenantId("a"), shape=GangShape(2, Demand(gpu_milli=1000)), argv=("x",), max_restarts=1)
J = JobId("1")
N = NodeId("n")


def place(rank: int) -> Placement:
    return Placement(rank, N, (DeviceShare(DeviceId(f"d{rank}"), 1000),), 1000, 10, 20_000 if rank == 0 else None)


def submitted(job: str = "1", **changes: object) -> JobSubmitted:
    return JobSubmitted(at=10.0, job=JobId(job), spec=msgspec.structs.replace(SPEC, **changes))


def placed(at: float = 20.0, incarnation: int = 1) -> GangPlaced:
    return GangPlaced(at=at, job=J, gang=0, incarnation=incarnation, placements=(place(0), place(1)))


def ended(rank: int, at: float, code: int = 0, incarnation: int = 1) -> TaskEnded:
    state = TaskState.SUCCEEDED if code == 0 else TaskState.FAILED
    exit_ = TaskExit(Cause.EXITED, exit_code=code)
    return TaskEnded(at=at, job=J, gang=0, incarnation=incarnation, rank=rank, state=state, exit=exit_)


def pool(*facts: Fact) -> PoolState:
    state = PoolState()
    devices = tuple(DeviceSpec(DeviceId(f"d{i}"), "H100", "simulated", 81_559, i) for i in range(2))
    fold(state, NodeJoined(at=1.0, spec=NodeSpec(N, "n", "127.0.0.1", 8000, 1000, devices)))
    for fact in facts:
        fold(state, fact)
    return state


def test_a_gang_holds_its_placements_until_each_rank_ends() -> None:
    state = pool(submitted(), placed())
    assert state.held[N].amount == Amount(2000, 2000, 20)
    assert state.tenant_held[TenantId("a")] == Amount(2000, 2000, 20)
    assert state.held[N].ports == {20_000}
    fold(state, ended(0, 50.0))
    assert state.held[N].amount == Amount(1000, 1000, 10)
    assert state.held[N].ports == set()
    fold(state, ended(1, 60.0))
    assert state.held[N].amount == Amount()
    assert state.held[N].gangs == {}
    # Held from 20 to 50 and from 20 to 60: 30 s + 40 s of one device each.
    assert state.jobs[J].gangs[0].used_gpu_milli_s == pytest.approx(70_000.0)


def test_waiting_and_lost_work_are_counted() -> None:
    facts = (submitted(), placed(20.0), ended(0, 30.0, 1), ended(1, 32.0, 1))
    state = pool(*facts, GangRequeued(at=32.0, job=J, gang=0, incarnation=1, counted=True, reason="x", avoid=(N,)))
    gang = state.jobs[J].gangs[0]
    assert (gang.waited_s, gang.restarts, gang.avoid, gang.state) == (10.0, 1, (N,), JobState.PENDING)
    assert gang.lost_gpu_milli_s == pytest.approx(10_000.0 + 12_000.0)
    fold(state, placed(40.0, incarnation=2))
    assert state.jobs[J].gangs[0].waited_s == pytest.approx(10.0 + 8.0)


def test_only_the_work_since_the_last_checkpoint_is_lost() -> None:
    facts = (submitted(), placed(20.0), ended(0, 30.0, 1), ended(1, 32.0, 1))
    again = GangRequeued(at=32.0, job=J, gang=0, incarnation=1, counted=True, reason="x")
    for saved_at, lost in ((28.0, 2_000.0 + 4_000.0), (5.0, 10_000.0 + 12_000.0), (31.0, 1_000.0)):
        state = pool(*facts, msgspec.structs.replace(again, saved_at=saved_at))
        assert state.jobs[J].gangs[0].lost_gpu_milli_s == pytest.approx(lost)


def test_service_counts_from_the_last_start_to_the_last_end_and_only_of_runs_of_all_ranks() -> None:
    started = [TaskStarted(at=21.0 + 3 * rank, job=J, gang=0, incarnation=1, rank=rank) for rank in (0, 1)]
    stop = GangStopping(at=50.0, job=J, gang=0, incarnation=1, reason=StopReason.PREEMPTED)
    ends = (ended(0, 55.0, 1), ended(1, 60.0, 1))
    again = GangRequeued(at=75.0, job=J, gang=0, incarnation=1, counted=False, reason="x")
    gang = pool(submitted(), placed(20.0), *started, stop, *ends, again).jobs[J].gangs[0]
    # All ranks ran from 24 to 60.
    assert (gang.attained_s, gang.preemptions, gang.moves, gang.stopping) == (36.0, 1, 1, None)
    gang = pool(submitted(), placed(20.0), started[0], *ends, again).jobs[J].gangs[0]
    assert (gang.attained_s, gang.preemptions) == (0.0, 0)


ELASTIC = tuple(GangShape(ranks, Demand(gpu_milli=1000)) for ranks in (2, 1))


def test_an_elastic_gang_has_as_many_ranks_as_it_was_placed_with() -> None:
    bid = Bid(ELASTIC[1], throughput=0.5)
    small = GangPlaced(at=20.0, job=J, gang=0, incarnation=1, placements=(place(0),), bid=bid)
    state = pool(submitted(shapes=ELASTIC), small)
    gang = state.jobs[J].gangs[0]
    assert (len(gang.tasks), gang.bid) == (1, bid)
    assert state.tenant_held[TenantId("a")] == Amount(1000, 1000, 10)
    with pytest.raises(IllegalTransition, match="no rank 1"):
        fold(state, ended(1, 30.0))
    fold(state, ended(0, 30.0, 1))
    fold(state, GangRequeued(at=31.0, job=J, gang=0, incarnation=1, counted=False, reason="x"))
    gang = state.jobs[J].gangs[0]
    assert (len(gang.tasks), gang.bid, state.tenant_held[TenantId("a")]) == (2, None, Amount())
    fold(state, placed(40.0, incarnation=2))
    assert len(state.jobs[J].gangs[0].tasks) == 2
    fold(state, ended(0, 50.0, incarnation=2))
    fold(state, ended(1, 50.0, incarnation=2))
    fold(state, GangEnded(at=50.0, job=J, gang=0, incarnation=2, state=JobState.SUCCEEDED))
    assert state.held[N].gangs == {}


@pytest.mark.parametrize("ranks", [(), (0, 1, 2), (1,), (1, 0)], ids=["none", "too many", "not from 0", "out of order"])
def test_a_size_that_nobody_asked_for_is_refused(ranks: tuple[int, ...]) -> None:
    state = pool(submitted(shapes=ELASTIC))
    with pytest.raises(IllegalTransition, match="one for each rank"):
        fold(state, GangPlaced(at=20.0, job=J, gang=0, incarnation=1, placements=tuple(place(r) for r in ranks)))
    rigid = pool(submitted())
    with pytest.raises(IllegalTransition, match="one for each rank"):
        fold(rigid, GangPlaced(at=20.0, job=J, gang=0, incarnation=1, placements=(place(0),)))


def test_the_first_bad_exit_decides() -> None:
    state = pool(submitted(), placed(), ended(1, 30.0, 7), ended(0, 29.0, 0))
    decided = deciding_exit(state.jobs[J].gangs.values())
    assert decided is not None
    assert decided.exit_code == 7


def test_a_finished_job_leaves_and_lets_its_dependents_go() -> None:
    state = pool(submitted(), placed(), ended(0, 30.0), ended(1, 30.0))
    waiting = JobSubmitted(at=31.0, job=JobId("2"), spec=SPEC, waiting_for=(J,))
    fold(state, waiting)
    fold(state, GangEnded(at=32.0, job=J, gang=0, incarnation=1, state=JobState.SUCCEEDED))
    fold(state, JobEnded(at=32.0, job=J, state=JobState.SUCCEEDED))
    assert list(state.jobs) == ["2"]
    assert state.jobs[JobId("2")].waiting_for == ()
    assert state.finished == 1
    assert state.next_job == 3


ILLEGAL: dict[str, tuple[tuple[Fact, ...], Fact]] = {
    "submitted twice": ((submitted(),), submitted()),
    "unknown job": ((), placed()),
    "wrong incarnation": ((submitted(),), placed(incarnation=2)),
    "placed twice": ((submitted(), placed()), placed(incarnation=2)),
    "old incarnation ends": ((submitted(), placed()), ended(0, 30.0, incarnation=0)),
    "rank ends twice": ((submitted(), placed(), ended(0, 30.0)), ended(0, 31.0)),
    "starts before placed": ((submitted(),), TaskStarted(at=1.0, job=J, gang=0, incarnation=0, rank=0)),
    "requeued while running": (
        (submitted(), placed()),
        GangRequeued(at=30.0, job=J, gang=0, incarnation=1, counted=False, reason="x"),
    ),
    "ended while running": (
        (submitted(), placed()),
        GangEnded(at=30.0, job=J, gang=0, incarnation=1, state=JobState.FAILED),
    ),
    "stopped while waiting": (
        (submitted(),),
        GangStopping(at=30.0, job=J, gang=0, incarnation=0, reason=StopReason.CANCELLED),
    ),
    "job ends with open gangs": ((submitted(),), JobEnded(at=30.0, job=J, state=JobState.FAILED)),
    "unknown node": ((), DeviceFailed(at=1.0, node=NodeId("other"), device=DeviceId("d"), reason="x")),
    "node with tasks removed": ((submitted(), placed()), NodeRemoved(at=30.0, node=N, by="t")),
}


@pytest.mark.parametrize("case", ILLEGAL)
def test_what_does_not_fit_is_refused_and_changes_nothing(case: str) -> None:
    before, fact = ILLEGAL[case]
    state = pool(*before)
    image = msgspec.json.encode(state)
    with pytest.raises(IllegalTransition):
        fold(state, fact)
    assert msgspec.json.encode(state) == image


def test_facts_survive_the_codec_and_unknown_fields_are_ignored() -> None:
    fact = TenantSet(at=1.5, tenant=Tenant(TenantId("t"), 2.0), by="me")
    assert FactCodec.decode(FactCodec.encode(fact)) == fact
    newer = FactCodec.encode(fact)[:-1] + b',"since":"0.9"}'
    assert FactCodec.decode(newer) == fact


def test_cancelling_is_remembered_with_its_first_author() -> None:
    state = pool(submitted())
    for by in ("me", "you"):
        fold(state, JobCancelRequested(at=11.0, job=J, by=by))
    assert state.jobs[J].cancelled_by == "me"


def test_keys_print_and_parse() -> None:
    key = TaskKey(JobId("12"), 3, 1)
    assert str(key) == "12.3.1"
    assert TaskKey.parse("12.3.1") == key
    assert str(key.gang_key) == str(GangKey(JobId("12"), 3)) == "12.3"
    with pytest.raises(ValueError, match="unpack"):
        TaskKey.parse("12.3")


def test_every_error_has_its_own_code_and_comes_back_from_its_refusal() -> None:
    found: list[type[CorralError]] = []
    todo: list[type[CorralError]] = [CorralError]
    while todo:
        kind = todo.pop()
        found.append(kind)
        todo.extend(kind.__subclasses__())
    assert len({kind.code for kind in found}) == len(found) == len(by_code())
    again = CorralError.of(Refusal("STALE", "moved on", "job", "refresh"))
    assert isinstance(again, Stale)
    assert str(again) == "job: moved on (refresh)"
    assert again.retryable


SHARES: list[tuple[Amount, Amount, float]] = [
    (Amount(500, 0, 0), Amount(2000, 4000, 100), 0.25),
    (Amount(500, 4000, 0), Amount(2000, 4000, 100), 1.0),
    (Amount(0, 0, 30), Amount(0, 0, 100), 0.3),
    (Amount(100, 0, 0), Amount(0, 10, 10), 0.0),
]


@pytest.mark.parametrize("held, capacity, share", SHARES)
def test_the_dominant_share_is_the_largest(held: Amount, capacity: Amount, share: float) -> None:
    assert held.dominant_share(capacity) == pytest.approx(share)


@pytest.mark.parametrize("rank", [-1, 2, 10**9])
def test_a_rank_that_does_not_exist_is_refused(rank: int) -> None:
    state = pool(submitted(), placed())
    before = msgspec.to_builtins(state)
    started = TaskStarted(at=30.0, job=J, gang=0, incarnation=1, rank=rank)
    for fact in (ended(rank, 40.0), started):
        with pytest.raises(IllegalTransition, match="rank"):
            fold(state, fact)
    for placements in ((place(1), place(0)), (place(0), place(0)), (place(0),)):
        fresh = pool(submitted())
        with pytest.raises(IllegalTransition, match="one for each rank"):
            fold(fresh, GangPlaced(at=20.0, job=J, gang=0, incarnation=1, placements=placements))
        assert fresh.held[N].gangs == {}
    assert msgspec.to_builtins(state) == before


def test_what_was_granted_for_a_maintenance_outlives_it() -> None:
    state = PoolState()
    fold(state, MaintenanceStarted(at=100.0, until=1900.0, by="me", reason="disks"))
    assert state.maintenance == Maintenance(100.0, 1900.0, "me", "disks", granted_until=1900.0, granted_s=1800.0)
    assert state.maintenance.active(1899.9)
    assert not state.maintenance.active(1900.0)
    fold(state, MaintenanceEnded(at=200.0, by="me"))
    assert not state.maintenance.active(200.0)
    # A shorter one forgets nothing; one that begins when all that was granted is over by every clock does.
    fold(state, MaintenanceStarted(at=300.0, until=400.0, by="me"))
    assert (state.maintenance.until, state.maintenance.granted_until, state.maintenance.granted_s) == (400, 1900, 1800)
    fold(state, MaintenanceStarted(at=5499.0, until=5599.0, by="me"))
    assert (state.maintenance.granted_until, state.maintenance.granted_s) == (5599.0, 1800.0)
    fold(state, MaintenanceStarted(at=9199.0, until=9299.0, by="me"))
    assert (state.maintenance.granted_until, state.maintenance.granted_s) == (9299.0, 100.0)
    ended = MaintenanceEnded(at=9200.0, by="me")
    fold(state, FactCodec.decode(FactCodec.encode(ended)))
    fold(state, MaintenanceEnded(at=1960.0, by="you"))
    assert state.maintenance.ended_at == 9200.0


def test_removed_tenants_and_queues_leave_no_count_behind() -> None:
    state = pool(submitted(queue=QueueName("q")), placed(), ended(0, 30.0), ended(1, 30.0))
    assert state.tenant_held == {TenantId("a"): Amount()}
    fold(state, TenantRemoved(at=40.0, tenant=TenantId("a"), by="me"))
    fold(state, QueueRemoved(at=40.0, queue=QueueName("q"), by="me"))
    assert (state.tenant_held, state.queue_held) == ({}, {})


def exited(cause: Cause, code: int | None = None, signal: int | None = None, at: float | None = None) -> TaskExit:
    return TaskExit(cause, exit_code=code, signal=signal, ended_at=at)


DECIDED: dict[str, tuple[TaskExit, TaskExit, TaskExit]] = {
    "the first failure, not the lowest rank": (
        exited(Cause.EXITED, 1, at=50.0),
        exited(Cause.EXITED, 2, at=40.0),
        exited(Cause.EXITED, 2, at=40.0),
    ),
    "not the peer that was stopped for it": (
        exited(Cause.GANG_STOPPED, 143, at=40.0),
        exited(Cause.EXITED, 5, at=41.0),
        exited(Cause.EXITED, 5, at=41.0),
    ),
    "the loss, not the exit that it caused": (
        exited(Cause.EXITED, 1, at=40.0),
        exited(Cause.NODE_LOST, at=49.0),
        exited(Cause.NODE_LOST, at=49.0),
    ),
    "the failure, not the good end before it": (
        exited(Cause.EXITED, 0, at=40.0),
        exited(Cause.SIGNAL, signal=9, at=60.0),
        exited(Cause.SIGNAL, signal=9, at=60.0),
    ),
}


@pytest.mark.parametrize("first, second, decides", DECIDED.values(), ids=DECIDED.keys())
def test_the_exit_that_decides_is_that_of_the_task_to_blame(
    first: TaskExit, second: TaskExit, decides: TaskExit
) -> None:
    state = pool(submitted(), placed())
    for rank, exit_ in enumerate((first, second)):
        # The node tells both at once: the controller's own times say nothing.
        state_of = TaskState.SUCCEEDED if exit_.ok else TaskState.FAILED
        fold(state, TaskEnded(at=70.0, job=J, gang=0, incarnation=1, rank=rank, state=state_of, exit=exit_))
    job = state.jobs[J]
    assert deciding_exit(job.gangs.values()) == decides
    fold(state, GangEnded(at=70.0, job=J, gang=0, incarnation=1, state=JobState.FAILED))
    fold(state, JobEnded(at=70.0, job=J, state=JobState.FAILED))
    expected = {Cause.SIGNAL: 128 + 9, Cause.NODE_LOST: 1}.get(decides.cause, decides.exit_code)
    assert (job.exit_code, job.exit_cause) == (expected, decides.cause)


CODES: dict[str, tuple[TaskExit, int]] = {
    "a good end": (exited(Cause.EXITED, 0), 0),
    "its own code": (exited(Cause.EXITED, 3), 3),
    "a signal": (exited(Cause.SIGNAL, signal=15), 143),
    "out of time, ended well when it was told to": (exited(Cause.MAX_DURATION, 0), 124),
    "out of time, ended by SIGTERM": (exited(Cause.MAX_DURATION, signal=15), 124),
    "out of time, ended by SIGKILL": (exited(Cause.MAX_DURATION, signal=9), 124),
    "out of time, with an error of its own": (exited(Cause.MAX_DURATION, 3), 3),
    "too much memory": (exited(Cause.MEMORY, signal=9), 137),
    "too much memory, and nobody saw the signal": (exited(Cause.MEMORY), 137),
    "not found": (exited(Cause.EXEC_FAILED, 127), 127),
    "not executable": (exited(Cause.EXEC_FAILED, 126), 126),
    "not started": (exited(Cause.EXEC_FAILED), 127),
    "cancelled, ended well when it was told to": (exited(Cause.CANCELLED, 0), 1),
    "cancelled by SIGTERM": (exited(Cause.CANCELLED, signal=15), 143),
    "lost": (exited(Cause.NODE_LOST), 1),
}


@pytest.mark.parametrize("exit_, code", CODES.values(), ids=CODES.keys())
def test_only_a_good_end_has_the_code_0(exit_: TaskExit, code: int) -> None:
    assert exit_.code == code
    assert (exit_.code == 0) == exit_.ok


@pytest.mark.parametrize("state_of, code", [(JobState.FAILED, 1), (JobState.CANCELLED, 1), (JobState.SUCCEEDED, 0)])
def test_a_job_that_did_not_succeed_has_no_code_0_even_when_all_that_ran_ended_well(
    state_of: JobState, code: int
) -> None:
    state = pool(submitted(), placed(), ended(0, 30.0), ended(1, 30.0))
    job = state.jobs[J]
    fold(state, GangEnded(at=70.0, job=J, gang=0, incarnation=1, state=state_of))
    fold(state, JobEnded(at=70.0, job=J, state=state_of))
    assert job.exit_code == code


def test_of_a_settled_maintenance_nothing_is_left() -> None:
    state = PoolState()
    fold(state, MaintenanceStarted(at=100.0, until=1900.0, by="me"))
    fold(state, MaintenanceEnded(at=200.0, by="me"))
    fold(state, FactCodec.decode(FactCodec.encode(MaintenanceSettled(at=210.0))))
    assert state.maintenance is None
    fold(state, MaintenanceStarted(at=300.0, until=400.0, by="me"))
    assert state == PoolState(
        at=300.0, maintenance=Maintenance(300.0, 400.0, "me", granted_until=400.0, granted_s=100.0)
    )
