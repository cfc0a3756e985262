"""The shell over a real store: what is durable before what is told, crashes at every point, ends, faults."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from corral.control.inputs import Cancel, Quiesce
from corral.model.ask import JobAsk
from corral.model.errors import IllegalTransition, NotLeader, StoreConflict, StoreFull, Unavailable
from corral.model.ids import JobId, NodeId
from corral.model.job import JobState
from corral.ports.faults import FaultPoint
from corral.ports.store import Batch, JobQuery, Recovered
from corral.storage import SqliteStore
from tests.unit.control.house import ADMIN, Died, House, live

ONE = JobAsk(name="one", argv=("true",), gpu_milli=1000)


class Gated(SqliteStore):
    """A store whose appends wait at a gate."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = threading.Event()

    def append(self, expected_seq: int, epoch: int, batch: Batch) -> int:
        self.waiting.set()
        assert self.gate.wait(30.0)
        return super().append(expected_seq, epoch, batch)


class Full(SqliteStore):
    """A store on a disk that is full from a moment on."""

    full = False

    def append(self, expected_seq: int, epoch: int, batch: Batch) -> int:
        if self.full:
            raise StoreFull("the disk is full")
        return super().append(expected_seq, epoch, batch)


def kinds(house: House) -> list[str]:
    return [type(entry.fact).__name__ for entry in house.store.entries_after(0, 1_000)]


def test_an_answer_means_durable_and_a_restart_goes_on(state_dir: Path) -> None:
    async def scenario(house: House) -> None:
        await house.start("n1")
        assert await house.submit(ONE) == ["1"]
        assert "JobSubmitted" in kinds(house)
        await house.running_task("1")
        await house.stop()
        await house.start()
        house.engine.end("1", code=3)
        ended = await house.pool.wait(ADMIN, "1", 10.0)
        assert (ended.state, ended.exit_code) == (JobState.FAILED, 3)
        assert house.engine.runs("1") == 1
        row = house.store.finished_job(JobId("1"))
        assert row is not None
        assert row.exit_code == 3
        await house.stop()

    live(scenario, state_dir)


@pytest.mark.parametrize("point", [p for p in FaultPoint if "report" not in p and "journaled" not in p])
def test_a_submit_that_meets_a_crash_is_repeated_with_its_key_and_runs_once(state_dir: Path, point: FaultPoint) -> None:
    async def scenario(house: House) -> None:
        await house.start("n1")
        await house.until(lambda: house.shell.last_seq)
        house.points.point = point
        submit = asyncio.create_task(house.submit(ONE, key="k"))
        with pytest.raises(Died):
            await house.running
        answered = (await asyncio.gather(submit, return_exceptions=True))[0]
        before = point is not FaultPoint.ACKNOWLEDGED_UNLAUNCHED
        assert isinstance(answered, Unavailable) if before else answered == ["1"]
        durable = "JobSubmitted" in kinds(house)
        assert durable is (point is not FaultPoint.BEFORE_APPEND)
        await house.crash()
        await house.start()
        assert await house.submit(ONE, key="k") == ["1"]
        await house.running_task("1")
        house.engine.end("1")
        assert (await house.pool.wait(ADMIN, "1", 10.0)).state is JobState.SUCCEEDED
        assert house.engine.runs("1") == 1
        await house.stop()

    live(scenario, state_dir)


@pytest.mark.parametrize("point", [FaultPoint.FORKED_UNJOURNALED, FaultPoint.EXITED_UNREPORTED])
def test_what_an_agent_said_to_a_dying_controller_is_said_again(state_dir: Path, point: FaultPoint) -> None:
    async def scenario(house: House) -> None:
        await house.start("n1")
        if point is FaultPoint.EXITED_UNREPORTED:
            await house.submit(ONE)
            await house.running_task("1")
        house.points.point = point
        if point is FaultPoint.EXITED_UNREPORTED:
            house.engine.end("1", code=7)
        else:
            await house.submit(ONE)
        await house.until(lambda: house.engine.heard_a_death)
        await house.crash()
        await house.start()
        if point is FaultPoint.FORKED_UNJOURNALED:
            await house.running_task("1")
            house.engine.end("1", code=7)
        ended = await house.pool.wait(ADMIN, "1", 10.0)
        assert (ended.state, ended.exit_code) == (JobState.FAILED, 7)
        assert house.engine.runs("1") == 1
        await house.stop()

    live(scenario, state_dir)


