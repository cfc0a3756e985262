"""Admin acts over a real store: tokens, tenants, queues, usage, stopping."""

from __future__ import annotations

from pathlib import Path

import pytest

from corral.control.accounts import HOUR_S
from corral.control.inputs import Administer
from corral.model.ask import AfterAsk, JobAsk
from corral.model.errors import (
    Conflict,
    DuplicateName,
    Forbidden,
    NotFound,
    Unauthenticated,
)
from corral.model.events import TokenIssued, TokenRevoked
from corral.model.ids import DEFAULT_TENANT, NodeId, QueueName, TenantId
from corral.model.job import DependencyKind, JobState
from corral.model.tenant import Queue, Quota, Role, Tenant
from corral.ports.pool import Principal, Submission
from tests.unit.control.house import ADMIN, START, House, live

ONE = JobAsk(name="one", argv=("true",), gpu_milli=1000)


def named(name: str, *after: str, kind: DependencyKind = DependencyKind.SUCCEEDED) -> JobAsk:
    return JobAsk(name=name, argv=("true",), gpu_milli=1000, after=tuple(AfterAsk(ref, kind) for ref in after))


async def finish(house: House, job: str, code: int = 0) -> None:
    await house.running_task(job)
    house.engine.end(job, code=code)
    await house.pool.wait(ADMIN, job, 10.0)


def test_only_admins_change_the_pool(state_dir: Path) -> None:
    async def scenario(house: House) -> None:
        await house.start("n1")
        ann = await house.tenant("ann")
        pool = house.pool
        acts = (
            pool.cordon(ann, NodeId("n1"), ""),
            pool.cordon(ann, NodeId("n1"), "", drain=True),
            pool.uncordon(ann, NodeId("n1")),
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
