"""What the doctor finds on a fresh machine, in a spoilt state directory, and beside a pool."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3

import pytest
from msgspec.structs import replace

from bench import postgres
from corral.model.report import HeadReport, PoolStatus
from corral.model.resources import Amount
from corral.runtime import doctor
from corral.runtime.doctor import examine
from corral.runtime.doctor_machines import Finding, controllers
from corral.runtime.poolfile import load_pool, save_pool
from tests.unit.runtime.ground import Ground
from tests.waiting import wait_until

STATUS = PoolStatus(
    version="1",
    pid=1,
    url="https://a:7420",
    started_at=0.0,
    now=100.0,
    epoch=1,
    seq=1,
    nodes_up=0,
    nodes=0,
    devices=0,
    devices_failed=0,
    simulated_devices=0,
    capacity=Amount(),
    held=Amount(),
    running_gangs=0,
    pending_gangs=0,
    waiting_jobs=0,
    finished_jobs=0,
    cpu_pool=True,
    clock_offset_s=0.0,
)


def findings(ground: Ground) -> dict[str, Finding]:
    return {finding.check: finding for finding in examine(ground.paths.root)}


def test_a_fresh_directory_is_fine_and_every_check_answers(ground: Ground) -> None:
    found = findings(ground)
    assert {"python", "state directory", "disk", "settings", "cgroup", "open files", "pool"} <= found.keys()
    assert [finding.check for finding in found.values() if finding.ok is False] == []
    assert (found["pool"].ok, found["pool"].detail) == (None, "not running")
    ground.paths.root.rename(ground.paths.root.with_name("moved"))
    try:
        assert "is made by `corral up`" in findings(ground)["state directory"].detail
    finally:
        ground.paths.root.with_name("moved").rename(ground.paths.root)


def test_open_doors_and_wrong_settings_are_named_with_the_remedy(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground.paths.root.chmod(0o755)
    ground.paths.token.write_text("secret")
    ground.paths.token.chmod(0o644)
    (ground.paths.root / "config.toml").write_text("jobs_max = 0\n")
    ground.paths.failure.write_text(json.dumps({"code": "PORT_TAKEN", "message": "port 1 is taken", "fatal": True}))
    monkeypatch.setattr(doctor, "DISK_FREE_MIB_MIN", 1 << 40)
    found = findings(ground)
    assert found["state directory"] == Finding(
        "state directory", ok=False, detail=f"{ground.paths.root}, mode 755", hint=f"chmod 700 {ground.paths.root}"
    )
    assert found["token file"].hint == f"chmod 600 {ground.paths.token}"
    assert found["settings"].ok is False
    assert "jobs_max" in found["settings"].detail
    assert found["disk"].ok is False
    assert found["pool"].ok is False
    assert "PORT_TAKEN: port 1 is taken" in found["pool"].detail
    assert "{" not in found["pool"].detail


def test_a_pool_is_looked_at_from_outside(ground: Ground) -> None:
    ground.write(agents=True)
    supervisor = ground.supervisor()
    ground.announced()

    wait_until(lambda: "1 of 1 nodes up" in findings(ground)["pool"].detail, 30.0)
    found = findings(ground)
    assert found["pool"].ok is True
    assert (found["devices"].ok, found["devices"].detail) == (True, "1 known, 0 failed")
    assert found["clock"].ok is True
    # The token does not fit: the API answers, but not to us.
    secret = ground.paths.token.read_text()
    ground.paths.token.write_text("corral_other")
    unknown = findings(ground)["pool"]
    assert unknown.ok is False
    assert f"supervisor {supervisor.pid} lives" in unknown.detail
    ground.paths.token.write_text(secret)
    ground.end(supervisor)
    assert findings(ground)["pool"].detail == "not running"


def test_a_database_that_is_away_and_a_silent_head_are_wrong() -> None:
    heads = (
        HeadReport("a", "https://a:7420", leads=True, seen_s=40.0),
        HeadReport("b", "https://b:7420", leads=False, seen_s=9.0),
        HeadReport("c", "https://c:7420", leads=False, seen_s=35.0),
    )
    quiet = replace(STATUS, heads=heads[:2])
    assert [(one.check, one.ok) for one in controllers(quiet)] == [("database", True)]
    found = controllers(replace(STATUS, heads=heads, store_away_s=12.0))
    assert [(one.check, one.ok) for one in found] == [("database", False), ("head c", False)]
    assert "12 s" in found[0].detail
    assert found[1].detail == "at https://c:7420 was last heard 35 s ago"
    assert controllers(STATUS) == []


def test_a_database_that_stops_is_found_though_nobody_writes(
    ground: Ground, postgres_cluster: postgres.Cluster, database_url: str
) -> None:
    def database() -> bool | None:
        found = findings(ground)
        return found["database"].ok if "database" in found else None

    ground.write()
    save_pool(ground.paths.pool, replace(load_pool(ground.paths.pool), store=database_url))
    supervisor = ground.supervisor()
    ground.announced()
    wait_until(lambda: database() is True, 30.0, what="the head to lead")
    postgres_cluster.stop()
    try:
        wait_until(lambda: database() is False, 30.0, what="the database to be missed")
    finally:
        postgres_cluster.start()
    wait_until(lambda: database() is True, 30.0, what="the database to be heard again")
    ground.end(supervisor)


def test_a_damaged_journal_is_found_before_the_start(ground: Ground) -> None:
    ground.write()
    daemon = ground.daemon()
    ground.announced()
    ground.end(daemon)
    assert findings(ground)["journal"].ok is True
    whole = ground.paths.store.read_bytes()
    ground.paths.store.write_bytes(whole[:4096] + os.urandom(4096) + whole[8192:])
    found = findings(ground)["journal"]
    assert (found.ok, found.detail.startswith("STORE_CORRUPT: ")) == (False, True)
    ground.paths.store.write_bytes(whole)
    with contextlib.closing(sqlite3.connect(ground.paths.store)) as connection, connection:
        connection.execute("DELETE FROM snapshots")
        connection.execute("UPDATE journal SET crc = crc + 1 WHERE seq = (SELECT max(seq) FROM journal)")
    found = findings(ground)["journal"]
    assert found.ok is False
    assert re.fullmatch(r"STORE_CORRUPT: journal entry \d+ is damaged: its checksum does not match", found.detail)
