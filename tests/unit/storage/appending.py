"""Run alone and killed: appends for ever; prints each acknowledged entry on a line of its own."""

from __future__ import annotations

import random
import sys
from pathlib import Path

from corral.model.ids import TenantId
from corral.ports.store import Batch, UsageRow
from corral.storage import SqliteStore
from tests.unit.storage.samples import ended, finished

if __name__ == "__main__":
    chance = random.Random(int(sys.argv[2]))
    store = SqliteStore(Path(sys.argv[1]))
    store.open()
    epoch = store.acquire_leadership()
    recovered = store.recover()
    last = recovered.snapshot_seq + len(recovered.entries)
    while True:
        count = chance.randint(1, 5)
        facts = tuple(ended(float(last + 1 + rank), message="x" * chance.randint(0, 3000)) for rank in range(count))
        batch = Batch(facts, finished=(finished(last + 1),), usage=(UsageRow(TenantId("a"), 0, float(count), 0.0),))
        last = store.append(last, epoch, batch)
        sys.stdout.write(f"{last}\n")
        sys.stdout.flush()
        if chance.random() < 0.05:
            store.save_snapshot(last, b"state after %d" % last)
