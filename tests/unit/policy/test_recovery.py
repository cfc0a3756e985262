"""What an AppMaster decides, case by case, and that deciding again after the fold gives nothing new."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from corral.model.errors import IllegalTransition
from corral.model.events import Decision, GangEnded, GangRequeued, GangStopping, JobEnded
from corral.model.ids import NodeId, TenantId
from corral.model.job import Cause, Gang, Job, JobSpec, JobState, StopReason, Task, TaskExit, TaskState
from corral.model.transitions import apply_to_job, copy_job
from corral.policy.config import LAUNCH_MOVES_MAX
from corral.policy.recovery import decide, decide_gang, describe, first_failure
from tests.unit.policy.building import NOW, job, place_on, shape

ENDED_STATE = {
    Cause.NODE_LOST: TaskState.LOST,
    Cause.SHIM_LOST: TaskState.LOST,
    Cause.CANCELLED: TaskState.CANCELLED,
    Cause.GANG_STOPPED: TaskState.CANCELLED,
    Cause.PREEMPTED: TaskState.CANCELLED,
}


def spec(ranks: int = 1, restarts: int = 0, elements: int = 1) -> JobSpec:
    return JobSpec(
        name="train",
        tenant=TenantId("a"),
        shape=shape(1, ranks),
        argv=("train",),
        indices=tuple(range(10, 10 + elements)),
        is_array=elements > 1,
        max_restarts=restarts,
    )


def runs(rank: int = 0) -> Task:
    return Task(rank, TaskState.RUNNING, place_on(f"node-{rank}", 0, rank=rank), started_at=NOW)


def ended(cause: Cause, rank: int = 0, *, at: float = NOW + 5, code: int | None = None, message: str = "") -> Task:
    if cause is Cause.EXITED and code is None:
        code = 1
    state = TaskState.SUCCEEDED if code == 0 else ENDED_STATE.get(cause, TaskState.FAILED)
    outcome = TaskExit(cause, exit_code=code, message=message, ended_at=at)
    return Task(rank, state, place_on(f"node-{rank}", 0, rank=rank), NOW, at, outcome)


def well(rank: int = 0) -> Task:
    return ended(Cause.EXITED, rank, code=0)


def gang(*tasks: Task, index: int = 0, stopping: StopReason | None = None, restarts: int = 0, moves: int = 0) -> Gang:
    return Gang(
        index, tasks, JobState.RUNNING, incarnation=3, placed_at=NOW, stopping=stopping, restarts=restarts, moves=moves
    )


def decided(work: Job) -> tuple[Decision, ...]:
    """Decide, fold, and see that nothing is left to decide."""
    decisions = decide(work, NOW + 9)
    copy = copy_job(work)
    for decision in decisions:
        apply_to_job(copy, decision)
    assert decide(copy, NOW + 10) == ()
    return decisions


def test_nothing_is_decided_while_all_is_well() -> None:
    assert decided(job(spec(2), gang(runs(0), runs(1)))) == ()
    assert decided(job(spec(2), gang(runs(0), well(1)))) == ()
    assert decided(job(spec(2), Gang(0, (Task(0), Task(1))))) == ()


def test_all_ranks_well_end_the_gang_and_the_job() -> None:
    first, second = decided(job(spec(2), gang(well(0), well(1))))
    assert isinstance(first, GangEnded)
    assert (first.state, first.incarnation, first.at) == (JobState.SUCCEEDED, 3, NOW + 9)
    assert isinstance(second, JobEnded)
    assert (second.state, second.reason) == (JobState.SUCCEEDED, "")


def test_a_failed_rank_stops_the_others() -> None:
    (only,) = decided(job(spec(2, restarts=5), gang(ended(Cause.EXITED, 0), runs(1))))
    assert isinstance(only, GangStopping)
    assert only.reason is StopReason.RANK_ENDED


def test_nothing_more_is_decided_while_a_gang_is_being_stopped() -> None:
    work = job(spec(2), gang(ended(Cause.EXITED, 0), runs(1), stopping=StopReason.RANK_ENDED))
    assert decided(work) == ()


def test_a_failure_names_rank_node_cause_and_code() -> None:
    tasks = (ended(Cause.GANG_STOPPED, 0, at=NOW + 4), ended(Cause.EXITED, 1, code=3, message="  no\nspace "))
    first, last = decided(job(spec(2), gang(*tasks, stopping=StopReason.RANK_ENDED)))
    assert isinstance(first, GangEnded)
    assert first.reason == "rank 1 on node-1 exited with code 3: no space"
    assert isinstance(last, JobEnded)
    assert (last.state, last.reason) == (JobState.FAILED, first.reason)


def test_the_first_failure_decides_and_ties_go_to_the_lower_rank() -> None:
    tasks = [ended(Cause.EXITED, rank, at=at, code=rank + 1) for rank, at in enumerate((9.0, 5.0, 5.0))]
    found = first_failure(gang(*tasks))
    assert found is not None
    assert found.rank == 1
    assert first_failure(gang(runs(0), well(1))) is None


def test_a_lost_peer_outweighs_the_failures_that_it_caused() -> None:
    tasks = (ended(Cause.EXITED, 0, at=NOW + 1), ended(Cause.NODE_LOST, 1, at=NOW + 30))
    (only,) = decided(job(spec(2), gang(*tasks, stopping=StopReason.RANK_ENDED)))
    assert isinstance(only, GangRequeued)
    assert (only.counted, only.avoid) == (False, (NodeId("node-1"),))


@pytest.mark.parametrize("cause", [Cause.NODE_LOST, Cause.NODE_UNFIT, Cause.LEASE_EXPIRED])
def test_losses_are_not_counted_and_their_node_is_avoided(cause: Cause) -> None:
    (only,) = decided(job(spec(), gang(ended(cause), moves=50)))
    assert isinstance(only, GangRequeued)
    assert (only.counted, only.avoid) == (False, (NodeId("node-0"),))


def test_preemption_is_not_counted_and_avoids_nothing() -> None:
    (only,) = decided(job(spec(), gang(ended(Cause.PREEMPTED), stopping=StopReason.PREEMPTED)))
    assert isinstance(only, GangRequeued)
    assert (only.counted, only.avoid) == (False, ())


@pytest.mark.parametrize("stopping", [StopReason.DEVICE_FAILED, StopReason.PREEMPTED, StopReason.NODE_LOST])
def test_the_reason_of_a_stop_counts_and_not_what_its_kill_looks_like(stopping: StopReason) -> None:
    tasks = (ended(Cause.SIGNAL, 0), ended(Cause.EXITED, 1, code=143))
    (only,) = decided(job(spec(2), gang(*tasks, stopping=stopping)))
    assert isinstance(only, GangRequeued)
    assert not only.counted


def test_a_failed_device_of_a_gang_does_not_put_all_its_nodes_on_the_list() -> None:
    tasks = (ended(Cause.DEVICE_FAILED, 0), ended(Cause.DEVICE_FAILED, 1))
    (only,) = decided(job(spec(2), gang(*tasks, stopping=StopReason.DEVICE_FAILED)))
    assert isinstance(only, GangRequeued)
    assert only.avoid == ()


@pytest.mark.parametrize("cause", [Cause.LAUNCH_FAILED, Cause.SHIM_LOST, Cause.DEVICE_FAILED])
def test_failed_launches_lost_shims_and_broken_devices_are_free_up_to_a_bound(cause: Cause) -> None:
    often = replace(gang(ended(cause), moves=LAUNCH_MOVES_MAX + 2), preemptions=3)
    (free,) = decided(job(spec(), often))
    assert isinstance(free, GangRequeued)
    assert (free.counted, free.avoid) == (False, (NodeId("node-0"),))
    last = decided(job(spec(), gang(ended(cause), moves=LAUNCH_MOVES_MAX)))
    assert [type(d) for d in last] == [GangEnded, JobEnded]
    assert isinstance(last[0], GangEnded)
    assert last[0].reason.endswith("; it moved 5 times before, the job may be the cause")
    (counted,) = decided(job(spec(restarts=1), gang(ended(cause), moves=LAUNCH_MOVES_MAX)))
    assert isinstance(counted, GangRequeued)
    assert counted.counted


@pytest.mark.parametrize("cause", [Cause.EXITED, Cause.SIGNAL, Cause.MEMORY, Cause.SETUP_FAILED])
def test_failures_cost_restarts_until_none_is_left(cause: Cause) -> None:
    (again,) = decided(job(spec(restarts=2), gang(ended(cause), restarts=1)))
    assert isinstance(again, GangRequeued)
    assert (again.counted, again.avoid) == (True, (NodeId("node-0"),))
    first, _ = decided(job(spec(restarts=2), gang(ended(cause), restarts=2)))
    assert isinstance(first, GangEnded)
    assert first.state is JobState.FAILED
    assert first.reason.endswith("(after 2 of 2 restarts)")


@pytest.mark.parametrize("cause", [Cause.EXEC_FAILED, Cause.MAX_DURATION])
def test_what_would_end_the_same_way_is_not_repeated(cause: Cause) -> None:
    first, _ = decided(job(spec(restarts=5), gang(ended(cause))))
    assert isinstance(first, GangEnded)
    assert first.state is JobState.FAILED


def test_cancelling_ends_what_waits_and_stops_what_runs() -> None:
    work = job(spec(2, elements=2), Gang(0, (Task(0), Task(1))), gang(runs(0), runs(1), index=1), cancelled_by="ann")
    first, second = decided(work)
    assert isinstance(first, GangEnded)
    assert (first.gang, first.state, first.reason) == (0, JobState.CANCELLED, "cancelled by ann")
    assert isinstance(second, GangStopping)
    assert (second.gang, second.reason) == (1, StopReason.CANCELLED)


def test_a_cancelled_gang_ends_cancelled_whatever_its_exit_codes() -> None:
    tasks = (ended(Cause.EXITED, 0, code=143), ended(Cause.CANCELLED, 1))
    work = job(spec(2, restarts=9), gang(*tasks, stopping=StopReason.CANCELLED), cancelled_by="ann")
    first, last = decided(work)
    assert isinstance(first, GangEnded)
    assert isinstance(last, JobEnded)
    assert (first.state, last.state, last.reason) == (JobState.CANCELLED, JobState.CANCELLED, "cancelled by ann")


def test_a_cancelled_job_that_had_succeeded_already_has_succeeded() -> None:
    first, _ = decided(job(spec(), gang(well()), cancelled_by="ann"))
    assert isinstance(first, GangEnded)
    assert first.state is JobState.SUCCEEDED


def test_a_job_waits_for_all_its_elements_and_says_which_failed() -> None:
    done = Gang(0, (well(),), JobState.SUCCEEDED)
    lost = Gang(1, (ended(Cause.EXITED, code=2),), JobState.FAILED)
    assert decided(job(spec(elements=3), done, lost, gang(runs(), index=2))) == ()
    first, last = decided(job(spec(elements=3), done, lost, gang(well(), index=2)))
    assert isinstance(first, GangEnded)
    assert isinstance(last, JobEnded)
    assert last.state is JobState.FAILED
    assert last.reason == "1 of 3 elements failed (11); element 11: rank 0 on node-0 exited with code 2"


def test_one_gang_can_be_decided_alone_and_the_last_ends_the_job() -> None:
    work = job(spec(elements=2), gang(well()), gang(well(), index=1))
    (only,) = decide_gang(work, 1, NOW)
    assert isinstance(only, GangEnded)
    apply_to_job(work, only)
    assert [type(d) for d in decide_gang(work, 0, NOW)] == [GangEnded, JobEnded]
    assert decide_gang(work, 5, NOW) == ()


def test_signals_are_named() -> None:
    killed = Task(0, TaskState.FAILED, None, exit=TaskExit(Cause.SIGNAL, signal=9))
    assert describe(killed) == "rank 0 was killed by signal 9 (SIGKILL)"


@given(
    ranks=st.lists(st.sampled_from([*Cause, "well", "runs"]), min_size=1, max_size=4),
    stopping=st.sampled_from([None, *StopReason]),
    restarts=st.integers(0, 2),
    moves=st.integers(0, 7),
    cancelled=st.booleans(),
)
def test_every_state_has_decisions_that_fit_and_are_final(
    ranks: list[Cause | str], stopping: StopReason | None, restarts: int, moves: int, cancelled: bool
) -> None:
    tasks = [
        well(i) if what == "well" else runs(i) if what == "runs" else ended(Cause(what), i, at=NOW + i)
        for i, what in enumerate(ranks)
    ]
    work = job(
        spec(len(tasks), restarts=1),
        gang(*tasks, stopping=stopping, restarts=restarts, moves=moves),
        cancelled_by="ann" if cancelled else None,
    )
    try:
        decisions = decided(work)
    except IllegalTransition as error:
        pytest.fail(str(error))
    if not any(what == "runs" for what in ranks):
        assert decisions, "an ended gang must go somewhere"