def test_ending_during_an_append_leaves_a_state_that_starts_again(state_dir: Path) -> None:
    async def scenario(house: House) -> None:
        store = house.store = Gated(state_dir / "corral.db")
        await house.start("n1")
        await house.submit(ONE)
        # What runs is known before it is durable: the next append has to be that of the submission.
        await house.until(lambda: "TaskStarted" in kinds(house))
        store.gate.clear()
        store.waiting.clear()
        submit = asyncio.create_task(house.submit(ONE, ONE.__class__(argv=("x",))))
        await house.until(store.waiting.is_set)
        # As when the daemon has no time left: the loop is cancelled while the append is under way.
        house.running.cancel()
        answered = (await asyncio.gather(submit, return_exceptions=True))[0]
        assert isinstance(answered, Unavailable)
        store.gate.set()
        await asyncio.gather(house.running, return_exceptions=True)
        await house.engine.stop()
        await house.shell.close()
        house.store.close()
        house.store = SqliteStore(state_dir / "corral.db")
        await house.start()
        assert sorted(house.shell.core.book.state.jobs) == ["1", "2", "3"]
        assert house.store.recover().snapshot is None
        await house.stop()

    live(scenario, state_dir)


def test_an_orderly_end_answers_what_it_took_in_and_keeps_a_snapshot(state_dir: Path) -> None:
    async def scenario(house: House) -> None:
        store = house.store = Gated(state_dir / "corral.db")
        await house.start("n1")
        await house.until(lambda: house.shell.last_seq)
        store.gate.clear()
        store.waiting.clear()
        submit = asyncio.create_task(house.submit(ONE))
        await house.until(store.waiting.is_set)
        house.shell.end()
        store.gate.set()
        assert await submit == ["1"]
        with pytest.raises(Unavailable):
            await house.submit(ONE)
        await house.stop()
        house.store.open()
        recovered = house.store.recover()
        assert recovered.snapshot is not None
        assert recovered.entries == ()
        await house.start()
        assert list(house.shell.core.book.state.jobs) == ["1"]
        await house.stop()

    live(scenario, state_dir)


def test_a_full_disk_refuses_and_stops_and_loses_nothing(state_dir: Path) -> None:
    async def scenario(house: House) -> None:
        store = house.store = Full(state_dir / "corral.db")
        await house.start("n1")
        await house.submit(ONE)
        store.full = True
        with pytest.raises(StoreFull):
            await house.submit(ONE)
        with pytest.raises(StoreFull):
            await house.running
        with pytest.raises(StoreFull):
            await house.submit(ONE)
        await house.engine.stop()
        await house.shell.close()
        store.close()
        store.full = False
        await house.start()
        assert list(house.shell.core.book.state.jobs) == ["1"]
        assert await house.submit(ONE) == ["2"]
        await house.stop()

    live(scenario, state_dir)


def test_who_lost_the_lead_unawares_tells_callers_to_ask_again_and_not_of_conflicts(state_dir: Path) -> None:
    async def scenario(house: House) -> None:
        await house.start("n1")
        await house.submit(ONE)
        other = SqliteStore(state_dir / "corral.db")
        other.open()
        other.acquire_leadership()
        for _ in "ab":
            with pytest.raises(NotLeader) as caught:
                await house.submit(ONE)
            assert caught.value.retryable
        with pytest.raises(StoreConflict):
            await house.running
        await house.engine.stop()
        await house.shell.close()
        house.store.close()
        other.close()

    live(scenario, state_dir)


def test_an_input_that_breaks_the_rules_is_refused_and_a_bug_answers_everybody(state_dir: Path) -> None:
    async def scenario(house: House) -> None:
        await house.start("n1")
        core = house.shell.core
        handle = core.handle

        def broken(now: float, item: Any) -> Any:
            if isinstance(item, Quiesce):
                raise IllegalTransition("does not fit")
            if isinstance(item, Cancel):
                raise KeyError("a bug")
            return handle(now, item)

        core.handle = broken  # type: ignore[method-assign]
        with pytest.raises(IllegalTransition):
            await house.shell.ask(Quiesce(stop_tasks=False))
        first = asyncio.create_task(house.submit(ONE))
        second = asyncio.create_task(house.shell.ask(Cancel(JobId("1"), "me")))
        answers = await asyncio.gather(first, second, return_exceptions=True)
        assert [type(answer) for answer in answers] == [Unavailable, Unavailable]
        with pytest.raises(KeyError):
            await house.running
        with pytest.raises(Unavailable):
            await house.submit(ONE)
        # Memory holds a job that the journal does not: no snapshot of it may be kept.
        await house.engine.stop()
        await house.shell.close()
        assert house.store.recover().snapshot is None
        house.store.close()
        await house.start()
        assert house.shell.core.book.state.jobs == {}
        await house.stop()

    live(scenario, state_dir)


