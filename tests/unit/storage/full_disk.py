"""Run alone, in a mount namespace of its own: fills a real file system of 2 MiB under a store; prints one JSON object.

``python full_disk.py DIRECTORY mounted`` has a tmpfs on DIRECTORY, ``limited`` limits the size of files instead.
"""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from pathlib import Path

from corral.model.errors import StateUnusable
from corral.model.ids import TenantId
from corral.ports.store import Batch, JobQuery, UsageRow
from corral.storage import SqliteStore
from tests.unit.storage.samples import ended, finished, lost

FILE_BYTES_MAX = 600_000


def fill(store: SqliteStore, epoch: int, last: int) -> tuple[int, StateUnusable]:
    """Append until it is refused; return the last acknowledged entry and the refusal."""
    while True:
        facts = tuple(ended(float(last + 1 + rank), message="x" * 500) for rank in range(7))
        batch = Batch(facts, finished=(finished(last),), usage=(UsageRow(TenantId("a"), 0, 1.0, 1.0),))
        try:
            last = store.append(last, epoch, batch)
        except StateUnusable as error:
            return last, error


def refusal(directory: Path) -> str:
    """Return why no store can be made here."""
    try:
        SqliteStore(directory / "corral.db").open()
    except StateUnusable as error:
        return error.code
    return ""


def main(directory: Path, how: str) -> dict[str, object]:
    ballast, unmade = directory / "ballast", "STORE_FULL"
    if how == "mounted":
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", directory], check=True)
        ballast.write_bytes(b"b" * 2_000_000)
        unmade = refusal(directory)
        ballast.write_bytes(b"b" * 800_000)
    else:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES_MAX, resource.RLIM_INFINITY))
    store = SqliteStore(directory / "corral.db")
    store.open()
    epoch = store.acquire_leadership()
    last, error = fill(store, epoch, 0)
    refused = [error.code]
    for _ in range(5):
        # Space may have come back: a new connection lets SQLite shorten its log.
        last, error = fill(store, epoch, last)
        refused.append(error.code)
    read_while_full = len(store.recover().entries)
    if how == "mounted":
        ballast.unlink()
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    after = store.append(last, epoch, Batch((lost(float(last + 1)),)))
    store.close()
    store = SqliteStore(directory / "corral.db")
    store.open()
    entries = store.recover().entries
    jobs = store.finished_jobs(JobQuery(limit=10_000))
    return {
        "last": last,
        "message": str(error),
        "unmade": unmade,
        "refused": refused,
        "read_while_full": read_while_full,
        "went_on": after == last + 1,
        "in_order": [entry.fact.at for entry in entries] == [float(seq) for seq in range(1, last + 2)],
        "finished": len(jobs),
        "usage": store.usage(0, 1, None)[0].gpu_milli_s,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]), sys.argv[2])))
