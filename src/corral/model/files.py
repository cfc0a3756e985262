"""Files that travel: what a job brings to its nodes, and what comes back from them.

A *tree* is a directory by the hash of its content (see :mod:`corral.wire.trees`), written as 64 hex digits.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from corral.model.ids import TaskKey


class JobFiles(msgspec.Struct, frozen=True):
    """The files that a job brings along.

    Attributes:
        tree: The working directory with the mounts laid over it, or the mounts alone.
        workdir: Whether the working directory is in the tree; else it is a path of the nodes, or none.
        targets: The mounts that are in the tree; the others are paths of the nodes.
    """

    tree: str
    workdir: bool = True
    targets: tuple[str, ...] = ()


class ReturnKind(StrEnum):
    """What comes back from a node: what a task made, or what it goes on from after a restart."""

    OUTPUTS = "outputs"
    CHECKPOINT = "checkpoint"


class Returned(msgspec.Struct, frozen=True):
    """A tree that a task's node gave back. ``at`` is in seconds since the epoch, ``size_bytes`` all its files'."""

    rank: int
    incarnation: int
    tree: str
    at: float
    size_bytes: int = 0


class LogPiece(msgspec.Struct, frozen=True):
    """A piece of the log of one start of a task: ``data`` begins at byte ``offset``; ``complete``: no more comes."""

    task: TaskKey
    incarnation: int
    offset: int
    data: bytes
    complete: bool = False


def with_returned(before: tuple[Returned, ...], new: Returned, ranks: int) -> tuple[Returned, ...]:
    """Return the newest trees of all ranks, the newest incarnation first, then by rank.

    A rank that the gang no longer has (an elastic one shrank) is forgotten.
    """
    kept = [old for old in before if old.rank != new.rank and old.rank < ranks]
    return tuple(sorted((*kept, new), key=lambda one: (-one.incarnation, one.rank)))