def test_who_may_not_lead_any_more_fences_nobody(state_dir: Path) -> None:
    async def scenario(house: House) -> None:
        await house.start("n1", "n2", gpus=1)
        await house.submit(ONE)
        await house.running_task("1")
        home = house.job("1").gangs[0].placements[0].node
        other = "n2" if home == "n1" else "n1"
        house.engine.fences[home] = True
        # The process was stopped for a while: another leads by now, with which the node may be well.
        house.shell.valid = lambda: False
        house.engine.cut(home)
        contact = house.shell.core.book.observed.contact(home)

        async def tried() -> bool:
            house.hands.at += 4.0
            house.engine.beat(other)
            return contact.fence_on > 0

        await house.until(tried)
        assert house.engine.asked == []
        house.shell.valid = lambda: True

        async def moved() -> bool:
            await tried()
            return house.job("1").gangs[0].incarnation == 2

        await house.until(moved)
        assert house.engine.asked == [home]
        await house.stop()

    live(scenario, state_dir)


def test_a_fence_that_breaks_is_asked_again(state_dir: Path) -> None:
    async def scenario(house: House) -> None:
        await house.start("n1", "n2", gpus=1)
        await house.submit(ONE)
        await house.running_task("1")
        home = house.job("1").gangs[0].placements[0].node
        house.engine.fences[home] = None
        house.engine.cut(home)
        await house.until(lambda: not house.shell.core.book.observed.contact(home).connected)
        other = "n2" if home == "n1" else "n1"

        async def time_passes() -> bool:
            house.hands.at += 4.0
            house.engine.beat(other)
            return len(house.engine.asked) >= 2

        await house.until(time_passes)
        assert house.job("1").gangs[0].placements[0].node == home
        house.engine.fences[home] = True

        async def moved() -> bool:
            house.hands.at += 4.0
            house.engine.beat(other)
            return house.job("1").gangs[0].incarnation == 2

        await house.until(moved)
        assert house.job("1").gangs[0].placements[0].node == other
        await house.stop()

    live(scenario, state_dir)


def test_snapshots_come_in_time_and_pruning_does_not_hold_appends_up(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corral.control.shell.SNAPSHOT_ENTRIES", 10)
    held, go_on = threading.Event(), threading.Event()

    class Slow(SqliteStore):
        def prune(self, **wanted: Any) -> int:
            held.set()
            assert go_on.wait(30.0)
            return super().prune(**wanted)

    async def scenario(house: House) -> None:
        house.store = Slow(state_dir / "corral.db")
        await house.start("n1")
        for _ in range(6):
            (number,) = await house.submit(ONE)
            await house.running_task(number)
            house.engine.end(number)
            await house.pool.wait(ADMIN, number, 10.0)
        recovered = house.store.recover()
        assert recovered.snapshot is not None
        assert len(recovered.entries) < 20
        (kept,) = await house.submit(ONE)
        await house.running_task(kept)
        house.hands.at += 100_000.0
        pruning = asyncio.create_task(house.shell.prune(1_000.0))
        await house.until(held.is_set)
        assert await house.submit(ONE) == ["8"]
        go_on.set()
        assert await pruning > 10
        assert house.store.entries_of_job(JobId("1")) == []
        assert house.store.entries_of_job(JobId("7")) != []
        assert [row.id for row in house.store.finished_jobs(JobQuery())] == ["6", "5", "4", "3", "2", "1"]
        await house.stop()
        await house.start()
        assert sorted(house.shell.core.book.state.jobs) == ["7", "8"]
        await house.stop()

    live(scenario, state_dir)


def test_an_empty_journal_is_no_snapshot(state_dir: Path) -> None:
    async def scenario(house: House) -> None:
        await house.start()
        await house.stop()
        house.store.open()
        assert house.store.recover() == Recovered(0, None, ())
        assert house.engine.connected() == frozenset[NodeId]()

    live(scenario, state_dir)
