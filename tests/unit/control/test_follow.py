"""Streams of facts and logs over a real store: complete, in order, over restarts, for one's own eyes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeVar

import pytest

from corral.control.inputs import Cancel
from corral.model.ask import JobAsk
from corral.model.errors import NotFound
from corral.model.events import Fact, JobEnded, JobSubmitted
from corral.model.ids import JobId, TaskKey
from corral.ports.pool import Change, Principal
from tests.unit.control.house import ADMIN, House, live, user

T = TypeVar("T")
ONE = JobAsk(name="one", argv=("true",), gpu_milli=1000)
TASK = TaskKey(JobId("1"), 0, 0)


async def take(stream: AsyncIterator[Change], count: int) -> list[Fact]:
    return [(await asyncio.wait_for(anext(stream), 10.0)).entry.fact for _ in range(count)]


async def rest(stream: AsyncIterator[T]) -> list[T]:
    return [item async for item in stream]


def test_a_tenant_sees_the_whole_life_of_its_jobs_and_nothing_of_others(state_dir: Path) -> None:
    async def scenario(house: House) -> None:
        await house.start("n1")
        ann, bob = await house.tenant("ann"), await house.tenant("bob")
        past = house.shell.last_seq
        stream = house.pool.changes(ann, None, past)
        follower = asyncio.create_task(take(stream, 6))
        await house.submit(ONE, who=bob)
        await house.submit(ONE, who=ann)
        await house.running_task("2")
        await house.running_task("1")
        house.engine.end("1")
        house.engine.end("2")
        facts = await follower
        words = ["JobSubmitted", "GangPlaced", "TaskStarted", "TaskEnded", "GangEnded", "JobEnded"]
        assert [type(fact).__name__ for fact in facts] == words
        assert {getattr(fact, "job", None) for fact in facts} == {"2"}
        # The same from the journal, page by page, for who comes later.
        again = house.pool.changes(ann, None, past)
        assert await take(again, 6) == facts
        assert await take(house.pool.changes(bob, "1", 0), 6) != facts
        with pytest.raises(NotFound):
            await take(house.pool.changes(bob, "2", None), 1)
        everything = await take(house.pool.changes(ADMIN, None, 0), house.shell.last_seq)
        assert {type(fact).__name__ for fact in everything} >= {"NodeJoined", "TenantSet", *words}
        house.shell.feed.close()
        await house.stop()

    live(scenario, state_dir)


def test_a_stream_resumes_after_any_fact_and_ignores_a_place_of_another_pool(state_dir: Path) -> None:
    async def scenario(house: House) -> None:
        await house.start("n1")
        await house.submit(ONE)
        await house.running_task("1")
        everything = await take(house.pool.changes(ADMIN, "1", 0), 3)
        seqs = [entry.seq for entry in house.store.entries_of_job(JobId("1"))]
        assert await take(house.pool.changes(ADMIN, "1", seqs[0]), 2) == everything[1:]
        now = house.pool.changes(ADMIN, "1", None)
        beyond = house.pool.changes(ADMIN, None, 1_000_000)
        both = asyncio.gather(take(now, 1), take(beyond, 1))
        await house.until(lambda: len(house.shell.feed._subscribers) == 2)
        await house.shell.ask(Cancel(JobId("1"), "me"))
        assert [type(fact).__name__ for facts in await both for fact in facts] == ["JobCancelRequested"] * 2
        await house.stop()

    live(scenario, state_dir)


def test_a_stream_ends_with_the_pool(state_dir: Path) -> None:
    async def scenario(house: House) -> None:
        await house.start("n1")
        await house.submit(ONE)
        following = asyncio.create_task(rest(house.pool.changes(ADMIN, None, 0)))
        await house.until(lambda: house.shell.feed._subscribers)
        house.shell.feed.close()
        assert isinstance((await following)[1].entry.fact, JobSubmitted)
        await house.stop()

    live(scenario, state_dir)


async def log(
    house: House, ref: str, *, follow: bool, offset: int = 0, rank: int | None = None, incarnation: int | None = None
) -> bytes:
    who: Principal = ADMIN
    chunks = house.pool.follow_log(who, ref, rank=rank, offset=offset, follow=follow, incarnation=incarnation)
    return b"".join([chunk.data async for chunk in chunks])


def test_a_log_is_followed_over_restarts_to_the_end(state_dir: Path) -> None:
    async def scenario(house: House) -> None:
        await house.start("n1")
        await house.submit(JobAsk(argv=("x",), gpu_milli=1000, max_restarts=2))
        await house.running_task("1")
        house.engine.write("n1", TASK, 1, b"first ", complete=False)
        following = asyncio.create_task(log(house, "1", follow=True, offset=3))
        await house.until(lambda: house.shell.feed._subscribers)
        house.engine.end("1", code=1)
        await house.until(lambda: house.engine.runs("1") == 2)
        await house.running_task("1")
        # Two lives pass while the first log is still being read.
        house.engine.write("n1", TASK, 2, b"second ", complete=True)
        house.engine.end("1", code=1)
        await house.until(lambda: house.engine.runs("1") == 3)
        house.engine.write("n1", TASK, 3, b"third", complete=True)
        await house.running_task("1")
        house.engine.end("1")
        house.engine.write("n1", TASK, 1, b"more ", complete=True)
        assert await following == b"st more second third"
        assert not house.shell.feed._subscribers
        assert await log(house, "1", follow=False) == b"third"
        assert await log(house, "1", follow=True, offset=2) == b"ird"
        await house.stop()

    live(scenario, state_dir)


def test_a_log_is_resumed_in_the_incarnation_that_was_read(state_dir: Path) -> None:
    """The reader lost its connection in the first life; two more have passed when it is back."""

    async def scenario(house: House) -> None:
        await house.start("n1")
        await house.submit(JobAsk(argv=("x",), gpu_milli=1000, max_restarts=2))

        async def lives(times: int) -> None:
            await house.until(lambda: house.engine.runs("1") == times)
            await house.running_task("1")

        for life, data in ((1, b"first "), (2, b"second "), (3, b"third")):
            await lives(life)
            house.engine.write("n1", TASK, life, data, complete=True)
            if life < 3:
                house.engine.end("1", code=1)
        assert await log(house, "1", follow=False, offset=3, incarnation=1) == b"st "
        assert await log(house, "1", follow=False, offset=6, incarnation=1) == b""
        following = [asyncio.create_task(log(house, "1", follow=True, offset=3, incarnation=n)) for n in (1, 3, 9)]
        await house.until(lambda: len(house.shell.feed._subscribers) == 3)
        house.engine.end("1")
        # An incarnation that never was has nothing, and what comes after it is yet to come.
        assert await asyncio.gather(*following) == [b"st second third", b"rd", b""]
        assert await log(house, "1", follow=True, offset=2, incarnation=2) == b"cond third"
        chunks = house.pool.follow_log(ADMIN, "1", rank=None, offset=0, follow=True, incarnation=2)
        assert [(chunk.incarnation, chunk.offset) async for chunk in chunks] == [(2, 0), (3, 0)]
        await house.stop()

    live(scenario, state_dir)


def test_an_incarnation_that_never_wrote_holds_nobody_up(state_dir: Path) -> None:
    async def scenario(house: House) -> None:
        await house.start("n1")
        await house.submit(JobAsk(argv=("x",), gpu_milli=1000, max_restarts=1))
        await house.running_task("1")
        following = asyncio.create_task(log(house, "1", follow=True))
        await house.until(lambda: house.shell.feed._subscribers)
        house.engine.end("1", code=1)
        await house.until(lambda: house.engine.runs("1") == 2)
        house.engine.write("n1", TASK, 2, b"second", complete=True)
        await house.running_task("1")
        house.engine.end("1")
        assert await following == b"second"
        await house.stop()

    live(scenario, state_dir)


def test_the_log_of_what_waits_again_is_that_of_its_last_life(state_dir: Path) -> None:
    async def scenario(house: House) -> None:
        await house.start("n1", gpus=1)
        await house.submit(JobAsk(argv=("x",), gpu_milli=1000, max_restarts=1))
        await house.running_task("1")
        house.engine.write("n1", TASK, 1, b"once", complete=True)
        assert await log(house, "1", follow=False) == b"once"
        await house.submit(JobAsk(argv=("x",), gpu_milli=1000, indices=(0, 1), priority=9))
        house.engine.end("1", code=1)
        await house.running_task("2")
        assert house.job("1").gangs[0].state == "pending"
        assert await log(house, "1", follow=False) == b"once"
        # An element that was never placed has none; cancelling ends the wait for it.
        assert await log(house, "2.1", follow=False) == b""
        following = asyncio.create_task(log(house, "2.1", follow=True))
        await house.until(lambda: house.shell.feed._subscribers)
        await house.pool.cancel(ADMIN, "2")
        assert await following == b""
        await house.stop()

    live(scenario, state_dir)


def test_ranks_and_elements_that_do_not_exist_are_refused(state_dir: Path) -> None:
    async def scenario(house: House) -> None:
        await house.start("n1")
        await house.tenant("ann")
        await house.submit(ONE)
        with pytest.raises(NotFound, match="rank 1"):
            await log(house, "1", follow=False, rank=1)
        for ref in ("1.7", "1.x", "1." + "9" * 5_000, "77", "nobody", "9" * 5_000):
            with pytest.raises(NotFound):
                await log(house, ref, follow=False)
        with pytest.raises(NotFound):
            await rest(house.pool.follow_log(user("ann"), "1", rank=None, offset=0, follow=False))
        assert not any(isinstance(e.fact, JobEnded) for e in house.store.entries_after(0, 100))
        await house.stop()

    live(scenario, state_dir)
