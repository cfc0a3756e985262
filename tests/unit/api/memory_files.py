"""The files of a pool without a controller: blobs and logs in real directories, and what nodes gave back in a list."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from corral.model.errors import Stale
from corral.model.files import LogPiece
from corral.model.ids import NodeId
from corral.ports.files import Return, Terms
from corral.ports.pool import Principal
from corral.storage.blobs import DirectoryBlobs, DirectoryLogs


class MemoryFiles:
    """Implements ``ports.files.Files``. ``asked`` counts how many blobs were asked for."""

    def __init__(self, root: Path, terms: Terms | None = None) -> None:
        self.blobs = DirectoryBlobs(root / "blobs")
        self.logs = DirectoryLogs(root / "logs", 1 << 20)
        self.allowed = terms or Terms(travel=True, upload_max_mib=1)
        self.returned: list[Return] = []
        self.stale = False
        self.sent = 0
        self.fetched = 0

    def terms(self, who: Principal) -> Terms:
        return self.allowed

    async def missing(self, who: Principal, names: Sequence[str]) -> list[str]:
        return sorted(self.blobs.missing(names))

    async def put(self, who: Principal, blobs: Sequence[bytes]) -> None:
        self.sent += len(blobs)
        self.blobs.put(blobs)

    async def get(self, who: Principal, names: Sequence[str]) -> list[bytes | None]:
        """Give three at a time: who wants more asks again."""
        found = self.blobs.get(names[:3])
        self.fetched += len(found)
        return found

    async def give_back(self, who: Principal, what: Return) -> None:
        if self.stale:
            raise Stale("it was started again elsewhere")
        self.returned.append(what)

    async def add_logs(self, who: Principal, node: NodeId, pieces: Sequence[LogPiece]) -> list[int]:
        return [-1 if self.stale else self.logs.append(piece) for piece in pieces]
