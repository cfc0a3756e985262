"""The pool as the API sees it, over a real store: who may what, names and numbers, pages, waits, admin acts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from corral.control.accounts import HOUR_S
from corral.control.inputs import Administer
from corral.control.pool import ControllerPool
from corral.model.ask import AfterAsk, JobAsk
from corral.model.errors import (
    AmbiguousName,
    Conflict,
    DuplicateName,
    Forbidden,
    IdempotencyMismatch,
    NotFound,
    TooManyJobs,
    Unauthenticated,
    UnknownDependency,
)
from corral.model.events import TokenIssued, TokenRevoked
from corral.model.ids import DEFAULT_TENANT, JobId, NodeId, QueueName, TenantId
from corral.model.job import DependencyKind, JobState
from corral.model.tenant import Queue, Quota, Role, Tenant
from corral.ports.pool import Principal, Submission
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


def test_only_admins_change_the_pool(state_dir: Path) -> None:
    async def scenario(house: House) -> None:
        await house.start("n1")
        ann = await house.tenant("ann")
        pool = house.pool
        acts = (
            pool.cordon(ann, NodeId("n1"), on=True, reason=""),
            pool.remove_node(ann, NodeId("n1")),
            pool.set_queue(ann, Queue(QueueName("q")), create=True),
            pool.remove_queue(ann, QueueName("default")),
            pool.set_tenant(ann, Tenant(TenantId("b")), create=True),
            pool.remove_tenant(ann, TenantId("default")),
            pool.issue_token(ann, TenantId("ann"), Role.ADMIN, ""),
            pool.revoke_token(ann, ann.token_id),
            pool.prepare_stop(ann, stop_tasks=True),
        )
        before = house.shell.last_seq
        for act in acts:
            with pytest.raises(Forbidden):
                await act
        assert house.shell.last_seq == before
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


# ---- tokens, tenants, queues, usage, stopping ----------------------------------------------------------------------


def test_a_token_is_known_by_its_digest_and_ends_when_revoked_or_with_its_tenant(state_dir: Path) -> None:
    async def scenario(house: House) -> None:
        await house.start("n1")
        await house.tenant("ann")
        token, secret = await house.pool.issue_token(ADMIN, TenantId("ann"), Role.USER, "laptop")
        other, second = await house.pool.issue_token(ADMIN, TenantId("ann"), Role.ADMIN, "desk")
        assert secret not in repr(house.store.entries_after(0, 100))
        ann = house.pool.authenticate(secret)
        assert ann == Principal(TenantId("ann"), Role.USER, token.id)
        with pytest.raises(Unauthenticated):
            house.pool.authenticate(secret + "x")
        assert [t.digest for t in await house.pool.tokens(ann)] == ["", ""]
        same_id = TokenIssued(at=0.0, token=token, by="t")
        assert await house.shell.ask(Administer(same_id)) is not None
        with pytest.raises(Conflict, match="itself"):
            await house.pool.revoke_token(house.pool.authenticate(second), other.id)
        await house.pool.revoke_token(ADMIN, token.id)
        with pytest.raises(Unauthenticated):
            house.pool.authenticate(secret)
        with pytest.raises(NotFound):
            await house.pool.revoke_token(ADMIN, token.id)
        await house.pool.remove_tenant(ADMIN, TenantId("ann"))
        with pytest.raises(Unauthenticated):
            house.pool.authenticate(second)
        with pytest.raises(NotFound):
            await house.pool.issue_token(ADMIN, TenantId("ann"), Role.USER, "")
        facts = [entry.fact for entry in house.store.entries_after(0, 100)]
        assert [fact.at for fact in facts if isinstance(fact, TokenIssued | TokenRevoked)] == [START] * 3
        await house.stop()

    live(scenario, state_dir)


def test_tenants_and_queues_in_use_stay_and_removed_ones_are_gone(state_dir: Path) -> None:
    async def scenario(house: House) -> None:
        await house.start("n1")
        pool, ann = house.pool, await house.tenant("ann")
        await pool.set_queue(ADMIN, Queue(QueueName("night"), paused=True), create=True)
        with pytest.raises(DuplicateName):
            await pool.set_queue(ADMIN, Queue(QueueName("night")), create=True)
        with pytest.raises(NotFound):
            await pool.set_queue(ADMIN, Queue(QueueName("day")), create=False)
        await house.submit(JobAsk(argv=("x",), gpu_milli=1000, queue="night"), who=ann)
        for act in (pool.remove_queue(ADMIN, QueueName("night")), pool.remove_tenant(ADMIN, TenantId("ann"))):
            with pytest.raises(Conflict, match="unfinished"):
                await act
        assert house.job("1").state is JobState.PENDING
        assert (await pool.why(ann, "1")).verdict == "waits: queue night is paused"
        await pool.set_queue(ADMIN, Queue(QueueName("night"), limit=Quota(gpu_milli=4000)), create=False)
        await finish(house, "1")
        await pool.remove_queue(ADMIN, QueueName("night"))
        await pool.remove_tenant(ADMIN, TenantId("ann"))
        assert [queue.name for queue in await pool.queues(ADMIN)] == ["default"]
        assert [report.tenant.id for report in await pool.tenants(ADMIN)] == ["default"]
        for act in (pool.remove_queue(ADMIN, QueueName("default")), pool.remove_tenant(ADMIN, DEFAULT_TENANT)):
            with pytest.raises(Conflict, match="built in"):
                await act
        await house.stop()

    live(scenario, state_dir)


def test_usage_counts_ended_and_running_tasks_in_whole_hours(state_dir: Path) -> None:
    async def scenario(house: House) -> None:
        house.hands.at = hour = float(int(START // HOUR_S) * HOUR_S)
        await house.start("n1")
        ann = await house.tenant("ann")
        await house.submit(JobAsk(argv=("x",), gpu_milli=2000, cpus_milli=3000), who=ann)
        await house.running_task("1")
        house.hands.at = hour + HOUR_S + 600.0
        await finish(house, "1")
        await house.submit(JobAsk(argv=("x",), gpu_milli=500, cpus_milli=1000), who=ann)
        await house.running_task("2")
        house.hands.at += 300.0

        async def rows(since: float, until: float) -> list[tuple[str, float, float, float]]:
            found = await house.pool.usage(ann, since, until, None)
            return [(r.tenant, r.hour - hour, r.gpu_milli_s, r.cpus_milli_s) for r in found]

        first = ("ann", 0.0, 2000 * 3600.0, 3000 * 3600.0)
        second = ("ann", 3600.0, 2000 * 600.0 + 500 * 300.0, 3000 * 600.0 + 1000 * 300.0)
        assert await rows(hour, hour + 7200.0) == [first, second]
        assert await rows(hour + 100.0, hour + 200.0) == [first]
        # A part of an hour asks for the hour: what ended and what runs are counted alike.
        assert await rows(hour + HOUR_S + 500.0, hour + HOUR_S + 700.0) == [second]
        assert await rows(hour + 2 * HOUR_S, hour + 3 * HOUR_S) == []
        await house.stop()

    live(scenario, state_dir)


def test_a_stop_waits_for_its_tasks_and_queues_them_again(state_dir: Path) -> None:
    async def scenario(house: House) -> None:
        await house.start("n1", gpus=2)
        await house.submit(JobAsk(argv=("x",), gpu_milli=1000, indices=(0, 1)))
        await house.running_task("1", 0)
        await house.running_task("1", 1)
        assert await house.pool.prepare_stop(ADMIN, stop_tasks=False) == 2
        assert house.job("1").state is JobState.RUNNING
        assert await house.pool.prepare_stop(ADMIN, stop_tasks=True) == 0
        await house.until(lambda: house.job("1").state is JobState.PENDING)
        assert (await house.pool.why(ADMIN, "1")).verdict == "the pool is stopping and starts nothing more"
        await house.stop()
        await house.start()
        await house.running_task("1", 1)
        assert [gang.restarts for gang in house.job("1").gangs.values()] == [0, 0]
        await house.stop()

    live(scenario, state_dir)


def test_a_submission_says_who_it_is_for(state_dir: Path) -> None:
    async def scenario(house: House) -> None:
        await house.start("n1")
        ann = await house.tenant("ann")
        (job,) = await house.pool.submit(ann, Submission((JobAsk(argv=("x",), user="ann@desk"),)))
        assert (job.spec.tenant, job.user, job.submitted_at) == ("ann", "ann@desk", START)
        assert await house.pool.submit(ann, Submission(())) == ()
        status = house.pool.status()
        assert (status.pid, status.url, status.nodes_up, status.seq) == (1, "http://pool", 1, house.shell.last_seq)
        await house.stop()

    live(scenario, state_dir)
