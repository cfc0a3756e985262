"""Two tenants with tokens of their own: neither can read, stop, imitate or even notice the other's jobs."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

from corral.client import Client
from corral.client.handle import JobHandle
from corral.model.errors import CorralError, Forbidden, NotFound, Unauthenticated, UnknownDependency
from corral.model.events import JobEvent
from corral.model.ids import QueueName, TenantId
from corral.model.job import JobState
from corral.model.tenant import Queue, Tenant
from tests.e2e.conftest import live_pool
from tests.e2e.livepool import LivePool

NO_JOB = "987654"
SECRET = "the-secret-of-alpha"


class Two(NamedTuple):
    """A pool with two tenants; ``job`` runs and ``done`` has ended, both alpha's."""

    pool: LivePool
    alpha: Client
    beta: Client
    url: str
    beta_secret: str
    job: JobHandle
    done: JobHandle


@pytest.fixture(scope="module")
def two() -> Iterator[Two]:
    with live_pool() as pool:
        url = pool.up().url
        clients, secrets = [], []
        for name in ("alpha", "beta"):
            pool.client.set_tenant(Tenant(TenantId(name)), create=True)
            _, secret = pool.client.issue_token(name)
            secrets.append(secret)
            clients.append(Client(url=url, token=secret, retry_s=0.0))
        alpha, beta = clients
        job = alpha.submit(run=f"echo {SECRET}; sleep 600", name=SECRET, gpus=1, workdir=None)
        done = alpha.submit(run=["echo", SECRET], name=f"{SECRET}-done", workdir=None)
        pool.started(job)
        assert pool.result(done).state is JobState.SUCCEEDED
        yield Two(pool, alpha, beta, url, secrets[1], job, done)
        for client in clients:
            client.close()


CALLS: dict[str, Callable[[Client, str], object]] = {
    "summary": lambda client, ref: client.summary(ref),
    "job": lambda client, ref: client.job(ref),
    "wait": lambda client, ref: client.wait(ref, 0.1),
    "cancel": lambda client, ref: client.cancel(ref),
    "logs": lambda client, ref: list(client.logs(ref)),
    "logs of a rank": lambda client, ref: list(client.logs(ref, rank=0)),
    "followed logs": lambda client, ref: next(client.logs(ref, follow=True)),
    "why": lambda client, ref: client.why(ref),
    "receipt": lambda client, ref: client.receipt(ref),
    "history": lambda client, ref: client.history(ref),
    "events": lambda client, ref: next(client.events(ref)),
    "old events": lambda client, ref: next(client.events(ref, after_seq=0)),
}


def refusal(call: Callable[[Client, str], object], client: Client, ref: str) -> tuple[type, str]:
    """Return how a call is refused, the reference itself taken out."""
    with pytest.raises(CorralError) as caught:
        call(client, ref)
    return type(caught.value), str(caught.value).replace(ref, "REF")


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_foreign_job_is_as_good_as_missing(two: Two, call: Callable[[Client, str], object]) -> None:
    missing = refusal(call, two.beta, NO_JOB)
    assert missing[0] is NotFound
    for job in (two.job, two.done):
        for ref in (job.id, f"{job.id}.0", job.name):
            expected = refusal(call, two.beta, f"{NO_JOB}.0") if "." in ref else missing
            assert refusal(call, two.beta, ref) == expected
    assert two.job.status().state is JobState.RUNNING


@pytest.mark.parametrize("path", ["", "/summary", "/log", "/why", "/receipt", "/history"])
def test_nothing_in_the_answer_tells_foreign_from_missing(two: Two, path: str) -> None:
    answers = []
    for ref in (two.job.id, two.done.id, NO_JOB):
        connection = http.client.HTTPConnection(urlsplit(two.url).netloc)
        connection.request("GET", f"/v1/jobs/{ref}{path}", headers={"Authorization": f"Bearer {two.beta_secret}"})
        reply = connection.getresponse()
        body = re.sub(rf"\b{ref}\b", "REF", reply.read().decode())
        headers = {name.lower() for name, _ in reply.getheaders()}
        answers.append((reply.status, body, headers))
        connection.close()
    assert answers[0] == answers[1] == answers[2]
    assert answers[0][0] == 404


