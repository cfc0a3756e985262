"""The pause after failures, against the numbers that its docstring promises."""

from __future__ import annotations

import pytest

from corral.policy.serving.backoff import pause_s


@pytest.mark.parametrize(
    "failures, replicas, expected",
    [
        (0, 3, 0.0),
        (1, 1, 0.0),
        (2, 1, 10.0),
        (3, 1, 20.0),
        (4, 1, 40.0),
        (6, 1, 160.0),
        (7, 1, 300.0),
        (5_000, 1, 300.0),
        # Each of three may be killed once without anybody having to wait.
        (3, 3, 0.0),
        (4, 3, 10.0),
        (6, 3, 10.0),
        (7, 3, 20.0),
        (1, 0, 0.0),
        (2, 0, 10.0),
    ],
)
def test_each_replica_may_fail_once_then_rounds_of_failures_double_the_pause(
    failures: int, replicas: int, expected: float
) -> None:
    assert pause_s(failures, replicas) == expected
