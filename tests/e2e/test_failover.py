"""Two controllers that share a PostgreSQL database: failover, outages of the database, streams and clients."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest

from bench.failover import with_a_node
from bench.heads import Heads, Way, paused
from bench.postgres import Cluster
from corral.client import Client
from corral.model.errors import StoreAway
from tests.waiting import wait_until

TAKEOVER_S = 30.0
"""How long a takeover may take on a busy machine; `bench.failover` measures what it takes."""


@pytest.fixture
def heads(postgres_cluster: Cluster) -> Iterator[Heads]:
    database = postgres_cluster.database()
    with_a_node(postgres_cluster.url(database))
    with Heads(2, postgres_cluster.port, partial(postgres_cluster.url, database)) as found:
        found.start()
        yield found


@pytest.fixture
def client(heads: Heads) -> Iterator[Client]:
    """Give a client that knows both heads and has patience."""
    with Client(token=heads.heads[1].token, urls=heads.urls, retry_s=TAKEOVER_S, timeout_s=5.0) as found:
        yield found


def test_a_standby_takes_over_with_all_that_was_acknowledged_and_streams_go_on(heads: Heads, client: Client) -> None:
    seen: list[int] = []
    leader = heads.leader()
    (standby,) = (head for head in heads.heads if head is not leader)
    before = client.status()
    first = client.submit(run="true", cpus=1, name="first")

    def watch() -> None:
        for entry in client.events(after_seq=0):
            seen.append(entry.seq)
            if len(seen) > 1 and "last" in str(entry.fact):
                return

    watching = threading.Thread(target=watch)
    watching.start()
    wait_until(lambda: seen, what="the first events")
    leader.kill()
    # Nobody has to be told: the same client goes on.
    second = client.submit(run="true", cpus=1, name="second")
    assert standby.leads()
    assert {job.name for job in client.jobs().jobs} == {"first", "second"}
    after = client.status()
    assert (after.epoch, after.url) == (before.epoch + 1, standby.url)
    leader.start()
    assert not leader.leads()
    client.cancel(first.id)
    last = client.submit(run="true", cpus=1, name="last")
    watching.join(TAKEOVER_S)
    assert not watching.is_alive()
    assert seen == list(range(1, seen[-1] + 1)), "every event once, in order"
    assert [second.id, last.id] == ["2", "3"]


def test_the_local_token_of_every_head_is_one_of_the_pool(heads: Heads) -> None:
    for head in heads.heads:
        with Client(state_dir=head.paths.root, retry_s=TAKEOVER_S) as local:
            assert local.status().url == heads.leader().url


def test_who_was_stopped_goes_on_as_a_standby_and_writes_nothing(heads: Heads, client: Client) -> None:
    old = heads.leader()
    with paused(old):
        wait_until(lambda: any(head.leads() for head in heads.heads if head is not old), TAKEOVER_S, what="a takeover")
        job = client.submit(run="true", cpus=1)
    with old.client(retry_s=TAKEOVER_S) as its_own:
        assert its_own.job(job.id).id == job.id
    wait_until(lambda: not old.leads(), TAKEOVER_S, what="the old leader to stand by")
    assert old.process is not None
    assert old.process.poll() is None, "it need not be started again"


def test_an_orderly_end_hands_the_lead_over_without_waiting_for_the_lease(heads: Heads, client: Client) -> None:
    old = heads.leader()
    job = client.submit(run="true", cpus=1)
    old.signal(signal.SIGTERM)
    assert old.process is not None
    assert old.process.wait(TAKEOVER_S) == 0
    assert client.job(job.id).id == job.id
    assert heads.leader() is not old


def test_who_starts_again_in_its_own_place_need_not_wait_for_its_lease(heads: Heads, client: Client) -> None:
    leader = heads.leader()
    (standby,) = (head for head in heads.heads if head is not leader)
    standby.kill()
    epoch = client.status().epoch
    leader.kill()
    leader.start()
    assert client.status().epoch == epoch + 1
    assert leader.log().count("this controller leads from now on") == 2


@pytest.mark.parametrize("away_s", [8.0, 30.0])
def test_while_the_database_is_away_reads_go_on_writes_are_refused_and_all_goes_on_afterwards(
    postgres_cluster: Cluster, heads: Heads, client: Client, away_s: float
) -> None:
    leader = heads.leader()
    job = client.submit(run="true", cpus=1)
    before = client.status()
    pids = [head.process.pid for head in heads.heads if head.process is not None]
    postgres_cluster.stop(signal.SIGQUIT)
    began = time.monotonic()
    try:
        with leader.client(timeout_s=20.0) as direct:
            with pytest.raises(StoreAway) as refused:
                direct.submit(run="true", cpus=1, idempotency_key="meanwhile")
            assert refused.value.retryable
            assert direct.job(job.id).id == job.id
            assert direct.status().epoch == before.epoch
        waiting: list[str] = []
        patient = threading.Thread(
            target=lambda: waiting.append(client.submit(run="true", cpus=1, idempotency_key="meanwhile").id)
        )
        wait_until(lambda: time.monotonic() - began > away_s, away_s + 10.0)
        patient.start()
    finally:
        postgres_cluster.start()
    patient.join(TAKEOVER_S)
    # Nobody died, and one and the same request is carried out once, whoever leads now.
    assert [head.process.poll() for head in heads.heads if head.process is not None] == [None, None]
    assert [head.process.pid for head in heads.heads if head.process is not None] == pids
    wait_until(lambda: any(head.leads() for head in heads.heads), TAKEOVER_S, what="a leader")
    assert waiting == ["2"]
    assert client.submit(run="true", cpus=1).id == "3"


def test_a_leader_that_is_cut_off_stands_by_when_it_hears_of_another(heads: Heads, client: Client) -> None:
    old = heads.leader()
    (other,) = (head for head in heads.heads if head is not old)
    old.proxy.turn(Way.SWALLOW)
    wait_until(other.leads, TAKEOVER_S, what="a takeover")
    job = client.submit(run="true", cpus=1)
    old.proxy.turn(Way.CARRY)
    wait_until(lambda: not old.leads(), TAKEOVER_S, what="the old leader to stand by")
    with old.client(retry_s=TAKEOVER_S) as its_own:
        assert its_own.job(job.id).id == job.id
