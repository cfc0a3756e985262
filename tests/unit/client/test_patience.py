"""How long a wait looks for a pool that is lost again and again."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from corral.client import calls
from corral.client.discovery import Discovery
from corral.client.transport import Broken, NotSent, Reply, Stream
from corral.model.errors import CorralError, Unavailable


def test_a_wait_looks_for_the_pool_from_each_loss_of_it_on(monkeypatch: pytest.MonkeyPatch) -> None:
    passed_s = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed_s[0], sleep=time.sleep)
    monkeypatch.setattr(calls, "time", clock)
    ended = b'{"id":"1"}'

    class Dying:
        """Breaks twice, each time 8 s after the call was sent, with the pool away for a moment after each."""

        def __init__(self) -> None:
            self.answers: list[Exception] = [Broken("1"), NotSent("1"), Broken("2"), NotSent("2")]

        def request(self, *_: object) -> Reply:
            if not self.answers:
                return Reply(200, {}, ended)
            error = self.answers.pop(0)
            if isinstance(error, Broken):
                passed_s[0] += 8.0
            raise error

        def stream(self, *_: object) -> Stream:
            raise NotImplementedError

        def close(self) -> None:
            pass

    found = Discovery("http://127.0.0.1:1", "t")
    caller = calls.Caller(found, Dying(), timeout_s=30.0, retry_s=10.0)
    assert caller.call("GET", "/jobs/1/wait", long_poll=True).body == ended
    caller = calls.Caller(found, Dying(), timeout_s=30.0, retry_s=10.0)
    with pytest.raises(CorralError):
        caller.call("GET", "/jobs")
    # What stays silent for the whole time limit is not repeated for ever.
    caller = calls.Caller(found, Dying(), timeout_s=5.0, retry_s=4.0)
    with pytest.raises(Unavailable, match="broke: 1"):
        caller.call("GET", "/jobs/1/wait", long_poll=True)
