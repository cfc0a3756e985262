"""``daemon.json``: what a running daemon tells the clients of its machine, the other heads included."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from msgspec.structs import replace

from corral.control.pool import Identity
from corral.ports.leadership import Head
from corral.runtime.machines.cluster import certificate_file
from corral.runtime.machines.tls import first_certificate
from corral.runtime.paths import StatePaths
from corral.runtime.poolfile import PoolFile, save_pool
from corral.runtime.wholefile import write_whole

LOOK_S = 1.0
log = logging.getLogger("corral.daemon")


class Announcement:
    """The file of one daemon."""

    def __init__(self, paths: StatePaths, asked: PoolFile) -> None:
        self._paths = paths
        self._asked = asked

    async def keep(self, identity: Identity, heads: Callable[[], Sequence[Head]]) -> None:
        """Write it again where somebody removed it, for without it nobody finds the pool, and when heads change."""
        announced: list[tuple[str, str]] = []
        while True:
            await asyncio.sleep(LOOK_S)
            known = [(head.url, head.certificate) for head in heads()]
            if not self._paths.daemon.exists() or known != announced:
                try:
                    self.write(identity, heads())
                    announced = known
                except OSError as error:
                    log.warning("cannot write %s: %s", self._paths.daemon, error)

    def write(self, identity: Identity, heads: Sequence[Head]) -> None:
        """Write the file. Raises ``OSError``."""
        port = urlsplit(identity.url).port
        document = {
            "url": identity.url,
            "pid": identity.pid,
            "port": port,
            "started_at": identity.started_at,
            "version": identity.version,
            "tls_cert": self._asked.tls_cert,
            "heads": [self._head(head) for head in heads if head.url != identity.url],
        }
        write_whole(self._paths.daemon, json.dumps(document).encode())
        if self._asked.bound_port != port:
            self._asked = replace(self._asked, bound_port=port)
            save_pool(self._paths.pool, self._asked)
        self._paths.failure.unlink(missing_ok=True)

    def _head(self, head: Head) -> dict[str, str | None]:
        """Return where another head answers, and a file with its certificate."""
        return {"url": head.url, "tls_cert": certificate_file(self._paths.tls, head.certificate)}


def certificate_of(path: str | None) -> str:
    """Return the first certificate of a PEM file, which is the server's own; empty without a file."""
    if path is None:
        return ""
    with contextlib.suppress(ValueError):
        return first_certificate(Path(path).read_text())
    return ""
