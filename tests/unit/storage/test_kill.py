"""kill -9 at any moment: nothing acknowledged is missing, nothing is there in part."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

from corral.ports.store import JobQuery
from corral.storage import SqliteStore

ROOT = Path(__file__).resolve().parents[3]
KILLS = 10


def test_ten_kills_lose_nothing_acknowledged(tmp_path: Path) -> None:
    path, chance, acknowledged = tmp_path / "corral.db", random.Random(7), 0
    for kill in range(KILLS):
        with subprocess.Popen(
            [sys.executable, Path(__file__).with_name("appending.py"), path, str(kill)],
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
            stdout=subprocess.PIPE,
            text=True,
        ) as writer:
            assert writer.stdout is not None
            for _ in range(chance.randint(1, 150)):
                acknowledged = int(writer.stdout.readline())
            writer.kill()
            for line in writer.stdout:
                acknowledged = int(line) if line.endswith("\n") else acknowledged
        store = SqliteStore(path)
        store.open()
        recovered = store.recover()
        last = recovered.snapshot_seq + len(recovered.entries)
        assert acknowledged <= last <= acknowledged + 5
        assert recovered.snapshot in (None, b"state after %d" % recovered.snapshot_seq)
        entries = store.entries_after(0, 100_000)
        assert [(entry.seq, entry.fact.at) for entry in entries] == [(seq, float(seq)) for seq in range(1, last + 1)]
        assert store.usage(0, 1, None)[0].gpu_milli_s == last
        numbers = {job.number for job in store.finished_jobs(JobQuery(limit=100_000))}
        assert max(numbers) <= last
        store.close()
    assert acknowledged > KILLS
