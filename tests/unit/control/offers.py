"""Short ways to submit jobs and to see what they bid."""

from __future__ import annotations

from msgspec.structs import replace

from corral.model.ask import JobAsk
from corral.model.ids import JobId
from corral.model.offer import Bid
from tests.unit.control.world import World

ONE = JobAsk(argv=("x",), gpu_milli=1000, name="net")
OTHER = replace(ONE, name="other")


def submit(world: World, *asks: JobAsk) -> None:
    """Submit one after the other: names are those of families and come again."""
    for ask in asks:
        world.submit(ask)


def bids_of(world: World, job: str) -> tuple[Bid, ...]:
    return world.core.book.waiting.proposals[JobId(job)].bids


def candidate_bids(world: World, job: str) -> tuple[Bid, ...]:
    return next(c.bids for c in world.core.book.waiting.index if c.key.job == job)
