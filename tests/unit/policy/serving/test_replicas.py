"""What becomes of replicas: cases worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from corral.model.ask import JobAsk
from corral.model.ids import JobId, ServiceName, TenantId
from corral.model.service import (
    Renewal,
    ReplicaPhase,
    Revision,
    Rollout,
    Scaling,
    Secrets,
    Service,
    ServiceSpec,
)
from corral.policy.serving.renewal import Answers, Ruling, judge, targets
from corral.policy.serving.replicas import Act, Drain, End, Seen, Start, acts

NOW = 10_000.0
SURGE = Renewal()
NO_ANSWERS = Answers()


def service(wanted: int, rollout: Rollout | None = None, renewal: Renewal = SURGE, **changes: Any) -> Service:
    spec = ServiceSpec(ServiceName("web"), TenantId("t"), JobAsk(argv=("x",)), scaling=Scaling(wanted, wanted))
    spec = replace(spec, renewal=renewal)
    revisions = (Revision(1, spec, 0.0, "me"), Revision(2, spec, 0.0, "me"))
    made = Service(spec.name, spec.tenant, revisions, 1, wanted, 0.0, Secrets("s"), rollout, replicas={})
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def up(job: int, revision: int = 1, **changes: Any) -> Seen:
    return replace(Seen(JobId(str(job)), revision, job, ReplicaPhase.SERVING, 9_000.0, ready=True), **changes)


def starting(job: int, revision: int = 1, **changes: Any) -> Seen:
    return replace(Seen(JobId(str(job)), revision, job, ReplicaPhase.STARTING, 9_990.0), **changes)


def draining(job: int, revision: int = 1, **changes: Any) -> Seen:
    return replace(Seen(JobId(str(job)), revision, job, ReplicaPhase.DRAINING, 9_000.0, leaving=True), **changes)


def do(of: Service, *seen: Seen) -> list[Act]:
    return list(acts(of, seen, targets(of, NOW), NOW))


def drained(those: list[Act]) -> list[str]:
    return [act.job for act in those if isinstance(act, Drain)]


def test_what_is_missing_is_started_and_what_is_there_stays() -> None:
    assert do(service(3), up(1)) == [Start(1, 2)]
    assert do(service(3), up(1), starting(2), starting(3, placed_at=None)) == []


def test_fewer_wanted_give_back_first_what_never_served_then_crowded_ones_then_new_ones() -> None:
    of = service(2)
    assert do(of, up(1), up(2), starting(3), starting(4, placed_at=None)) == [End(JobId("4")), End(JobId("3"))]
    assert drained(do(of, up(1, siblings=1), up(2), up(3))) == ["1"]
    assert drained(do(of, up(1), up(2), up(3))) == ["3"]
    assert drained(do(of, up(1), up(2, ready=False), up(3))) == ["2"]


def test_nobody_leaves_whom_the_others_do_not_replace() -> None:
    # Two are wanted, one of the three does not answer: it goes, and no other one.
    assert drained(do(service(2), up(1, ready=False), up(2, ready=False), up(3))) == ["2"]
    assert drained(do(service(1), up(1, ready=False), up(2, ready=False))) == []


def test_a_drained_replica_ends_when_nobody_uses_it() -> None:
    assert do(service(1), up(1), draining(2)) == []
    assert do(service(1), up(1), draining(2, idle=True)) == [End(JobId("2"))]


def test_a_removed_service_starts_nothing_and_lets_all_go() -> None:
    of = service(3, removed_by="me")
    assert do(of, up(1), starting(2), draining(3, idle=True)) == [
        End(JobId("3")),
        Drain(JobId("1"), "the service is being removed"),
        End(JobId("2")),
    ]


def test_failures_pause_the_starts_of_their_revision_only() -> None:
    of = service(1, failures=2, failed_at=NOW - 9.0, failed_revision=1)
    assert do(of) == []
    of.failed_at = NOW - 10.0
    assert do(of) == [Start(1, 1)]
    of.failed_at, of.failed_revision = NOW - 1.0, 2
    assert do(of) == [Start(1, 1)]


def test_a_rollout_goes_one_by_one_and_never_below_what_is_wanted() -> None:
    of = service(2, Rollout(2, 9_000.0, "me"))
    assert do(of, up(1), up(2)) == [Start(2, 1)]
    assert do(of, up(1), up(2), starting(3, 2)) == []
    # The first new one is watched for ten seconds before any old one leaves.
    of.rollout = Rollout(2, 9_000.0, "me", began_to_serve_at=NOW - 9.0)
    assert do(of, up(1), up(2), up(3, 2)) == []
    of.rollout = Rollout(2, 9_000.0, "me", began_to_serve_at=NOW - 10.0)
    assert do(of, up(1), up(2), up(3, 2)) == [Drain(JobId("2"), "revision 2 takes its place")]
    assert do(of, up(1), draining(2), up(3, 2)) == [Start(2, 1)]
    assert do(of, up(1), starting(4, 2), up(3, 2)) == []
    assert do(of, up(1), up(4, 2), up(3, 2)) == [Drain(JobId("1"), "revision 2 takes its place")]
    assert do(of, up(4, 2), up(3, 2)) == []


def test_without_surge_an_old_one_makes_room_first() -> None:
    of = service(3, Rollout(2, 9_000.0, "me"), Renewal(surge=0, max_unavailable=1))
    assert do(of, up(1), up(2), up(3)) == [Drain(JobId("3"), "revision 2 takes its place")]
    assert do(of, up(1), up(2), draining(3)) == [Start(2, 1)]
    assert do(of, up(1), up(2), starting(4, 2)) == []


def test_old_ones_that_do_not_answer_stay_until_a_new_one_does() -> None:
    of = service(2, Rollout(2, 9_000.0, "me", began_to_serve_at=NOW - 60.0))
    assert drained(do(of, up(1, ready=False), up(2, ready=False), up(3, 2, ready=False))) == []
    assert drained(do(of, up(1, ready=False), up(2, ready=False), up(3, 2))) == ["2", "1"]


def test_old_ones_that_never_served_make_room_at_once() -> None:
    of = service(2, Rollout(2, 9_000.0, "me", began_to_serve_at=NOW - 60.0))
    assert do(of, starting(1), starting(2, placed_at=None)) == [Start(2, 1), End(JobId("2")), End(JobId("1"))]


@pytest.mark.parametrize(
    "wanted, percent, expected",
    [
        (10, 10, {2: 1, 1: 9}),
        (10, 25, {2: 3, 1: 7}),
        (3, 10, {2: 1, 1: 2}),
        (1, 10, {2: 1, 1: 1}),
        (4, 99, {2: 4, 1: 1}),
        (4, 100, {2: 1, 1: 4}),
        (0, 10, {2: 0}),
    ],
)
def test_a_canary_holds_its_part(wanted: int, percent: int, expected: dict[int, int]) -> None:
    of = service(wanted, Rollout(2, 9_000.0, "me", percent))
    assert targets(of, NOW) == expected


def test_a_canary_of_one_replica_serves_beside_it() -> None:
    of = service(1, Rollout(2, 9_000.0, "me", 10))
    assert do(of, up(1)) == [Start(2, 1)]
    assert do(of, up(1), up(2, 2)) == []


def test_a_stable_replica_that_is_lost_beside_a_canary_is_replaced() -> None:
    of = service(3, Rollout(2, 9_000.0, "me", 10, began_to_serve_at=9_100.0))
    assert do(of, up(1), up(3, 2)) == [Start(1, 1)]


def test_a_node_that_is_emptied_is_left_when_another_replica_serves() -> None:
    of = service(2)
    there = up(2, condemned=True, condemned_s=5.0)
    assert do(of, up(1), there) == [Start(1, 1)]
    assert do(of, up(1), there, starting(3)) == []
    assert do(of, up(1), there, up(3)) == [Drain(JobId("2"), "its node is being emptied")]


def test_a_node_that_is_emptied_does_not_wait_for_ever_for_room_elsewhere() -> None:
    of = service(1)
    there = up(1, condemned=True, condemned_s=61.0)
    homeless = starting(2, placed_at=None)
    assert drained(do(of, replace(there, condemned_s=59.0), homeless)) == []
    assert drained(do(of, there, homeless)) == ["1"]
    # One that loads its model has until it should be ready.
    assert drained(do(of, there, starting(2))) == []
    assert drained(do(of, replace(there, condemned_s=601.0), starting(2))) == ["1"]


# ---- judging ---------------------------------------------------------------------------------------------------------


def ruled(of: Service, *seen: Seen, answers: Answers = NO_ANSWERS) -> Ruling | None:
    return judge(of, seen, answers, NOW)


def test_a_rollout_is_done_when_all_are_new_and_were_watched() -> None:
    of = service(2, Rollout(2, 9_000.0, "me", began_to_serve_at=NOW - 10.0))
    assert ruled(of, up(3, 2), up(4, 2)) == Ruling(undone=False)
    assert ruled(of, up(3, 2), up(4, 2), draining(1)) == Ruling(undone=False)
    assert ruled(of, up(3, 2), up(4, 2), up(1)) is None
    assert ruled(of, up(3, 2), starting(4, 2)) is None
    of.rollout = Rollout(2, 9_000.0, "me", began_to_serve_at=NOW - 9.0)
    assert ruled(of, up(3, 2), up(4, 2)) is None
    of.rollout = Rollout(2, 9_000.0, "me", 50, began_to_serve_at=NOW - 60.0)
    assert ruled(of, up(3, 2), up(4, 2)) is None


def test_a_service_at_rest_takes_its_next_revision_at_once() -> None:
    assert ruled(service(0, Rollout(2, 9_999.0, "me"))) == Ruling(undone=False)


@pytest.mark.parametrize(
    "seen, answers, failures, words",
    [
        (starting(3, 2, placed_at=NOW - 601.0), Answers(), 0, "replica 3 was not ready in 600 s"),
        (up(3, 2, ready=False, unready_s=601.0), Answers(), 0, "replica 3 has not been ready for 601 s"),
        (up(3, 2), Answers(20, 2), 0, "2 of 20 requests failed"),
        (starting(3, 2), Answers(), 3, "3 replicas in a row ended by themselves, the last one: boom"),
    ],
)
def test_a_bad_revision_is_given_up(seen: Seen, answers: Answers, failures: int, words: str) -> None:
    of = service(2, Rollout(2, 9_000.0, "me"), failures=failures, failed_revision=2, failed_at=NOW, message="boom")
    ruling = ruled(of, up(1), up(2), seen, answers=answers)
    assert ruling == Ruling(undone=True, reason=f"revision 2 was given up: {words}")


@pytest.mark.parametrize(
    "seen, answers",
    [
        (starting(3, 2, placed_at=NOW - 599.0), Answers()),
        # It waits for room: that says nothing against it.
        (starting(3, 2, placed_at=None), Answers()),
        (up(3, 2), Answers(19, 19)),
        (up(3, 2), Answers(20, 1)),
        (up(3, 2, ready=False, unready_s=30.0), Answers()),
    ],
)
def test_what_says_too_little_gives_nothing_up(seen: Seen, answers: Answers) -> None:
    of = service(2, Rollout(2, 9_000.0, "me"))
    assert ruled(of, up(1), up(2), seen, answers=answers) is None
