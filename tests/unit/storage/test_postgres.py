"""PostgreSQL under the store: servers that are away, refuse or hang, commits whose outcome nobody knows, creation."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from msgspec.structs import replace
from sqlalchemy import Connection, create_engine

from bench.heads import Proxy, Way
from bench.postgres import Cluster
from corral.model.errors import (
    CorralError,
    DependencyMissing,
    InvalidField,
    StateUnusable,
    StoreAway,
    StoreConflict,
    StoreCorrupt,
)
from corral.model.files import LogPiece
from corral.model.ids import JobId, TaskKey
from corral.ports.leadership import Candidate, Claim, LeaderRow, Look
from corral.ports.store import Batch, JobQuery
from corral.storage import PostgresStore, migrate
from corral.storage.postgres import PostgresBackend
from corral.storage.schema import metadata
from corral.storage.sqlfiles import SqlLogs
from tests.unit.storage.samples import ended, finished, lost
from tests.waiting import wait_until

ONE = Batch((lost(1.0), ended(2.0)), finished=(finished(1),))


@pytest.fixture
def proxy(postgres_cluster: Cluster) -> Iterator[Proxy]:
    proxy = Proxy(postgres_cluster.port)
    yield proxy
    proxy.close()


@pytest.fixture
def behind(postgres_cluster: Cluster, database_url: str, proxy: Proxy) -> Iterator[PostgresStore]:
    """Give a store that reaches its database through the proxy, and waits for half a second."""
    store = PostgresStore(database_url.replace(f":{postgres_cluster.port}/", f":{proxy.port}/"), limit_s=0.5)
    store.open()
    yield store
    store.close()


@pytest.fixture
def direct(database_url: str) -> Iterator[PostgresStore]:
    store = PostgresStore(database_url)
    store.open()
    yield store
    store.close()


@pytest.mark.parametrize("reaches", [True, False], ids=["committed", "not-committed"])
def test_a_batch_whose_commit_nobody_answered_is_there_once_after_the_same_call(
    behind: PostgresStore, proxy: Proxy, direct: PostgresStore, *, reaches: bool
) -> None:
    epoch = behind.acquire_leadership()
    proxy.cut_at_commit(reaches=reaches)
    with pytest.raises(StoreAway):
        behind.append(0, epoch, ONE)
    assert proxy.commits_cut == 1
    # A transaction that was not committed holds its lock until the server gives it up.
    wait_until(lambda: _appended(behind, epoch), what="the same batch to be there")
    assert behind.append(2, epoch, Batch((lost(3.0),))) == 3
    assert [entry.fact for entry in direct.recover().entries] == [lost(1.0), ended(2.0), lost(3.0)]
    assert [job.number for job in direct.finished_jobs(JobQuery())] == [1]


def test_a_batch_whose_commit_nobody_answered_and_that_another_leader_followed_is_a_conflict(
    behind: PostgresStore, proxy: Proxy, direct: PostgresStore
) -> None:
    old = behind.acquire_leadership()
    proxy.cut_at_commit(reaches=True)
    with pytest.raises(StoreAway):
        behind.append(0, old, ONE)
    wait_until(lambda: len(direct.recover().entries) == 2, what="the commit")
    new = direct.acquire_leadership()
    with pytest.raises(StoreConflict):
        behind.append(0, old, ONE)
    assert direct.append(2, new, Batch((lost(3.0),))) == 3


@pytest.mark.parametrize("reaches", [True, False], ids=["committed", "not-committed"])
def test_a_claim_that_nobody_answered_shows_in_the_row_or_not_at_all(
    behind: PostgresStore, proxy: Proxy, *, reaches: bool
) -> None:
    me = Candidate("run-a", "place-a", "https://a:1")
    proxy.cut_at_commit(reaches=reaches)
    with pytest.raises(StoreAway):
        behind.leaders.campaign(me, Claim(LeaderRow()))
    wait_until(lambda: (behind.leaders.campaign(me, Look()).row.holder == "run-a") is reaches, what="the claim")


def test_a_network_that_swallows_everything_ends_in_time_on_this_side(behind: PostgresStore, proxy: Proxy) -> None:
    epoch = behind.acquire_leadership()
    proxy.turn(Way.SWALLOW)
    with pytest.raises(StoreAway, match=r"no answer within 0\.5 s"):
        behind.append(0, epoch, ONE)
    proxy.turn(Way.CARRY)
    assert behind.append(0, epoch, ONE) == 2


def test_connections_that_break_are_made_anew(behind: PostgresStore, proxy: Proxy) -> None:
    epoch = behind.acquire_leadership()
    proxy.turn(Way.REFUSE)
    wait_until(lambda: _away(behind), what="the connections to break")
    with pytest.raises(StoreAway):
        behind.append(0, epoch, ONE)
    with pytest.raises(StoreAway):
        behind.leaders.campaign(Candidate("a"), Look())
    proxy.turn(Way.CARRY)
    assert behind.append(0, epoch, ONE) == 2
    assert behind.recover().entries[-1].seq == 2


def _appended(store: PostgresStore, epoch: int) -> bool:
    try:
        return store.append(0, epoch, ONE) == 2
    except StoreAway:
        return False


def _away(store: PostgresStore) -> bool:
    try:
        store.entries_after(0, 1)
    except StoreAway:
        return True
    return False


def test_what_a_dead_controller_left_open_is_let_go_of_by_the_server(
    postgres_cluster: Cluster, direct: PostgresStore, database_url: str
) -> None:
    backend = PostgresBackend(database_url)
    engine = backend.connect()
    with engine.connect() as left_behind:
        left_behind.exec_driver_sql("UPDATE leadership SET beat = beat + 1 WHERE id = 1")
        wait_until(lambda: _claimed(direct), what="another one to lead")
        left_behind.invalidate()
    engine.dispose()
    assert postgres_cluster.query(database_url.rpartition("/")[2], "SELECT epoch, beat FROM leadership") == [(1, 1)]


def test_what_was_stopped_in_the_middle_of_a_command_keeps_nobody_from_leading(
    postgres_cluster: Cluster, direct: PostgresStore, database_url: str
) -> None:
    name = database_url.rpartition("/")[2]
    engine = PostgresBackend(database_url).connect()
    with engine.connect() as stopped:
        sent = stopped.connection.driver_connection
        assert sent is not None
        # As the driver sends many rows: no end of the commands yet, so the server takes none of them for a pause.
        sent.pgconn.enter_pipeline_mode()
        for command in (b"BEGIN", b"UPDATE leadership SET beat = beat + 1 WHERE id = 1"):
            sent.pgconn.send_query_params(command, [])
        sent.pgconn.send_flush_request()
        sent.pgconn.flush()
        holding = "SELECT count(*) FROM pg_locks WHERE relation = 'leadership'::regclass AND mode = 'RowExclusiveLock'"
        try:
            wait_until(lambda: postgres_cluster.query(name, holding) == [(1,)], what="the lock")
            wait_until(lambda: _claimed(direct), what="another one to lead")
        finally:
            stopped.invalidate()
    engine.dispose()
    assert postgres_cluster.query(name, "SELECT epoch, beat FROM leadership") == [(1, 1)]


def test_nothing_that_is_at_work_is_ended_for_a_claim(direct: PostgresStore, database_url: str) -> None:
    engine = PostgresBackend(database_url).connect()
    with engine.connect() as at_work, at_work.begin():
        at_work.exec_driver_sql("UPDATE leadership SET last_seq = last_seq WHERE id = 1")
        assert not _claimed(direct)
    engine.dispose()
    assert _claimed(direct)


def _claimed(store: PostgresStore) -> bool:
    try:
        return store.leaders.campaign(Candidate("b"), Claim(LeaderRow())).done
    except StoreAway:
        return False


def test_a_server_that_stops_and_starts_again_is_found_again(postgres_cluster: Cluster, direct: PostgresStore) -> None:
    epoch = direct.acquire_leadership()
    assert direct.append(0, epoch, ONE) == 2
    postgres_cluster.stop(signal.SIGQUIT)
    try:
        with pytest.raises(StoreAway):
            direct.append(2, epoch, Batch((lost(3.0),)))
        with pytest.raises(StoreAway):
            direct.recover()
    finally:
        postgres_cluster.start()
    assert direct.append(2, epoch, Batch((lost(3.0),))) == 3
    assert [entry.seq for entry in direct.recover().entries] == [1, 2, 3]


def test_what_will_not_get_better_by_waiting_is_refused_for_good(postgres_cluster: Cluster) -> None:
    with pytest.raises(StateUnusable, match="does not exist"):
        PostgresStore(postgres_cluster.url("no_such_database")).open()
    with pytest.raises(StateUnusable, match="does not exist"):
        PostgresStore(postgres_cluster.url("postgres").replace("postgres@", "nobody@")).open()
    for url in ("", "no url", "mysql://host/db"):
        with pytest.raises(InvalidField, match="--store"):
            PostgresStore(url)


def test_a_password_is_never_shown() -> None:
    store = PostgresStore("postgresql://me:secret@127.0.0.1:1/pool")
    assert "secret" not in store.name
    with pytest.raises(StoreAway) as refused:
        store.open()
    assert "secret" not in str(refused.value)


def test_a_database_that_would_lose_commits_is_refused(postgres_cluster: Cluster, database_url: str) -> None:
    name = database_url.rpartition("/")[2]
    postgres_cluster.query("postgres", f"ALTER DATABASE {name} SET synchronous_commit = off")
    with pytest.raises(StateUnusable, match="synchronous_commit = off"):
        PostgresStore(database_url).open()


def test_a_database_of_somebody_else_is_left_alone(postgres_cluster: Cluster, database_url: str) -> None:
    name = database_url.rpartition("/")[2]
    postgres_cluster.query(name, "CREATE TABLE meta (x int)")
    with pytest.raises(StoreCorrupt, match="not one of corral"):
        PostgresStore(database_url).open()
    assert postgres_cluster.query(name, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == [(1,)]


def test_controllers_that_meet_an_empty_database_make_its_tables_once(database_url: str) -> None:
    stores, faults = [PostgresStore(database_url) for _ in range(4)], []

    def open_(store: PostgresStore) -> None:
        try:
            store.open()
        except CorralError as error:
            faults.append(error)

    threads = [threading.Thread(target=open_, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert stores[0].acquire_leadership() == 1
    for store in stores:
        store.close()


def test_the_migrations_make_exactly_the_schema(direct: PostgresStore, database_url: str) -> None:
    engine = create_engine(database_url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    engine.dispose()


def test_a_database_of_the_first_schema_is_upgraded_and_keeps_its_rows(database_url: str) -> None:
    engine = create_engine(database_url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        migrate.upgrade(connection, "0001")
        connection.exec_driver_sql("UPDATE leadership SET epoch = 7")
    engine.dispose()
    store = PostgresStore(database_url)
    store.open()
    assert store.acquire_leadership() == 8
    store.close()


def test_a_text_with_a_nul_is_shown_instead_of_refused(direct: PostgresStore) -> None:
    row = replace(finished(1), message="a\0b")
    direct.append(0, direct.acquire_leadership(), Batch((), finished=(row,)))
    assert direct.finished_jobs(JobQuery())[0].message == "a\ufffdb"


def test_an_opening_beside_a_writer_sees_no_damage(direct: PostgresStore, database_url: str) -> None:
    epoch, stop = direct.acquire_leadership(), threading.Event()

    def write() -> None:
        last = 0
        while not stop.is_set():
            last = direct.append(last, epoch, Batch((lost(1.0),)))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(10):
            other = PostgresStore(database_url)
            other.open()
            other.close()
    finally:
        stop.set()
        writer.join()


def test_the_driver_is_an_extra_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(DependencyMissing, match=r"corral\[postgres\]"):
        PostgresStore("postgresql://127.0.0.1/x").open()


def test_the_same_piece_of_a_log_twice_at_once_takes_nothing_back(direct: PostgresStore) -> None:
    task = TaskKey(JobId("7"), 0, 0)
    logs = direct.logs(1_000)
    logs.append(LogPiece(task, 1, 0, b"begin "))

    class Late(SqlLogs):
        """Looks where the log ends before another one adds to it, and writes afterwards."""

        @contextmanager
        def _writing(self, doing: str) -> Iterator[Connection]:
            with super()._writing(doing) as connection:
                scalar = connection.scalar

                def look(*asked: Any) -> Any:
                    found = scalar(*asked)
                    assert logs.append(LogPiece(task, 1, 6, b"and go on")) == 15
                    return found

                connection.scalar = look  # type: ignore[method-assign,assignment]
                yield connection

    late = Late(direct._backend, direct._connected, 1_000)
    assert late.append(LogPiece(task, 1, 6, b"and")) == 9
    assert logs.append(LogPiece(task, 1, 9, b" go on, and on")) == 23
    read = logs.read(task, 1, 0, 100)
    assert read is not None
    assert read.data == b"begin and go on, and on"
