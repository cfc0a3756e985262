"""Pieces of logs on their way from a node: a pack whose first blob says in JSON what the others are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from corral.model.errors import FilesDamaged, InvalidField
from corral.model.files import LogPiece
from corral.model.ids import NodeId, TaskKey
from corral.wire.trees import pack, unpack


class _Piece(msgspec.Struct, frozen=True):
    task: str
    incarnation: Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]
    offset: Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]
    complete: bool = False


class _Head(msgspec.Struct, frozen=True):
    node: str
    pieces: tuple[_Piece, ...]


def pack_of_logs(node: NodeId, pieces: Sequence[LogPiece]) -> bytes:
    """Return pieces of logs as one pack."""
    head = _Head(node, tuple(_Piece(str(one.task), one.incarnation, one.offset, one.complete) for one in pieces))
    return pack([msgspec.json.encode(head), *(one.data for one in pieces)])


def logs_of_pack(data: bytes) -> tuple[NodeId, list[LogPiece]]:
    """Return the node and the pieces of a pack. Raises ``InvalidField`` when it is none."""
    try:
        first, *blobs = unpack(data)
        head = msgspec.json.decode(first or b"", type=_Head)
        return NodeId(head.node), [
            LogPiece(TaskKey.parse(said.task), said.incarnation, said.offset, blob or b"", said.complete)
            for said, blob in zip(head.pieces, blobs, strict=True)
        ]
    except (FilesDamaged, msgspec.MsgspecError, ValueError) as error:
        raise InvalidField(f"is no pack of logs: {error}", field="body") from None
