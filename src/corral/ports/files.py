"""Where travelling files and logs that came back are kept, and what the API asks for them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import msgspec

from corral.model.files import LogPiece, ReturnKind
from corral.model.ids import NodeId, TaskKey
from corral.ports.engine import LogChunk
from corral.ports.pool import Principal


class BlobStore(Protocol):
    """Blobs by the hash of their content (:mod:`corral.wire.trees`). Every method blocks; threads may share it.

    Errors: ``StoreFull``, ``StateUnusable``, ``Unavailable``.
    """

    def put(self, blobs: Sequence[bytes]) -> None:
        """Keep blobs durably; those that are there count as used now."""

    def get(self, names: Sequence[str], bytes_max: int | None = None) -> list[bytes | None]:
        """Return blobs, ``None`` for those that are not there.

        With ``bytes_max`` it is the first of them, at least one: as many as have no more bytes together.
        """

    def missing(self, names: Collection[str]) -> set[str]:
        """Return those that are not there; the others count as used now."""

    def names(self) -> list[str]:
        """Return the names of all blobs."""

    def sweep(self, unused_since: float) -> int:
        """Delete what was not used since a time (epoch seconds); return how many."""

    def close(self) -> None:
        """Let go of it."""


class LogStore(Protocol):
    """Copies of logs. Every method blocks; threads may share it. Errors as those of :class:`BlobStore`."""

    def append(self, piece: LogPiece) -> int:
        """Add a piece and return the offset of the end of what is kept.

        Bytes that are there already are skipped. After a gap the log begins anew at the piece, as after a rotation.
        """

    def read(self, task: TaskKey, incarnation: int, offset: int, limit: int) -> LogChunk | None:
        """Return up to ``limit`` bytes from ``offset`` on, ``None`` when there is no such log."""

    def sweep(self, unused_since: float) -> int:
        """Delete logs that nothing was added to since a time (epoch seconds); return how many."""


class Terms(msgspec.Struct, frozen=True):
    """What a pool allows: whether files travel at all, how large they may be, and which paths all nodes see anyway."""

    travel: bool = False
    upload_max_mib: int = 0
    shared_paths: tuple[str, ...] = ()


class Return(msgspec.Struct, frozen=True):
    """A node gives back what a task made or saved: the tree is in the blob store already, and says its size itself."""

    node: NodeId
    task: TaskKey
    incarnation: int
    what: ReturnKind
    tree: str
    size_bytes: int = 0


class Files(Protocol):
    """The files of a pool as the API sees them. Everybody may bring and get blobs: a name is the key to its content."""

    def terms(self, who: Principal) -> Terms:
        """Return what the pool allows."""

    async def missing(self, who: Principal, names: Sequence[str]) -> list[str]:
        """Return the blobs that have to be sent; the others stay for a while."""

    async def put(self, who: Principal, blobs: Sequence[bytes]) -> None:
        """Keep blobs."""

    async def get(self, who: Principal, names: Sequence[str]) -> list[bytes | None]:
        """Return the first blobs, as many as fit into a pack; ``None`` for those that are not there."""

    async def give_back(self, who: Principal, what: Return) -> None:
        """Take the outputs or the checkpoint of a running task (nodes).

        Raises ``Stale`` when the task has ended, runs elsewhere or was started again, ``FilesMissing`` when its blobs
        are not there.
        """

    async def add_logs(self, who: Principal, node: NodeId, pieces: Sequence[LogPiece]) -> list[int]:
        """Keep pieces of logs (nodes); return for each how far its log is kept, -1 where it is refused."""
