"""What a machine that was cut off leaves behind in the database."""

from __future__ import annotations

import sys
import textwrap

import pytest

from bench.hosts import Hosts
from bench.machines import HostedDatabase
from bench.postgres import binaries
from corral.storage import PostgresStore
from tests import needs
from tests.e2e.netns.crowd import START_S
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.xdist_group("netns")]

# A transaction that has the lock on the leader's row, in the middle of commands that are sent at once.
IN_THE_MIDDLE = """
    import sys, time
    from corral.storage.postgres import PostgresBackend
    connection = PostgresBackend(sys.argv[1]).connect().raw_connection().driver_connection
    connection.pgconn.enter_pipeline_mode()
    for command in (b"BEGIN", b"UPDATE leadership SET beat = beat + 1 WHERE id = 1"):
        connection.pgconn.send_query_params(command, [])
    connection.pgconn.send_flush_request()
    connection.pgconn.flush()
    time.sleep(3600)
"""
HELD = "SELECT count(*) FROM pg_locks WHERE relation = 'leadership'::regclass AND mode = 'RowExclusiveLock'"


def test_a_transaction_of_a_machine_that_was_cut_off_in_the_middle_of_it_ends() -> None:
    needs.root()
    server = binaries()
    if server is None:
        needs.unmet("needs a PostgreSQL server: apt-get install postgresql")
    with Hosts(["head", "db"]) as hosts:
        database = HostedDatabase(hosts["db"], server)
        database.start()
        name = database.database()
        store = PostgresStore(database.url(name))
        store.open()
        script = [sys.executable, "-c", textwrap.dedent(IN_THE_MIDDLE), store.name]
        holder = hosts["head"].spawn(script, hosts["head"].directory / "log")
        wait_until(lambda: database.query(name, HELD) == [(1,)], START_S, what="the lock")
        hosts["head"].cut()
        for pid in hosts["head"].processes():
            hosts["head"].in_network("kill", "-9", str(pid))
        holder.wait(START_S)
        # The server hears of neither the cut nor the end of its client: nobody claims, and nobody has to.
        wait_until(lambda: database.query(name, HELD) == [(0,)], START_S, what="the lock to be let go of")
        store.close()
