"""Facts as sentences."""

from __future__ import annotations

import pytest

from corral.cli.render.happenings import exit_words, told
from corral.model.events import GangStopping
from corral.model.ids import JobId, NodeId, TenantId
from corral.model.job import Cause, StopReason, TaskExit
from corral.model.market import Preemption, PreemptionKind

EXITS = [
    (TaskExit(Cause.EXITED, 1, message="exit code 1"), "exit code 1"),
    (TaskExit(Cause.EXITED, 3), "exit code 3"),
    (TaskExit(Cause.SETUP_FAILED, 3, message="setup failed: exit code 3"), "setup failed: exit code 3"),
    (TaskExit(Cause.SIGNAL, signal=9, message="killed by SIGKILL"), "signal 9, killed by SIGKILL"),
    (TaskExit(Cause.NODE_LOST), "its node was lost"),
]


@pytest.mark.parametrize("exit_, words", EXITS)
def test_nothing_is_said_twice_about_an_end(exit_: TaskExit, words: str) -> None:
    assert exit_words(exit_) == words


def test_who_gives_way_for_a_node_that_is_emptied_is_told_which() -> None:
    fact = GangStopping(
        at=0.0, job=JobId("1"), gang=2, incarnation=1, reason=StopReason.PREEMPTED, drained=NodeId("n1")
    )
    assert told(fact) == "gang 2 gives way: node n1 is emptied"


@pytest.mark.parametrize(
    "preemption, words",
    [
        (None, "gang 0 is being stopped: it was preempted"),
        (Preemption(PreemptionKind.RESIZE), "gang 0 goes on with another size"),
        (
            Preemption(PreemptionKind.RECLAIM, JobId("5"), TenantId("urgent"), 90.0),
            "gang 0 gave back what was guaranteed to job 5 of tenant urgent; 1m30s of work to be done again",
        ),
    ],
)
def test_who_gives_way_is_told_for_whom(preemption: Preemption | None, words: str) -> None:
    fact = GangStopping(
        at=0.0, job=JobId("1"), gang=0, incarnation=1, reason=StopReason.PREEMPTED, preemption=preemption
    )
    assert told(fact) == words