def test_a_tenant_cannot_act_for_another(two: Two) -> None:
    with pytest.raises(Forbidden, match="belongs to tenant 'beta'"):
        two.beta.submit(run=["true"], tenant="alpha", workdir=None)
    with pytest.raises(Forbidden):
        two.beta.submit(run=["true"], tenant="default", workdir=None)
    for after in (two.job.id, two.done.id, two.job.name, NO_JOB):
        with pytest.raises(UnknownDependency, match=f"there is no job '{after}'"):
            two.beta.submit(run=["true"], after=after, workdir=None)
    key = "the-same-key"
    first = two.alpha.submit(run=["true"], idempotency_key=key, workdir=None)
    second = two.beta.submit(run=["true"], idempotency_key=key, workdir=None)
    assert first.id != second.id
    assert two.pool.client.summary(second.id).tenant == "beta"
    with pytest.raises(Forbidden):
        two.beta.usage(0.0, 1e10, tenant="alpha")
    with Client(url=two.url, token="corral_" + "x" * 43, retry_s=0.0) as client, pytest.raises(Unauthenticated):
        client.status()


ADMIN: dict[str, Callable[[Client], object]] = {
    "set_tenant": lambda client: client.set_tenant(Tenant(TenantId("beta"), weight=100.0)),
    "new tenant": lambda client: client.set_tenant(Tenant(TenantId("gamma")), create=True),
    "remove_tenant": lambda client: client.remove_tenant("alpha"),
    "set_queue": lambda client: client.set_queue(Queue(QueueName("default"), priority=9)),
    "remove_queue": lambda client: client.remove_queue("default"),
    "issue_token": lambda client: client.issue_token("alpha"),
    "admin token": lambda client: client.issue_token("beta", "admin"),
    "revoke_token": lambda client: client.revoke_token("0"),
    "cordon": lambda client: client.cordon("node-1"),
    "uncordon": lambda client: client.uncordon("node-1"),
    "remove_node": lambda client: client.remove_node("node-1"),
    "stop": lambda client: client.stop("stop"),
}


@pytest.mark.parametrize("act", ADMIN.values(), ids=ADMIN)
def test_a_user_cannot_administer(two: Two, act: Callable[[Client], object]) -> None:
    with pytest.raises(Forbidden):
        act(two.beta)
    assert two.job.status().state is JobState.RUNNING


def test_lists_show_a_tenant_its_own_things_only(two: Two) -> None:
    hog = two.alpha.submit(run=["sleep", "600"], gpus=2, num_nodes=2, name=f"{SECRET}-waits", workdir=None)
    mine = two.beta.submit(run=["sleep", "600"], gpus=2, num_nodes=2, name="mine", workdir=None)
    try:
        for asked in (None, "alpha", "beta"):
            rows = two.beta.jobs(finished=True, tenant=asked).jobs
            assert {row.tenant for row in rows} <= {"beta"}
        beta = two.beta
        seen: list[object] = [beta.nodes(), beta.queue(), beta.tenants(), beta.tokens(), beta.why(mine.id)]
        assert SECRET not in repr(seen)
        assert [report.tenant.id for report in two.beta.tenants()] == ["beta"]
        assert {token.tenant for token in two.beta.tokens()} == {"beta"}
        assert {row.tenant for row in two.beta.usage(0.0, 1e10)} <= {"beta"}
        foreign = {two.job.id, two.done.id, hog.id}
        named = set(re.findall(r"job='(\w+)'", repr(seen)))
        assert not named & foreign, "the numbers of foreign jobs are shown"
    finally:
        for job in (hog, mine):
            two.pool.client.cancel(job.id)


def test_the_stream_of_facts_holds_nothing_foreign(two: Two) -> None:
    job = two.beta.submit(run=["true"], workdir=None)
    two.beta.wait(job.id, 30.0)
    facts = []
    for entry in two.beta.events(after_seq=0):
        assert isinstance(entry.fact, JobEvent), entry
        facts.append(entry.fact)
        if entry.fact.job == job.id and type(entry.fact).__name__ == "JobEnded":
            break
    assert SECRET not in repr(facts)
    own = {row.id for row in two.beta.jobs(finished=True, limit=1_000).jobs}
    assert {fact.job for fact in facts} <= own


def test_a_revoked_token_is_refused_at_once(two: Two) -> None:
    token, secret = two.pool.client.issue_token("beta")
    with Client(url=two.url, token=secret, retry_s=0.0) as client:
        assert client.status().nodes == 2
        two.pool.client.revoke_token(token.id)
        with pytest.raises(Unauthenticated):
            client.status()


def test_tokens_are_hashed_at_rest_and_the_local_one_is_private(two: Two) -> None:
    state_dir = two.pool.state_dir
    assert (state_dir / "token").stat().st_mode & 0o777 == 0o600
    assert state_dir.stat().st_mode & 0o777 == 0o700
    secrets = (two.beta_secret, (state_dir / "token").read_text().strip())
    for path in [*state_dir.glob("corral.db*"), *state_dir.glob("logs/*"), state_dir / "pool.json"]:
        data = path.read_bytes()
        assert not any(secret.encode() in data for secret in secrets), path
    assert json.loads((state_dir / "daemon.json").read_text())["url"] == two.url
