"""The AppMaster as its hosts see it: in the controller while its job is pending, then in an agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from corral.model.events import Decision, Fact
from corral.model.job import Job
from corral.model.messages import Usage
from corral.model.offer import Offer, Proposal


class AppMaster(Protocol):
    """One job's master: a synchronous object without I/O."""

    @property
    def job(self) -> Job:
        """Return its own copy of the job."""

    def propose(self, offer: Offer) -> Proposal:
        """Answer an offer from the job's needs and the place of its data."""

    def handle(self, fact: Fact) -> tuple[Decision, ...]:
        """Take a journaled fact in and return what should happen next."""

    def observe(self, usage: Sequence[Usage], now: float) -> None:
        """Take samples of its running tasks in: it watches their progress."""

    def revise(self, now: float) -> Proposal | None:
        """Return what changed materially in what it believes of its running gangs, ``None`` when nothing did.

        The proposal holds the outlooks that changed and what was measured; without bids the earlier ones stand.
        """

    def resume(self, now: float, gang: int | None = None) -> tuple[Decision, ...]:
        """Return the decisions that are due on the state alone, of one gang or (after being hosted anew) of all."""


class AppMasterFactory(Protocol):
    """Makes the AppMaster of a job."""

    def __call__(self, job: Job) -> AppMaster:
        """Return a new AppMaster that starts from ``job``."""
