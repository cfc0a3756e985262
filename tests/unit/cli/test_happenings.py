"""Facts as sentences."""

from __future__ import annotations

import pytest

from corral.cli.render.happenings import exit_words
from corral.model.job import Cause, TaskExit

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
