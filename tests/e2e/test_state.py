"""`corral state`: a backup of a pool that runs, the pool from that backup, and the way to PostgreSQL and back."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from bench.failover import with_a_node
from bench.heads import Heads
from bench.postgres import Cluster, binaries
from corral.client import Client
from tests.e2e.command import UP, Corral


@pytest.fixture
def elsewhere() -> Iterator[Corral]:
    """Give a state directory in which nothing is yet."""
    directory = Path(tempfile.mkdtemp(prefix="c", dir="/tmp"))
    corral = Corral(directory)
    yield corral
    corral("down", "--force")
    shutil.rmtree(directory, ignore_errors=True)


def said(corral: Corral, *words: str) -> dict[str, object]:
    done = corral(*words, "--json")
    assert done.code == 0, done.err
    found: dict[str, object] = json.loads(done.out)
    return found


def test_a_pool_goes_on_in_another_directory_from_a_backup_of_when_it_ran(
    own: Corral, elsewhere: Corral, tmp_path: Path
) -> None:
    assert own("run", "--", "true").code == 0
    assert own("tenant", "add", "research", "--weight", "2").code == 0
    place = tmp_path / "backup"
    exported = said(own, "state", "export", str(place))
    assert int(str(exported["last_seq"])) > 5
    refused = own("state", "import", str(place))
    assert refused.code != 0
    assert "a pool runs on" in refused.err
    assert own("down", "--force").code == 0
    assert "holds the state of a pool already" in own("state", "import", str(place)).err
    assert said(elsewhere, "state", "import", str(place)) == exported
    assert elsewhere(*UP).code == 0
    jobs = said(elsewhere, "ps", "--all")["jobs"]
    assert isinstance(jobs, list)
    assert [job["state"] for job in jobs] == ["succeeded"]
    assert "research" in elsewhere("tenant", "list").out
    again = elsewhere("run", "--", "true")
    assert again.code == 0, again.err
    numbers = said(elsewhere, "ps", "--all")["jobs"]
    assert isinstance(numbers, list)
    assert len({job["id"] for job in numbers}) == 2


def test_a_pool_moves_to_postgresql_and_back(
    own: Corral, elsewhere: Corral, postgres_cluster: Cluster, tmp_path: Path
) -> None:
    assert own("run", "--name", "before", "--", "true").code == 0
    assert own("down", "--force").code == 0
    database = postgres_cluster.database()
    url = postgres_cluster.url(database)
    there, back = tmp_path / "there", tmp_path / "back"
    moved = said(own, "state", "export", str(there))
    assert said(own, "state", "import", str(there), "--store", url) == moved
    with Heads(2, postgres_cluster.port, partial(postgres_cluster.url, database)) as heads:
        heads.start()
        with Client(token=heads.heads[0].token, urls=heads.urls, retry_s=30.0) as client:
            assert [job.name for job in client.jobs(live=False, finished=True).jobs] == ["before"]
            client.submit(run="true", cpus=1, name="between")
    assert int(str(said(own, "state", "export", str(back), "--store", url)["last_seq"])) > int(str(moved["last_seq"]))
    said(elsewhere, "state", "import", str(back))
    assert elsewhere(*UP).code == 0
    with Client(state_dir=elsewhere.state_dir / "pool") as client:
        assert {job.name for job in client.jobs(live=True, finished=True).jobs} == {"before", "between"}


def test_heads_go_on_from_a_backup_that_was_made_with_the_tools_of_postgresql(
    postgres_cluster: Cluster, tmp_path: Path
) -> None:
    first, second = postgres_cluster.database(), postgres_cluster.database()
    with_a_node(postgres_cluster.url(first))
    tools, dump = binaries(), tmp_path / "pool.dump"
    assert tools is not None

    def tool(name: str, *words: str) -> None:
        subprocess.run([tools / name, *words], check=True, capture_output=True, timeout=120.0)

    with Heads(2, postgres_cluster.port, partial(postgres_cluster.url, first)) as heads:
        heads.start()
        with Client(token=heads.heads[0].token, urls=heads.urls, retry_s=30.0) as client:
            client.submit(run="true", cpus=1, name="before")
            # While the pool runs.
            tool("pg_dump", "--format=custom", f"--file={dump}", postgres_cluster.url(first))
            client.submit(run="true", cpus=1, name="unknown")
            epoch = client.status().epoch
    tool("pg_restore", "--no-owner", f"--dbname={postgres_cluster.url(second)}", str(dump))
    postgres_cluster.query(second, "UPDATE leadership SET epoch = epoch + 1000")
    with Heads(2, postgres_cluster.port, partial(postgres_cluster.url, second)) as heads:
        heads.start()
        with Client(token=heads.heads[0].token, urls=heads.urls, retry_s=30.0) as client:
            assert client.status().epoch > epoch + 900
            assert {job.name for job in client.jobs(live=True, finished=True).jobs} == {"before"}
            # The pool goes on: its numbers too, with that of the job which the backup does not know.
            after = client.submit(run="true", cpus=1, name="after")
            assert after.id == "2"
            leader = heads.leader()
            leader.kill()
            client.cancel(after.id)
            assert {job.name for job in client.jobs(live=True, finished=True).jobs} == {"before", "after"}
            assert client.status().epoch > epoch + 901
