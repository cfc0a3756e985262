"""Who asks a job's own proposer (``appmaster: my_module:propose``): processes of their own, outside the event loop."""

from __future__ import annotations

from typing import Protocol

from corral.model.errors import Refusal
from corral.model.ids import JobId
from corral.model.job import Job
from corral.model.offer import Bid, Offer


class Proposers(Protocol):
    """All own proposers of a pool. Nobody waits for them: until one has answered, the default bidder's bids stand."""

    async def propose(self, job: Job, offer: Offer) -> tuple[Bid, ...] | Refusal:
        """Return the bids of a job's own proposer, or why there are none: it broke, was silent, or bid nonsense."""

    def forget(self, job: JobId) -> None:
        """Let go of an ended job's proposer."""

    async def close(self) -> None:
        """End all of them."""
