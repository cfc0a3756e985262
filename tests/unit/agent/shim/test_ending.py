from __future__ import annotations

from typing import Any

import pytest

from corral.agent.shim.ending import Ending, describe_exit, read_stop
from corral.model.job import Cause


def test_the_first_cause_counts() -> None:
    ending = Ending()
    ending.request("preempted", "stopped", 10.0, 30.0)
    ending.request("cancelled", "other", 11.0, 60.0)
    ending.settle("exited", "")
    assert (ending.cause, ending.message, ending.kill_at) == ("preempted", "stopped", 40.0)


def test_the_earliest_deadline_counts() -> None:
    ending = Ending()
    ending.request("preempted", "", 10.0, 30.0)
    ending.request("cancelled", "", 12.0, 1.0)
    assert ending.kill_at == 13.0
    ending.kill_by(20.0)
    assert ending.kill_at == 13.0


def test_an_end_that_has_come_kills_nobody() -> None:
    ending = Ending()
    ending.settle("exited", "exit code 3")
    assert (ending.cause, ending.message, ending.kill_at) == ("exited", "exit code 3", None)


@pytest.mark.parametrize(
    "order, cause, grace_s",
    [
        (None, "node-lost", 7.0),
        ({}, "cancelled", 7.0),
        ({"reason": "preempted", "grace_s": 3}, "preempted", 3.0),
        ({"reason": "gang-stopped", "grace_s": 0}, "gang-stopped", 0.0),
        ({"reason": "device-failed"}, "device-failed", 7.0),
        ({"reason": "Anything at all!", "grace_s": 2.5}, "cancelled", 2.5),
        ({"reason": 5, "grace_s": "soon"}, "cancelled", 7.0),
        ({"reason": "cancelled", "grace_s": -1}, "cancelled", 7.0),
        ({"reason": "cancelled", "grace_s": float("nan")}, "cancelled", 7.0),
        ({"reason": "cancelled", "grace_s": True}, "cancelled", 7.0),
    ],
)
def test_a_stop_order_is_understood_as_far_as_it_makes_sense(
    order: dict[str, Any] | None, cause: str, grace_s: float
) -> None:
    assert read_stop(order, 7.0).cause == cause
    assert (read_stop(order, 7.0).grace_s, read_stop(order, 7.0).saving_s) == (grace_s, 0.0)


@pytest.mark.parametrize("said, saving_s", [(600, 600.0), (0.5, 0.5), (0, 0.0), (-1, 0.0), ("long", 0.0), (True, 0.0)])
def test_a_stop_order_says_how_long_a_checkpoint_may_take(said: object, saving_s: float) -> None:
    assert read_stop({"reason": "preempted", "grace_s": 3, "saving_s": said}, 7.0).saving_s == saving_s


def test_a_stop_order_brings_words_of_its_own_in_one_line() -> None:
    order: dict[str, object] = {"reason": "unhealthy", "message": "not alive:\n GET /alive:\tHTTP 500"}
    assert read_stop(order, 7.0).message == "not alive: GET /alive: HTTP 500"
    assert read_stop({"reason": "unhealthy", "message": 5}, 7.0).message == "stopped: unhealthy"
    assert len(read_stop({"reason": "unhealthy", "message": "x" * 5000}, 7.0).message) == 1000


def test_every_cause_is_one_that_the_model_knows() -> None:
    from corral.agent.shim import ending

    causes = {
        value
        for name, value in vars(ending).items()
        if name.isupper() and isinstance(value, str) and not name.startswith("_")
    }
    assert causes <= set(Cause)


def test_ends_are_described() -> None:
    said = [describe_exit(code) for code in (None, 0, 3, -9, -11, -34, -64)]
    assert said == ["it never ran", "exit code 0", "exit code 3", "killed by SIGKILL", "killed by SIGSEGV",
                    "killed by SIGRTMIN", "killed by SIGRTMAX"]  # fmt: skip
    assert describe_exit(-40) == "killed by signal 40"
