"""The campaign in an event loop: elected, deposed, a store that is away or refuses, an orderly end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from corral.control.leadership import Terms
from corral.model.errors import StateUnusable, StoreAway
from corral.ports.leadership import Answer, Ask, Candidate, Claim, LeaderRow, Look, Renew, Resign
from corral.runtime.leading.announcing import certificate_of
from corral.runtime.leading.campaign import Campaign, place_of
from tests.waiting import wait_until_async

QUICK = Terms(lease_s=0.4, renew_s=0.1, look_s=0.02, retry_s=0.02)


class Row:
    """The row in memory; ``fault`` is raised instead of an answer."""

    def __init__(self) -> None:
        self.row = LeaderRow()
        self.asked: list[Ask] = []
        self.fault: Exception | None = None

    def campaign(self, me: Candidate, ask: Ask) -> Answer:
        self.asked.append(ask)
        if self.fault is not None:
            raise self.fault
        row, done = self.row, True
        match ask:
            case Look():
                pass
            case Claim(seen) if seen == row:
                self.row = LeaderRow(row.epoch + 1, row.beat + 1, me.holder, me.place, me.url)
            case Renew(epoch) if (row.epoch, row.holder) == (epoch, me.holder):
                self.row = LeaderRow(epoch, row.beat + 1, row.holder, row.place, row.url)
            case Resign(epoch) if (row.epoch, row.holder) == (epoch, me.holder):
                self.row = LeaderRow(epoch, row.beat + 1)
            case _:
                done = False
        return Answer(self.row, done)

    def take(self) -> None:
        """Let another controller lead."""
        self.row = LeaderRow(self.row.epoch + 1, self.row.beat + 1, "other", "elsewhere", "https://other")


def campaign_of(row: Row) -> Campaign:
    return Campaign(row, "here", "https://me", QUICK)  # type: ignore[arg-type]


def test_it_is_elected_renews_and_is_deposed() -> None:
    async def scenario() -> None:
        row = Row()
        campaign = campaign_of(row)
        running = asyncio.create_task(campaign.run())
        await asyncio.wait_for(campaign.elected.wait(), 10.0)
        assert (campaign.epoch, campaign.valid(), campaign.leader) == (1, True, "")
        await wait_until_async(lambda: row.row.beat > 3, what="renewals")
        row.take()
        await asyncio.wait_for(running, 10.0)
        assert campaign.deposed.is_set()
        assert (campaign.epoch, campaign.valid(), campaign.leader) == (0, False, "https://other")
        await campaign.resign()
        assert not any(isinstance(ask, Resign) for ask in row.asked)

    asyncio.run(scenario())


def test_a_store_that_is_away_costs_the_lease_and_not_the_lead() -> None:
    async def scenario() -> None:
        row = Row()
        campaign = campaign_of(row)
        running = asyncio.create_task(campaign.run())
        await asyncio.wait_for(campaign.elected.wait(), 10.0)
        row.fault = StoreAway("away")
        await wait_until_async(lambda: not campaign.valid(), what="the lease to lapse")
        assert campaign.epoch == 1
        assert campaign.away_s() > 0
        row.fault = None
        await wait_until_async(campaign.valid, what="the lease to be renewed")
        assert campaign.away_s() == 0
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await campaign.resign()
        assert (row.row.epoch, row.row.holder) == (1, "")

    asyncio.run(scenario())


def test_what_the_store_refuses_for_good_ends_the_campaign() -> None:
    async def scenario() -> None:
        row = Row()
        row.fault = StateUnusable("no such database")
        campaign = campaign_of(row)
        with pytest.raises(StateUnusable):
            await asyncio.wait_for(campaign.run(), 10.0)
        await campaign.resign()

    asyncio.run(scenario())


def test_a_resignation_that_nobody_hears_harms_nobody() -> None:
    async def scenario() -> None:
        row = Row()
        campaign = campaign_of(row)
        running = asyncio.create_task(campaign.run())
        await asyncio.wait_for(campaign.elected.wait(), 10.0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        row.fault = StoreAway("away")
        await campaign.resign()
        assert not campaign.valid()

    asyncio.run(scenario())


def test_every_candidacy_is_another_one_and_every_directory_another_place(tmp_path: Path) -> None:
    async def holders() -> set[str]:
        return {campaign_of(Row())._core.me.holder for _ in range(3)}

    assert len(asyncio.run(holders())) == 3
    for name in "ab":
        (tmp_path / name).mkdir()
    assert place_of(tmp_path / "a") == place_of(tmp_path / "a")
    assert place_of(tmp_path / "a") != place_of(tmp_path / "b")


def test_the_certificate_of_a_head_is_the_first_of_its_file(tmp_path: Path) -> None:
    block = "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n"
    file = tmp_path / "chain.pem"
    file.write_text("a comment\n" + block.format("own") + block.format("authority"))
    assert certificate_of(str(file)) == block.format("own")
    assert certificate_of(None) == ""
    file.write_text("nothing")
    assert certificate_of(str(file)) == ""
