"""What stands where the pool is while another controller leads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from corral.model.errors import NotLeader

OPEN_PATHS = frozenset({"/v1/health", "/v1/openapi.json"})
"""What any controller answers, whoever leads."""


class Elsewhere:
    """Refuses all requests but those to ``OPEN_PATHS``; ``leader`` returns where the leader is, empty without one."""

    def __init__(self, leader: Callable[[], str]) -> None:
        self._leader = leader

    def reason(self) -> NotLeader:
        """Return the refusal as it is now."""
        leader = self._leader()
        if not leader:
            return NotLeader("no controller leads the pool now", hint="try again in a few seconds")
        return NotLeader.at(leader)

    def authenticate(self, secret: str) -> NoReturn:
        """Refuse: only the leader knows the tokens. Raises ``NotLeader``."""
        del secret
        raise self.reason()
