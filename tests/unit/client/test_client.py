"""The SDK against a real server: every call, typed, with the errors of the tree."""

from __future__ import annotations

import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

import corral
from corral.client import Client, JobHandle
from corral.model.ask import AfterAsk, JobAsk
from corral.model.errors import (
    Conflict,
    CorralError,
    DuplicateName,
    Forbidden,
    IdempotencyMismatch,
    InvalidField,
    JobsRunning,
    MissingField,
    NotFound,
    PathNotFound,
    TooManyJobs,
    Unauthenticated,
    UnknownField,
    UsageError,
)
from corral.model.events import JobEnded, JobSubmitted
from corral.model.ids import QueueName, TenantId
from corral.model.job import JobState
from corral.model.tenant import Queue, Quota, Role, Tenant
from tests.unit.api.memory_pool import ALICE, BOB, EXIT_3, JOBS_MAX, KILLED, MemoryPool
from tests.unit.api.serving import Served, served
from tests.waiting import wait_until


def test_the_package_offers_the_client() -> None:
    assert corral.Client is Client


def test_an_own_proposer_that_is_surely_not_there_is_refused_before_anything_is_submitted(
    alice: Client, server: Served, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text("def propose(offer, job): pass\n")
    fields = {"run": "true", "num_gpus": "1-2", "workdir": tmp_path}
    with pytest.raises(
        InvalidField, match=r"^appmaster: \S*/mine.py has no propse \(it is looked for in workdir first\)$"
    ):
        alice.submit_all([JobAsk(argv=("x",)), JobAsk(argv=("x",), workdir=str(tmp_path), appmaster="mine:propse")])
    with pytest.raises(InvalidField, match="appmaster: there is no module nothing_of_this_name"):
        alice.submit(**fields, appmaster="nothing_of_this_name:propose")  # type: ignore[arg-type]
    assert alice.jobs().jobs == ()
    assert alice.submit(**fields, appmaster="mine:propose").id  # type: ignore[arg-type]


def test_a_submit_in_keywords_says_what_a_job_file_says(alice: Client, server: Served, tmp_path: Path) -> None:
    first = alice.submit(run="true")
    alice.submit(
        run=["python", tmp_path / "x.py", 1],
        name="train",
        gpus=0.5,
        gpu_model="H100",
        cpus=2,
        memory="512MiB",
        num_nodes=2,
        envs={"A": 1},
        sweep={"C": [1, 2]},
        max_duration=timedelta(hours=1),
        after=[first, {"other": "ended"}],
        workdir=tmp_path,
        priority=3,
    )
    ask = server.pool.asked[-1]
    assert msgspec.structs.replace(ask, user="me", after=()) == JobAsk(
        name="train",
        tenant="alice",
        argv=("python", str(tmp_path / "x.py"), "1"),
        gpu_milli=500,
        gpu_model="H100",
        cpus_milli=2000,
        memory_mib=512,
        num_nodes=2,
        envs={"A": "1"},
        workdir=str(tmp_path),
        indices=(0, 1),
        points=({"C": "1"}, {"C": "2"}),
        max_duration_s=3600.0,
        priority=3,
        user="me",
    )
    assert [entry.ref for entry in ask.after] == ["1", "other"]
    assert ask.user != ""


def test_a_job_runs_where_the_caller_is_unless_told(alice: Client, server: Served) -> None:
    alice.submit(run="x")
    alice.submit(run="x", workdir=None)
    assert [ask.workdir for ask in server.pool.asked] == [str(Path.cwd()), None]


def test_one_dependency_may_stand_alone(alice: Client, server: Served) -> None:
    first = alice.submit(run="x")
    alice.submit(run="x", after=first)
    alice.submit(run="x", after="1")
    assert [ask.after for ask in server.pool.asked[1:]] == [(AfterAsk("1"),), (AfterAsk("1"),)]


@pytest.mark.parametrize(
    "fields,error,field",
    [
        ({}, MissingField, "run"),
        ({"run": "x", "gpu": 1}, UnknownField, "gpu"),
        ({"run": "x", "gpus": -1}, InvalidField, "gpus"),
        ({"run": "x", "gpus": 1, "accelerators": 2}, InvalidField, "gpus"),
        ({"run": "x", "gpus": 1, "num_gpus": 2}, InvalidField, "gpus"),
        ({"run": "x", "num_gpus": [4, 0]}, InvalidField, "num_gpus[1]"),
        ({"run": "x", "gpus": "2-1"}, InvalidField, "gpus"),
        ({"run": "x", "work": {"total": 0}}, InvalidField, "work.total"),
        ({"run": "x", "memory": "lots"}, InvalidField, "memory"),
        ({"run": "x", "workdir": "/no/such/place"}, PathNotFound, "workdir"),
        ({"run": object()}, InvalidField, "run"),
    ],
)
def test_a_wrong_keyword_is_refused_before_anything_is_sent(
    alice: Client, server: Served, fields: dict[str, object], error: type[CorralError], field: str
) -> None:
    with pytest.raises(error) as caught:
        alice.submit(**fields)  # type: ignore[arg-type]
    assert caught.value.refusal.field == field
    assert server.pool.asked == []


def test_a_job_and_keywords_do_not_go_together(alice: Client) -> None:
    with pytest.raises(UsageError):
        alice.submit(JobAsk(script="x"), name="a")


def test_jobs_are_submitted_together_or_not_at_all(alice: Client, server: Served) -> None:
    handles = alice.submit_all([JobAsk(script="x", name="a"), JobAsk(script="y", after=(AfterAsk("a"),))])
    assert [(handle.id, handle.name) for handle in handles] == [("1", "a"), ("2", "job")]
    with pytest.raises(TooManyJobs):
        alice.submit_all([JobAsk(script="x")] * (JOBS_MAX - 1))
    assert len(server.pool.all) == 2


def test_a_key_makes_a_submit_safe_to_repeat(alice: Client) -> None:
    assert alice.submit(run="x", idempotency_key="k").id == alice.submit(run="x", idempotency_key="k").id
    assert alice.submit(run="x").id != alice.submit(run="x").id
    with pytest.raises(IdempotencyMismatch):
        alice.submit(run="y", idempotency_key="k")
    with pytest.raises(UsageError):
        alice.submit(run="y", idempotency_key="k\n")


def test_a_handle_asks_about_its_job(alice: Client, server: Served) -> None:
    handle = alice.submit(run="x", name="a", array=2)
    assert repr(handle) == "JobHandle('1', 'a')"
    assert handle.status().counts == {"pending": 2}
    assert handle.details().spec.script == "x"
    assert handle.why().verdict == "waits for devices"
    assert handle.receipt().gpu_hours == 0.25
    assert handle.wait(0).state is JobState.PENDING
    assert handle.cancel().id == "1"
    assert alice.handle("a").id == "1"
    server.do(lambda: server.pool.finish("1", KILLED))
    assert (handle.wait().state, handle.wait().exit_code) == (JobState.FAILED, 137)
    with pytest.raises(Conflict):
        handle.cancel()


def test_a_wait_ends_with_the_job(alice: Client, server: Served) -> None:
    handle = alice.submit(run="x")
    found: list[int | None] = []
    waiting = threading.Thread(target=lambda: found.append(handle.wait().exit_code))
    waiting.start()
    wait_until(lambda: server.pool.waiting == 1)
    server.do(lambda: server.pool.finish("1", EXIT_3))
    waiting.join(10)
    assert found == [3]


def test_jobs_are_listed_by_pages(alice: Client) -> None:
    for _ in range(3):
        alice.submit(run="x")
    page = alice.jobs(limit=2)
    assert ([row.id for row in page.jobs], page.next_before, page.total_live) == (["3", "2"], 2, 3)
    assert [row.id for row in alice.jobs(before=page.next_before).jobs] == ["1"]
    assert alice.jobs(live=False, finished=True).jobs == ()
    assert alice.job("1", gangs_max=0).gangs == {}


def test_logs_are_bytes_in_pieces(alice: Client, server: Served) -> None:
    handle = alice.submit(run="x", array=2)
    assert list(handle.logs()) == []
    data = bytes(range(256)) * 9000  # 2.3 MB: more than one page
    server.do(lambda: server.pool.write("1", data))
    assert b"".join(chunk.data for chunk in handle.logs(element=0)) == data
    assert b"".join(chunk.data for chunk in alice.logs("1", offset=len(data) - 3)) == data[-3:]
    with pytest.raises(NotFound):
        list(handle.logs(rank=5))
    with pytest.raises(NotFound):
        list(handle.logs(rank=5, follow=True))


def test_a_followed_log_ends_with_its_task(alice: Client, server: Served) -> None:
    handle = alice.submit(run="x")
    server.do(lambda: server.pool.write("1", b"caf\xc3"))
    chunks = handle.logs(follow=True)
    assert next(chunks).data == b"caf\xc3"
    server.do(lambda: server.pool.write("1", b"\xa9\n", complete=True))
    last = next(chunks)
    assert (last.data, last.offset, last.complete) == (b"\xa9\n", 4, True)
    assert list(chunks) == []


def test_the_log_of_each_start_can_be_read(alice: Client, server: Served) -> None:
    handle = alice.submit(run="x")
    server.do(lambda: server.pool.write("1", b"first"))
    following = handle.logs(follow=True)
    assert (next(following).incarnation, next(alice.logs("1")).incarnation) == (1, 1)
    server.do(lambda: server.pool.restart("1"))
    server.do(lambda: server.pool.write("1", b"second", complete=True))
    assert [(chunk.incarnation, chunk.offset, chunk.data) for chunk in following] == [(2, 0, b"second")]
    assert [chunk.data for chunk in alice.logs("1")] == [b"second"]
    assert [chunk.data for chunk in alice.logs("1", incarnation=1, offset=2)] == [b"rst"]
    assert [chunk.data for chunk in alice.logs("1", incarnation=1, offset=2, follow=True)] == [b"rst", b"second"]


def test_the_pages_of_a_log_are_of_one_start(alice: Client, server: Served) -> None:
    handle = alice.submit(run="x")
    data = bytes(range(256)) * 9000
    server.do(lambda: server.pool.write("1", data))
    pages = handle.logs()
    read = next(pages).data
    server.do(lambda: server.pool.restart("1"))
    server.do(lambda: server.pool.write("1", b"x" * len(data)))
    assert read + b"".join(page.data for page in pages) == data


def test_events_of_a_job_end_with_it(alice: Client, server: Served) -> None:
    handle = alice.submit(run="x")
    server.do(lambda: server.pool.finish("1", EXIT_3))
    facts = [entry.fact for entry in alice.events(handle.id, after_seq=0)]
    assert [type(fact) for fact in facts] == [JobSubmitted, JobEnded]
    assert [entry.seq for entry in alice.history("1")] == [1, 2]
    assert list(alice.events(handle.id)) == []


def test_the_pool_is_shown_and_changed(admin: Client, alice: Client) -> None:
    assert admin.status().models == {"H100": 1}
    admin.cordon("n0", "new driver")
    assert alice.nodes()[0].cordon_reason == "new driver"
    admin.uncordon("n0")
    assert not alice.nodes()[0].cordoned
    assert not alice.maintenance().active
    assert admin.start_maintenance(1800.0, "new disks").missing == ("n0",)
    assert alice.maintenance().until == 1850.0
    admin.stop_maintenance()
    assert not alice.maintenance().active
    with pytest.raises(Conflict):
        admin.remove_node("n0")
    alice.submit(run="x")
    assert [line.key.job for line in alice.queue(5)] == ["1"]
    (row,) = alice.usage(0, 7200)
    assert row.gpu_milli_s == 1.5


def test_tenants_queues_and_tokens(admin: Client, server: Served) -> None:
    tenant = Tenant(TenantId("vision"), 2.0, Quota(1), Quota(2, 3), 4)
    admin.set_tenant(tenant, create=True)
    with pytest.raises(DuplicateName):
        admin.set_tenant(tenant, create=True)
    admin.set_tenant(Tenant(TenantId("vision"), 3.0))
    assert admin.tenants()[-1].tenant == Tenant(TenantId("vision"), 3.0)
    queue = Queue(QueueName("night"), -3, Quota(4), paused=True)
    admin.set_queue(queue, create=True)
    admin.set_queue(queue)
    assert admin.queues()[-1] == queue
    admin.remove_queue("night")
    token, secret = admin.issue_token("vision", Role.USER, "laptop")
    assert (token.tenant, token.role, token.label, token.digest) == ("vision", Role.USER, "laptop", "")
    assert admin.tokens() == (token,)
    with Client(server.url, secret) as vision:
        vision.submit(run="x")
        assert server.pool.all["1"].spec.tenant == "vision"
        admin.revoke_token(token.id)
        with pytest.raises(Unauthenticated):
            vision.status()
    admin.remove_tenant("vision")
    with pytest.raises(NotFound):
        admin.remove_tenant("vision")


def test_tenants_do_not_see_each_others_jobs(server: Served, alice: Client) -> None:
    handle = alice.submit(run="x")
    with Client(server.url, BOB) as bob:
        for ask in (bob.job, bob.summary, bob.why, bob.receipt, bob.history, bob.cancel, bob.wait):
            with pytest.raises(NotFound):
                ask(handle.id)
        with pytest.raises(NotFound):
            list(bob.logs(handle.id, follow=True))
        with pytest.raises(Forbidden):
            bob.submit(run="x", tenant="alice")
        with pytest.raises(Forbidden):
            bob.set_tenant(Tenant(TenantId("bob"), 99.0))


@pytest.mark.parametrize("ref", ["", ".", "..", "a/b", "a\nb"])
def test_a_reference_that_is_no_segment_of_a_path_is_refused(alice: Client, ref: str) -> None:
    with pytest.raises(UsageError):
        alice.job(ref)


def test_a_name_with_odd_characters_arrives_as_it_is(alice: Client) -> None:
    with pytest.raises(NotFound, match="there is no job a%2Fb\\?x#y ü"):
        alice.job("a%2Fb?x#y ü")


def test_the_daemon_is_stopped() -> None:
    pool, stopped = MemoryPool(), threading.Event()
    with served(pool, on_stop=stopped.set) as server, Client(server.url, "admin-secret") as admin:
        admin.submit(run="x")
        server.do(lambda: setattr(pool.all["1"], "state", JobState.RUNNING))
        with pytest.raises(JobsRunning):
            admin.stop()
        assert admin.stop("leave") == 1
        assert stopped.wait(10)


def test_threads_share_a_client(alice: Client, server: Served) -> None:
    found: list[JobHandle] = []
    threads = [
        threading.Thread(target=lambda: found.extend(alice.submit(run="x") for _ in range(10))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len({handle.id for handle in found}) == 80


def test_the_client_is_light_to_import() -> None:
    code = (
        "import sys, corral.client.client, corral.client.fields, corral.wire.jobfile, corral.wire.sbatch;"
        "print([m for m in ('pydantic', 'httpx', 'fastapi', 'yaml', 'asyncio', 'difflib', 'rich') if m in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert shown.stdout == "[]\n"


def test_the_token_of_the_examples_is_not_shown(alice: Client) -> None:
    with pytest.raises(NotFound) as caught:
        alice.job("99")
    assert ALICE not in str(caught.value)
