"""The shell while its database is away, while its own lease is not valid, and when it is deposed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from corral.control import shell as shell_module
from corral.model.ask import JobAsk
from corral.model.errors import NotLeader, StoreAway
from corral.model.ids import NodeId
from corral.model.messages import AcknowledgeHeartbeat, Heartbeat
from corral.ports.pool import Submission
from corral.ports.store import Batch
from corral.storage import SqliteStore
from tests.unit.control.house import ADMIN, House, live

ONE = JobAsk(name="one", argv=("true",), gpu_milli=1000)


class Service(SqliteStore):
    """A store as a service: it may be away, and may have done what it did not answer."""

    away = False
    unanswered = False

    def append(self, expected_seq: int, epoch: int, batch: Batch) -> int:
        if self.away:
            raise StoreAway("the database does not answer")
        last = super().append(expected_seq, epoch, batch)
        if self.unanswered:
            self.unanswered = False
            raise StoreAway("the connection broke at COMMIT")
        return last

    def save_snapshot(self, seq: int, data: bytes) -> None:
        if self.away:
            raise StoreAway("the database does not answer")
        super().save_snapshot(seq, data)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell_module, "AWAY_ANSWER_S", 0.2)
    monkeypatch.setattr(shell_module, "AWAY_RETRY_S", 0.02)


def acknowledged(house: House) -> list[float]:
    return [said.sent_boottime_s for said in house.engine.commands if isinstance(said, AcknowledgeHeartbeat)]


async def begun(house: House) -> Service:
    store = house.store = Service(house.state_dir / "corral.db")
    await house.start("n1")
    assert await house.submit(ONE) == ["1"]
    await house.running_task("1")
    return store


async def gone(house: House, store: Service) -> asyncio.Task[list[str]]:
    """Let the database go away while a submit is on its way; return that submit."""
    store.away = True
    waiting = asyncio.create_task(house.submit(ONE, key="k"))
    await house.until(lambda: house.shell.away_s, "the shell to notice")
    return waiting


def test_a_database_that_is_away_for_a_moment_only_delays_the_answer(state_dir: Path) -> None:
    async def scenario(house: House) -> None:
        store = await begun(house)
        waiting = await gone(house, store)
        store.away = False
        assert await waiting == ["2"]
        assert house.shell.away_s == 0.0
        assert await house.submit(ONE) == ["3"]
        await house.stop()

    live(scenario, state_dir)


def test_whoever_waits_too_long_is_refused_and_a_repetition_finds_what_was_done(state_dir: Path) -> None:
    async def scenario(house: House) -> None:
        store = await begun(house)
        waiting = await gone(house, store)
        with pytest.raises(StoreAway, match="it may be carried out"):
            await waiting
        with pytest.raises(StoreAway, match="nothing was changed"):
            await house.submit(ONE, key="later")
        # What is known is still told.
        assert (await house.pool.job(ADMIN, "1")).id == "1"
        assert house.pool.status().nodes_up == 1
        store.away = False
        await house.until(lambda: not house.shell.away_s, "the database to be back")
        assert await house.submit(ONE, key="k") == ["2"]
        assert await house.submit(ONE, key="later") == ["3"]
        await house.stop()

    live(scenario, state_dir)


def test_a_batch_whose_commit_nobody_answered_is_written_once(state_dir: Path) -> None:
    async def scenario(house: House) -> None:
        store = await begun(house)
        store.unanswered = True
        assert await house.submit(ONE) == ["2"]
        await house.running_task("2")
        names = [type(entry.fact).__name__ for entry in store.entries_after(0, 1_000)]
        assert names.count("JobSubmitted") == 2
        assert names.count("GangPlaced") == 2
        await house.stop()

    live(scenario, state_dir)


def test_of_the_heartbeats_of_an_outage_the_last_one_of_each_node_is_kept_in_its_place(state_dir: Path) -> None:
    async def scenario(house: House) -> None:
        store = await begun(house)
        house.engine.add(house.engine.machines[NodeId("n1")].spec.__class__(NodeId("n2"), "n2", "n2", 1000, 1000))
        await house.until(lambda: house.pool.status().nodes_up == 2)
        waiting = await gone(house, store)
        for _ in range(50):
            house.hands.at += 0.01
            house.engine.beat("n1")
            house.engine.beat("n2")
        kept = [letter.item for letter in house.shell._inbox._letters.values() if isinstance(letter.item, Heartbeat)]
        assert sorted(beat.node for beat in kept) == ["n1", "n2"]
        assert {beat.sent_boottime_s for beat in kept} == {house.hands.at}
        before = len(acknowledged(house))
        store.away = False
        await house.until(lambda: len(acknowledged(house)) == before + 2, "both to be acknowledged")
        await asyncio.wait([waiting])
        await house.stop()

    live(scenario, state_dir)


def test_heartbeats_are_acknowledged_only_while_the_lease_of_the_leader_is_valid(state_dir: Path) -> None:
    async def scenario(house: House) -> None:
        await begun(house)
        house.engine.beat("n1")
        await house.until(lambda: acknowledged(house), "an acknowledgement")
        house.shell.valid = lambda: False
        before = len(acknowledged(house))
        house.engine.beat("n1")
        # Other commands go on: each carries its epoch, and agents know the newest one.
        assert await house.submit(ONE) == ["2"]
        await house.running_task("2")
        assert len(acknowledged(house)) == before
        house.shell.valid = lambda: True
        house.engine.beat("n1")
        await house.until(lambda: len(acknowledged(house)) > before, "an acknowledgement")
        await house.stop()

    live(scenario, state_dir)


@pytest.mark.parametrize("away", [False, True], ids=["idle", "while the database is away"])
def test_who_is_deposed_ends_at_once_and_sends_callers_to_the_leader(state_dir: Path, *, away: bool) -> None:
    async def scenario(house: House) -> None:
        store = await begun(house)
        waiting = await gone(house, store) if away else None
        house.shell.depose(NotLeader.at("https://leader"))
        with pytest.raises(NotLeader):
            await house.running
        if waiting is not None:
            # It may have been written, so nobody repeats it blindly where the leader is.
            with pytest.raises(StoreAway, match="it may be carried out") as doubted:
                await waiting
            assert doubted.value.retryable
        with pytest.raises(NotLeader) as caught:
            await house.pool.submit(ADMIN, Submission((ONE,)))
        assert caught.value.leader == "https://leader"
        await house.engine.stop()
        await house.shell.close()

    live(scenario, state_dir)


def test_an_end_during_an_outage_ends_and_loses_nothing_that_was_acknowledged(state_dir: Path) -> None:
    async def scenario(house: House) -> None:
        store = await begun(house)
        waiting = await gone(house, store)
        house.shell.end()
        with pytest.raises(StoreAway):
            await house.running
        with pytest.raises(StoreAway):
            await waiting
        await house.engine.stop()
        await house.shell.close()
        store.close()
        store.away = False
        await house.start()
        assert [job.id for job in house.shell.core.book.state.jobs.values()] == ["1"]
        await house.stop()

    live(scenario, state_dir)


def test_a_snapshot_that_fails_is_taken_later(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell_module, "SNAPSHOT_ENTRIES", 4)

    async def scenario(house: House) -> None:
        class Unsaved(Service):
            saves = False

            def save_snapshot(self, seq: int, data: bytes) -> None:
                if not self.saves:
                    raise StoreAway("the database does not answer")
                super().save_snapshot(seq, data)

        store = house.store = Unsaved(house.state_dir / "corral.db")
        await house.start("n1")
        for _ in range(4):
            await house.submit(ONE)
        assert store.recover().snapshot is None
        store.saves = True
        await house.submit(ONE)
        await house.until(lambda: store.recover().snapshot is not None, "a snapshot")
        await house.stop()

    live(scenario, state_dir)
