"""The pool as the API sees it, over a real store: who may what, names and numbers, pages, waits."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from corral.control.explaining import veiled_plan
from corral.control.pool import ControllerPool
from corral.model.ask import AfterAsk, JobAsk
from corral.model.errors import (
    AmbiguousName,
    Conflict,
    Forbidden,
    IdempotencyMismatch,
    NotFound,
    TooManyJobs,
    UnknownDependency,
)
from corral.model.ids import JobId, NodeId, TenantId
from corral.model.job import DependencyKind, JobState
from corral.model.plan import NewNodes, PlanAsk
from corral.model.tenant import Tenant
from corral.ports.store import JobQuery
from tests.unit.control.house import ADMIN, START, House, live

ONE = JobAsk(name="one", argv=("true",), gpu_milli=1000)


def named(name: str, *after: str, kind: DependencyKind = DependencyKind.SUCCEEDED) -> JobAsk:
    return JobAsk(name=name, argv=("true",), gpu_milli=1000, after=tuple(AfterAsk(ref, kind) for ref in after))


async def finish(house: House, job: str, code: int = 0) -> None:
    await house.running_task(job)
    house.engine.end(job, code=code)
    await house.pool.wait(ADMIN, job, 10.0)


# ---- whose job it is -----------------------------------------------------------------------------------------------


def test_a_tenant_reaches_its_own_jobs_only(state_dir: Path) -> None:
    async def scenario(house: House) -> None:
        await house.start("n1")
        ann, bob = await house.tenant("ann"), await house.tenant("bob")
        (mine,) = await house.submit(ONE, who=ann)
        await finish(house, mine)
        (live_one,) = await house.submit(ONE, who=ann)
        pool = house.pool
        for ref in (mine, live_one, "one"):
            assert (await pool.job(ann, ref)).spec.tenant == "ann"
            assert (await pool.job(ADMIN, ref)).spec.tenant == "ann"
            for call in (pool.job, pool.cancel, pool.why, pool.receipt, pool.history):
                with pytest.raises(NotFound):
                    await call(bob, ref)
            with pytest.raises(NotFound):
                await pool.wait(bob, ref, 1.0)
        with pytest.raises(Forbidden):
            await house.submit(JobAsk(argv=("x",), tenant="ann"), who=bob)
        with pytest.raises(Forbidden):
            await house.submit(JobAsk(argv=("x",), tenant="ann"), JobAsk(argv=("x",), tenant="bob"))
        with pytest.raises(Forbidden):
            await pool.usage(bob, START, START + 10.0, TenantId("ann"))
        assert [job.id for job in (await pool.jobs(bob, JobQuery(), live=True, finished=True)).jobs] == []
        page = await pool.jobs(ann, JobQuery(tenant=TenantId("bob")), live=True, finished=True)
        assert [job.id for job in page.jobs] == [live_one, mine]
        assert [report.tenant.id for report in await pool.tenants(bob)] == ["bob"]
        await house.stop()

    live(scenario, state_dir)


# ---- names, numbers, dependencies ----------------------------------------------------------------------------------


def test_a_name_is_the_newest_live_job_else_the_newest_finished_one(state_dir: Path) -> None:
    async def scenario(house: House) -> None:
        await house.start("n1", gpus=8)
        ann = await house.tenant("ann")
        for expected in ("1", "2"):
            assert await house.submit(ONE) == [expected]
            assert (await house.pool.job(ADMIN, "one")).id == expected
        await finish(house, "2")
        assert (await house.pool.job(ADMIN, "one")).id == "1"
        await finish(house, "1")
        assert (await house.pool.job(ADMIN, "one")).id == "2"
        await house.submit(ONE, ONE.__class__(name="two", argv=("x",)), who=ann)
        await house.submit(ONE)
        with pytest.raises(AmbiguousName, match=r"3 \(ann\), 5 \(default\)"):
            await house.pool.job(ADMIN, "one")
        assert (await house.pool.job(ann, "one")).id == "3"
        assert (await house.pool.job(ADMIN, "3.0")).id == "3"
        await house.submit(JobAsk(name="v1.5", argv=("x",)), JobAsk(name="v1", argv=("x",), indices=(0, 1)))
        assert (await house.pool.why(ADMIN, "v1.1")).gang == 1
        assert (await house.pool.why(ADMIN, "v1.5")).job == "6"
        with pytest.raises(NotFound, match=r"job 7 has no element 'v1\.2'"):
            await house.pool.job(ADMIN, "v1.2")
        await house.stop()

    live(scenario, state_dir)


def test_after_means_jobs_of_the_tenant_whoever_submits(state_dir: Path) -> None:
    async def scenario(house: House) -> None:
        await house.start("n1", gpus=8)
        ann, bob = await house.tenant("ann"), await house.tenant("bob")
        await house.submit(named("train"), who=ann)
        await house.submit(named("train"), who=bob)
        # Two tenants have a job of this name: no matter to an admin who submits for one of them.
        ask = JobAsk(name="next", argv=("x",), tenant="ann", after=(AfterAsk("train"),))
        assert await house.submit(ask) == ["3"]
        assert house.job("3").waiting_for == (JobId("1"),)
        await finish(house, "2")
        for ref in ("2", "train.0", "1.0", "nobody"):
            with pytest.raises(UnknownDependency):
                await house.submit(JobAsk(argv=("x",), tenant="ann", after=(AfterAsk(ref),)))
        for number, ref in (("4", "2"), ("5", "train")):
            assert await house.submit(named("late", ref), who=bob) == [number]
            await finish(house, number)
        await house.stop()

    live(scenario, state_dir)


def test_a_job_alone_never_waits_for_itself_but_for_the_last_of_its_name(state_dir: Path) -> None:
    async def scenario(house: House) -> None:
        await house.start("n1")
        with pytest.raises(UnknownDependency):
            await house.submit(named("nightly", "nightly"))
        await house.submit(named("nightly"))
        assert await house.submit(named("nightly", "nightly")) == ["2"]
        assert house.job("2").waiting_for == (JobId("1"),)
        await finish(house, "1")
        await finish(house, "2")
        assert await house.submit(named("nightly", "nightly")) == ["3"]
        await finish(house, "3", code=1)
        with pytest.raises(UnknownDependency, match="3 ended as failed"):
            await house.submit(named("nightly", "nightly"))
        assert await house.submit(named("nightly", "nightly", kind=DependencyKind.ENDED)) == ["4"]
        await house.stop()

    live(scenario, state_dir)


def test_a_dependency_that_ends_while_the_submission_is_on_its_way_counts_as_ended(state_dir: Path) -> None:
    async def scenario(house: House) -> None:
        await house.start("n1")
        await house.submit(named("first"))
        await house.running_task("1")
        lookup, looked = ControllerPool._ended_references, 0

        async def late(pool: ControllerPool, asks: tuple[JobAsk, ...]) -> object:
            nonlocal looked
            found = await lookup(pool, asks)
            looked += 1
            if looked == 1:
                await finish(house, "1")
            return found

        house.pool._ended_references = late.__get__(house.pool)  # type: ignore[method-assign]
        assert await house.submit(named("second", "first")) == ["2"]
        assert looked == 2
        await finish(house, "2")
        await house.stop()

    live(scenario, state_dir)


def test_one_key_makes_a_submission_once_over_restarts(state_dir: Path) -> None:
    async def scenario(house: House) -> None:
        await house.start("n1")
        ann = await house.tenant("ann")
        first = JobAsk(name="a", argv=("x",), gpu_milli=1000, envs={"A": "1", "B": "2"})
        same = JobAsk(name="a", argv=("x",), gpu_milli=1000, envs={"B": "2", "A": "1"})
        assert await house.submit(first, ONE, key="k") == ["1", "2"]
        assert await house.submit(same, ONE, key="k") == ["1", "2"]
        assert await house.submit(first, ONE, key="k", who=ann) == ["3", "4"]
        with pytest.raises(IdempotencyMismatch):
            await house.submit(first, key="k")
        await finish(house, "1")
        await house.stop()
        await house.start()
        assert await house.submit(first, ONE, key="k") == ["1", "2"]
        await finish(house, "2")
        assert await house.submit(first, ONE, key="k") == ["1", "2"]
        await house.stop()

    live(scenario, state_dir)


def test_the_jobs_of_one_submission_count_against_the_tenants_number(state_dir: Path) -> None:
    async def scenario(house: House) -> None:
        await house.start("n1")
        ann = await house.tenant("ann")
        tenant = Tenant(TenantId("ann"), jobs_max=3)
        await house.pool.set_tenant(ADMIN, tenant, create=False)
        await house.submit(named("a"), who=ann)
        with pytest.raises(TooManyJobs):
            await house.submit(named("b"), named("c"), named("d"), who=ann)
        assert await house.submit(named("b"), named("c"), who=ann) == ["2", "3"]
        with pytest.raises(TooManyJobs):
            await house.submit(named("d"), who=ann)
        await house.stop()

    live(scenario, state_dir)


# ---- lists and waits -----------------------------------------------------------------------------------------------


def test_pages_show_every_job_once_live_or_finished(state_dir: Path) -> None:
    async def scenario(house: House) -> None:
        await house.start("n1", gpus=8)
        await house.submit(*(JobAsk(argv=("x",), gpu_milli=1000) for _ in range(8)))
        for number in ("2", "3", "6"):
            await finish(house, number)

        async def pages(limit: int, *, live_ones: bool = True, finished: bool = True) -> list[list[str]]:
            found: list[list[str]] = []
            before: int | None = None
            while True:
                query = JobQuery(before=before, limit=limit)
                page = await house.pool.jobs(ADMIN, query, live=live_ones, finished=finished)
                found.append([job.id for job in page.jobs])
                assert page.total_live == 5
                if (before := page.next_before) is None:
                    return found

        assert await pages(3) == [["8", "7", "6"], ["5", "4", "3"], ["2", "1"]]
        assert await pages(4) == [["8", "7", "6", "5"], ["4", "3", "2", "1"]]
        assert await pages(2, finished=False) == [["8", "7"], ["5", "4"], ["1"]]
        assert await pages(2, live_ones=False) == [["6", "3"], ["2"]]
        only = JobQuery(state="succeeded", limit=2)
        assert [j.id for j in (await house.pool.jobs(ADMIN, only, live=True, finished=True)).jobs] == ["6", "3"]
        await house.stop()

    live(scenario, state_dir)


def test_waiting_returns_the_end_or_after_its_time(state_dir: Path) -> None:
    async def scenario(house: House) -> None:
        await house.start("n1")
        await house.submit(ONE)
        assert (await house.pool.wait(ADMIN, "1", 0.0)).state is JobState.RUNNING
        await house.running_task("1")
        waiting = asyncio.create_task(house.pool.wait(ADMIN, "one", 30.0))
        await house.until(lambda: house.shell.feed._ended)
        house.engine.end("1", code=4)
        assert (await waiting).exit_code == 4
        assert (await house.pool.wait(ADMIN, "1", 30.0)).exit_code == 4
        assert house.shell.feed._ended == {}
        with pytest.raises(Conflict, match="already ended"):
            await house.pool.cancel(ADMIN, "1")
        await house.stop()

    live(scenario, state_dir)


def test_cancelling(state_dir: Path) -> None:
    async def scenario(house: House) -> None:
        await house.start("n1", gpus=2)
        await house.submit(JobAsk(argv=("x",), gpu_milli=1000, indices=(0, 1)))
        with pytest.raises(Conflict, match="single elements"):
            await house.pool.cancel(ADMIN, "1.1")
        cancelled = await house.pool.cancel(ADMIN, "1")
        assert cancelled.cancelled_by == "default/root"
        assert (await house.pool.wait(ADMIN, "1", 10.0)).state is JobState.CANCELLED
        await house.stop()

    live(scenario, state_dir)


# ---- what if -------------------------------------------------------------------------------------------------------


def test_a_user_may_try_jobs_and_sees_no_foreign_ones(state_dir: Path) -> None:
    async def scenario(house: House) -> None:
        await house.start("n1")
        ann, bob = await house.tenant("ann"), await house.tenant("bob")
        every = JobAsk(name="all", argv=("true",), gpu_milli=4000, max_duration_s=600.0)
        (holds,) = await house.submit(every, who=bob)
        (waits,) = await house.submit(every, who=ann)
        report = await house.pool.plan(ann, PlanAsk(submit=(every,)))
        assert [course.tenant for course in report.submitted] == ["ann"]
        with pytest.raises(Forbidden):
            await house.pool.plan(ann, PlanAsk(drain=(NodeId("n1"),)))
        with pytest.raises(Forbidden):
            await house.pool.plan(bob, PlanAsk(submit=(replace(every, tenant="ann"),)))
        drained = await house.pool.plan(ADMIN, PlanAsk(drain=(NodeId("n1"),), add=(NewNodes(2),)))
        assert {shift.before.key.job for shift in drained.shifts} == {holds, waits}
        veiled = veiled_plan(drained, ann.tenant)
        assert sorted((s.after.key.job, s.after.name) for s in veiled.shifts) == [("-", ""), (waits, "all")]
        assert len(house.pool._shell.core.book.state.nodes) == 1

    live(scenario, state_dir)
