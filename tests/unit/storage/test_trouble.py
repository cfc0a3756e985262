"""Full disks, read-only places and other processes: a clear message, nothing acknowledged lost, and on it goes."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from corral.model.errors import StateUnusable, StoreFull
from corral.ports.store import Batch
from corral.storage import SqliteStore
from tests import needs
from tests.unit.storage.samples import lost

ROOT = Path(__file__).resolve().parents[3]
NOBODY = 65534


def run(script: str | Path, *arguments: object, before: tuple[str, ...] = ()) -> dict:
    ended = subprocess.run(
        [*before, sys.executable, script, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@pytest.mark.parametrize("how,words", [("mounted", "the disk is full"), ("limited", "file size limit")])
def test_a_full_disk_refuses_keeps_everything_and_goes_on_when_there_is_space(
    tmp_path: Path, how: str, words: str
) -> None:
    before: tuple[str, ...] = ()
    if how == "mounted":
        needs.root()
        before = (needs.program("unshare", package="util-linux"), "--mount", "--propagation", "private")
    told = run(Path(__file__).with_name("full_disk.py"), tmp_path, how, before=before)
    assert told["last"] > 50
    assert set(told["refused"]) == {"STORE_FULL" if how == "mounted" else "STATE_UNUSABLE"}
    assert words in told["message"]
    assert told["unmade"] == "STORE_FULL"
    assert told["read_while_full"] == told["last"]
    assert told["went_on"]
    assert told["in_order"]
    batches = told["last"] // 7
    assert (told["finished"], told["usage"]) == (batches, batches)


def test_a_database_at_its_largest_refuses_and_goes_on(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "corral.db")
    store.open()
    epoch = store.acquire_leadership()
    assert store._writer is not None
    store._writer.exec_driver_sql("PRAGMA max_page_count = 40")
    store._writer.rollback()
    last = 0
    refusal = None
    while refusal is None:
        try:
            last = store.append(last, epoch, Batch((lost(float(last + 1), "n" * 1000),)))
        except StoreFull as error:
            refusal = str(error)
    assert "the disk is full" in refusal
    assert "nothing is lost" in refusal
    assert last > 10
    assert [entry.seq for entry in store.recover().entries] == list(range(1, last + 1))
    more = tuple(lost(1.0, "n" * 1000) for _ in range(20))
    assert store.append(last, epoch, Batch(more)) == last + 20, "the limit was the old connection's"
    store.close()


def test_a_missing_state_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(StateUnusable, match=r"state directory .*/nowhere does not exist"):
        SqliteStore(tmp_path / "nowhere" / "corral.db").open()


def test_a_read_only_file_system_is_refused(tmp_path: Path) -> None:
    needs.root()
    unshare = needs.program("unshare", package="util-linux")
    SqliteStore(tmp_path / "corral.db").open()
    script = tmp_path / "attempt.py"
    script.write_text(
        "import json, subprocess, sys\n"
        "from pathlib import Path\n"
        "from corral.model.errors import StateUnusable\n"
        "from corral.storage import SqliteStore\n"
        "place = Path(sys.argv[1])\n"
        "subprocess.run(['mount', '--bind', place, place], check=True)\n"
        "subprocess.run(['mount', '-o', 'remount,bind,ro', place], check=True)\n"
        "told = []\n"
        "for name in ('corral.db', 'new.db'):\n"
        "    try:\n"
        "        SqliteStore(place / name).open()\n"
        "    except StateUnusable as error:\n"
        "        told.append(str(error))\n"
        "print(json.dumps({'told': told}))\n"
    )
    told = run(script, tmp_path, before=(unshare, "--mount", "--propagation", "private"))["told"]
    assert len(told) == 2
    assert all("is on a read-only file system" in message for message in told)


@pytest.mark.parametrize("what", ["directory", "file"])
def test_a_place_that_this_user_cannot_write_is_named(state_dir: Path, what: str) -> None:
    path = state_dir / "corral.db"
    store = SqliteStore(path)
    store.open()
    store.close()
    place, mode = (state_dir, 0o555) if what == "directory" else (path, 0o444)
    place.chmod(mode)
    if os.geteuid() != 0:
        with pytest.raises(StateUnusable, match=f"{place} cannot be written by this user"):
            SqliteStore(path).open()
        place.chmod(0o700)
        return
    if what == "file":
        state_dir.chmod(0o777)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setuid(NOBODY)
            SqliteStore(path).open()
        except StateUnusable as error:
            status = 0 if f"{place} cannot be written by this user" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_files_are_private(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "corral.db")
    store.open()
    store.acquire_leadership()
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    store.close()
    assert modes == {"corral.db": 0o600, "corral.db-wal": 0o600, "corral.db-shm": 0o600}


def test_another_process_that_keeps_the_lock_is_told_apart_and_waited_out(tmp_path: Path) -> None:
    path = tmp_path / "corral.db"
    store = SqliteStore(path, busy_timeout_s=0.05)
    store.open()
    epoch = store.acquire_leadership()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StateUnusable, match="another process kept it locked"):
        store.append(0, epoch, Batch((lost(1.0),)))
    with pytest.raises(StateUnusable, match="another process kept it locked"):
        SqliteStore(path, busy_timeout_s=0.05).open()
    assert store.recover().entries == ()
    other.execute("ROLLBACK")
    other.close()
    assert store.append(0, epoch, Batch((lost(1.0),))) == 1
    store.close()


@pytest.mark.parametrize("name", ["100%.db", "a?b#c.db", "sp ace é.db"])
def test_any_file_name_will_do(tmp_path: Path, name: str) -> None:
    store = SqliteStore(tmp_path / name)
    store.open()
    store.append(0, store.acquire_leadership(), Batch((lost(1.0),)))
    store.close()
    assert [path.name for path in tmp_path.iterdir()] == [name]
    store.open()
    assert len(store.recover().entries) == 1
    store.close()


def test_every_commit_is_synced(tmp_path: Path) -> None:
    """The durability that is promised rests on these settings."""
    store = SqliteStore(tmp_path / "corral.db")
    store.open()
    assert store._writer is not None
    settings = {
        name: store._writer.exec_driver_sql(f"PRAGMA {name}").scalar()
        for name in ("journal_mode", "synchronous", "foreign_keys")
    }
    store.close()
    assert settings == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}
