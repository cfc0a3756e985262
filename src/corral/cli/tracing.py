"""`history --trace`: a pool's own history as a trace that `corral sim` can run again under another policy."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from corral.model.errors import PathNotFound
from corral.sim.formats.corral import lines_of

if TYPE_CHECKING:
    from corral.client import Client
    from corral.model.job import Job

PAGE = 1_000


def export(client: Client, target: str) -> int:
    """Write the trace of all jobs that ended; return the number of its jobs. Raises ``PathNotFound``."""
    lines = list(lines_of(ended(client)))
    if target == "-":
        sys.stdout.buffer.writelines(lines)
        sys.stdout.buffer.flush()
    else:
        try:
            Path(target).write_bytes(b"".join(lines))
        except OSError as error:
            raise PathNotFound(f"{target} cannot be written: {error.strerror}", field="--trace") from None
    return len(lines) - 1


def ended(client: Client) -> Iterator[Job]:
    """Yield the finished jobs of the pool with all their gangs, newest first."""
    before: int | None = None
    while True:
        page = client.jobs(live=False, finished=True, before=before, limit=PAGE)
        for one in page.jobs:
            for first in range(0, one.elements, PAGE):
                yield client.job(one.id, gangs_from=first, gangs_max=PAGE)
        if page.next_before is None:
            return
        before = page.next_before
