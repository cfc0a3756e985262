"""How many requests may be sent a second time: a part of all requests, so that retries never make an outage worse.

The rule is that of Finagle and Linkerd: a share of the requests of the last seconds, and a few a second in any case.
"""

from __future__ import annotations

from collections import deque

import msgspec


class BudgetConfig(msgspec.Struct, frozen=True):
    """``share`` of the requests in the last ``window_s`` seconds may be retried, and ``free_s`` a second beside."""

    share: float = 0.2
    window_s: float = 10.0
    free_s: float = 1.0


class RetryBudget:
    """Counts requests and retries of one service. Times are seconds on a clock that does not go back."""

    def __init__(self, config: BudgetConfig | None = None) -> None:
        self._config = config if config is not None else BudgetConfig()
        self._seen: deque[tuple[float, int, int]] = deque()
        self._requests = 0
        self._retries = 0

    def note(self, now: float, *, requests: int = 0, retries: int = 0) -> None:
        """Take in what happened since the last call."""
        self._forget(now)
        self._seen.append((now, requests, retries))
        self._requests += requests
        self._retries += retries

    def left(self, now: float) -> float:
        """Return how many retries are left now; below 1 none may be made."""
        self._forget(now)
        allowed = self._config.share * self._requests + self._config.free_s * self._config.window_s
        return allowed - self._retries

    def spend(self, now: float) -> bool:
        """Take one retry out; return ``False`` when none is left."""
        if self.left(now) < 1.0:
            return False
        self.note(now, retries=1)
        return True

    def _forget(self, now: float) -> None:
        while self._seen and self._seen[0][0] <= now - self._config.window_s:
            _, requests, retries = self._seen.popleft()
            self._requests -= requests
            self._retries -= retries
