"""The number of replicas by load: up at once, down after a while, to zero and back."""

from __future__ import annotations

import pytest

from corral.model.service import Scaling
from corral.policy.serving.scaling import Load, Scaler, Wanted, need_of

BY_WORK = Scaling(1, 8, target_outstanding=4.0, down_after_s=60.0)
RESTS = Scaling(0, 4, target_outstanding=4.0, down_after_s=60.0, idle_s=300.0)


@pytest.mark.parametrize(
    "scaling, load, expected",
    [
        (BY_WORK, Load(outstanding=0), 0),
        (BY_WORK, Load(outstanding=4), 1),
        # A tenth over the target of one replica is no reason for another one.
        (BY_WORK, Load(outstanding=4.4), 1),
        (BY_WORK, Load(outstanding=4.5), 2),
        (BY_WORK, Load(outstanding=8, waiting=9), 5),
        (Scaling(1, 8, target_requests_s=10.0), Load(requests_s=35.0), 4),
        (Scaling(1, 8, target_requests_s=10.0, target_outstanding=1.0), Load(outstanding=6, requests_s=35.0), 6),
    ],
)
def test_what_a_load_needs(scaling: Scaling, load: Load, expected: int) -> None:
    assert need_of(scaling, load) == expected


def test_more_load_asks_for_more_at_once_and_never_beyond_the_limit() -> None:
    scaler = Scaler()
    assert scaler.look(0.0, BY_WORK, 1, Load(outstanding=20)) == Wanted(5, "20 requests under way or waiting")
    assert scaler.look(1.0, BY_WORK, 5, Load(outstanding=400)) == Wanted(8, "400 requests under way or waiting")
    assert scaler.look(2.0, BY_WORK, 8, Load(outstanding=400)) is None


def test_less_load_gives_replicas_back_after_a_while_and_as_many_as_the_while_never_needed() -> None:
    scaler = Scaler()
    assert scaler.look(0.0, BY_WORK, 5, Load(outstanding=20)) is None
    for at in range(1, 30):
        assert scaler.look(float(at), BY_WORK, 5, Load(outstanding=1)) is None
    # A moment of load in between: three are needed for a minute more.
    assert scaler.look(30.0, BY_WORK, 5, Load(outstanding=12)) is None
    assert scaler.look(60.5, BY_WORK, 5, Load(outstanding=1)) == Wanted(3, "less load for 60 s")
    assert scaler.look(89.0, BY_WORK, 3, Load(outstanding=1)) is None
    assert scaler.look(90.5, BY_WORK, 3, Load(outstanding=1)) == Wanted(1, "less load for 60 s")


def test_what_a_person_asked_for_stays_for_a_while() -> None:
    scaler = Scaler()
    for at in range(100):
        scaler.look(float(at), BY_WORK, 1, Load())
    scaler.begin_again(100.0)
    assert scaler.look(101.0, BY_WORK, 6, Load()) is None
    assert scaler.look(159.0, BY_WORK, 6, Load()) is None
    assert scaler.look(160.0, BY_WORK, 6, Load()) == Wanted(1, "less load for 60 s")


def test_a_service_rests_when_nobody_asks_and_wakes_for_the_first_request() -> None:
    scaler = Scaler()
    assert scaler.look(0.0, RESTS, 1, Load(idle_s=299.0)) is None
    assert scaler.look(1.0, RESTS, 1, Load(idle_s=300.0)) == Wanted(0, "nobody asked for it for 300 s")
    assert scaler.look(2.0, RESTS, 0, Load(idle_s=301.0)) is None
    assert scaler.look(3.0, RESTS, 0, Load(waiting=1)) == Wanted(1, "a request waits for a replica")
    assert scaler.look(3.0, RESTS, 0, Load(waiting=30)) == Wanted(4, "30 requests wait for a replica")


def test_one_that_rests_and_has_no_target_has_one_replica_while_it_is_asked() -> None:
    plain = Scaling(0, 3, idle_s=300.0)
    scaler = Scaler()
    assert scaler.look(0.0, plain, 0, Load(waiting=50)) == Wanted(1, "50 requests wait for a replica")
    assert scaler.look(1.0, plain, 1, Load(outstanding=50)) is None
    assert scaler.look(400.0, plain, 1, Load(idle_s=350.0)) == Wanted(0, "nobody asked for it for 350 s")


def test_the_last_replica_does_not_go_while_requests_are_under_way() -> None:
    assert Scaler().look(0.0, RESTS, 1, Load(outstanding=1, idle_s=900.0)) is None


def test_load_does_not_move_a_service_that_declares_no_target() -> None:
    assert Scaler().look(0.0, Scaling(2, 8), 2, Load(outstanding=900)) is None
