"""The judge of `bench.failover` sees what it is there to see."""

from __future__ import annotations

import pytest

from bench.failover import Outcome, judge
from bench.postgres import Cluster

PAYLOAD = '{{"spec":{{"name":"{name}"}}}}'
ROW = "INSERT INTO journal VALUES ({seq}, {epoch}, 0, 'job-submitted', '{job}', 0, '" + PAYLOAD + "')"


@pytest.fixture
def database(postgres_cluster: Cluster) -> str:
    name = postgres_cluster.database()
    postgres_cluster.query(
        name, "CREATE TABLE journal (seq int, epoch int, at float, kind text, job text, crc int, payload bytea)"
    )
    return name


def judged(cluster: Cluster, database: str, *rows: tuple[int, int, str, str], **acknowledged: str) -> Outcome:
    for seq, epoch, job, name in rows:
        cluster.query(database, ROW.format(seq=seq, epoch=epoch, job=job, name=name))
    outcome = Outcome(acknowledged=acknowledged)
    judge(cluster, database, outcome)
    return outcome


def test_a_whole_journal_is_clean(postgres_cluster: Cluster, database: str) -> None:
    found = judged(postgres_cluster, database, (1, 1, "1", "a"), (2, 2, "2", "b"), a="1", b="2")
    assert (found.stale, found.lost, found.twice) == (0, 0, 0)


def test_stale_writes_losses_and_doubles_are_counted(postgres_cluster: Cluster, database: str) -> None:
    rows = ((1, 2, "1", "a"), (2, 1, "2", "b"), (3, 2, "3", "b"))
    found = judged(postgres_cluster, database, *rows, a="1", c="7", b="9")
    assert (found.stale, found.lost, found.twice) == (1, 2, 1)


def test_a_journal_without_submits_proves_nothing(postgres_cluster: Cluster, database: str) -> None:
    with pytest.raises(RuntimeError, match="no submits"):
        judged(postgres_cluster, database)
