"""Jobs' own proposers through the shell: asked aside, waited for by nobody, forgotten with their jobs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from corral.model.ask import JobAsk
from corral.model.errors import ProposerFault, Refusal
from corral.model.ids import JobId
from corral.model.job import Job
from corral.model.offer import Bid, Offer
from corral.policy.bidding import default_bids
from tests.unit.control.house import House, live

ALL = JobAsk(argv=("x",), gpu_milli=4_000)
OWN = JobAsk(argv=("x",), gpu_milli=4_000, gpu_counts=(1, 4), appmaster="mine:propose")


class Smallest:
    """Implements ``ports.proposers.Proposers``: bids on the smallest size, fails, or breaks."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.asked: list[JobId] = []
        self.forgotten: list[JobId] = []
        self.answer: Exception | Refusal | None = None
        self.closed = False

    async def propose(self, job: Job, offer: Offer) -> tuple[Bid, ...] | Refusal:
        self.asked.append(job.id)
        await self.gate.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is not None:
            return self.answer
        small = min(default_bids(job.spec, offer), key=lambda bid: bid.shape.demand.gpu_milli)
        return (replace(small, tenure_s=0.0),)

    def forget(self, job: JobId) -> None:
        self.forgotten.append(job)

    async def close(self) -> None:
        self.closed = True


async def begin(house: House) -> None:
    """Have a pool of 4 GPUs that job 1 holds, and job 2 with its own proposer waiting."""
    await house.start("n1", gpus=4)
    await house.until(house.shell.core.book.board.offers, "the node")
    await house.submit(ALL)
    await house.running_task("1")
    await house.submit(OWN)


def bids(house: House) -> list[int]:
    return [bid.shape.demand.gpus_whole for bid in house.shell.core.book.waiting.proposals[JobId("2")].bids]


def test_its_bids_stand_when_they_come_and_the_default_ones_before(state_dir: Path) -> None:
    async def scenario(house: House) -> None:
        mine = house.proposers = Smallest()
        await begin(house)
        await house.until(lambda: mine.asked, "it to be asked")
        assert sorted(bids(house)) == [1, 4]
        mine.gate.set()
        await house.until(lambda: bids(house) == [1], "its bids")
        house.engine.end("1")
        await house.running_task("2")
        assert len(house.job("2").gangs[0].placements[0].devices) == 1
        house.engine.end("2")
        await house.until(lambda: JobId("2") in mine.forgotten, "it to be forgotten")
        await house.stop()
        assert mine.closed

    live(scenario, state_dir)


@pytest.mark.parametrize(
    "answer", [Refusal(ProposerFault.code, "it is silent", "appmaster"), RuntimeError("a bug")], ids=["refusal", "bug"]
)
def test_whatever_it_does_the_job_runs_with_the_default_bids(state_dir: Path, answer: Exception | Refusal) -> None:
    async def scenario(house: House) -> None:
        mine = house.proposers = Smallest()
        mine.answer = answer
        mine.gate.set()
        await begin(house)
        await house.until(lambda: mine.asked, "it to be asked")
        house.engine.end("1")
        await house.running_task("2")
        assert len(house.job("2").gangs[0].placements[0].devices) == 4
        await house.stop()

    live(scenario, state_dir)


def test_one_that_never_answers_is_not_waited_for(state_dir: Path) -> None:
    async def scenario(house: House) -> None:
        house.proposers = Smallest()
        await begin(house)
        house.engine.end("1")
        await house.running_task("2")
        await house.stop()

    live(scenario, state_dir)


def test_a_pool_without_proposers_bids_for_all(state_dir: Path) -> None:
    async def scenario(house: House) -> None:
        await begin(house)
        house.engine.end("1")
        await house.running_task("2")
        await house.stop()

    live(scenario, state_dir)
