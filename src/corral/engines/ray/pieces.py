"""What travels between a bridge and a relay, and between a bridge and its engine."""

from __future__ import annotations

import msgspec

from corral.model.ids import NodeId, TaskKey
from corral.wire.frames import HEADER_BYTES

# Ray sends arguments and results below 100 KiB inside of the call; larger ones take the way through its object store,
# which needs the GCS.
CALL_BYTES_MAX = 80 << 10
# Who has this much waiting on one side is not read from on the other.
WAITING_BYTES_MAX = 8 << 20

Piece = tuple[int, bytes]
"""Bytes of the tunnel with this number, as they came; empty when the tunnel is closed."""

LogTold = tuple[int, bytes, bool]
"""The offset of the first byte, the bytes, and whether the log is complete with them."""


class ReadLog(msgspec.Struct, frozen=True, tag=True):
    """Ask a node for a piece of a log; one that has nothing new yet waits up to ``wait_s`` for it."""

    number: int
    node: NodeId
    task: TaskKey
    incarnation: int
    offset: int
    limit: int
    wait_s: float


class FenceNode(msgspec.Struct, frozen=True, tag=True):
    """Ask a node's machine to kill everything of it, and to say whether that is proven. ``machine`` is its id."""

    number: int
    node: NodeId
    machine: str = ""


class LogRead(msgspec.Struct, frozen=True, tag=True):
    """The piece that was asked for; ``None`` when there is no such log."""

    number: int
    told: LogTold | None


class NodeFenced(msgspec.Struct, frozen=True, tag=True):
    """Whether it is proven that nothing of the node is left; ``None``: its agent lives, and was left alone."""

    number: int
    proven: bool | None


class NotReached(msgspec.Struct, frozen=True, tag=True):
    """The node's machine did not answer."""

    number: int
    reason: str


Question = ReadLog | FenceNode
Reply = LogRead | NodeFenced | NotReached

_encoder = msgspec.msgpack.Encoder()
question_decoder: msgspec.msgpack.Decoder[Question] = msgspec.msgpack.Decoder(Question)
reply_decoder: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


def framed(message: Question | Reply) -> bytes:
    """Return the frame of a message between bridge and engine."""
    payload = _encoder.encode(message)
    return len(payload).to_bytes(HEADER_BYTES, "big") + payload


class Outbox:
    """Pieces that wait for a call, cut to what one call carries."""

    def __init__(self) -> None:
        self._pieces: list[Piece] = []
        self.size = 0

    def put(self, tunnel: int, data: bytes) -> None:
        """Add bytes of a tunnel; none at all close it."""
        view = memoryview(data)
        for begin in range(0, max(1, len(data)), CALL_BYTES_MAX):
            self._pieces.append((tunnel, bytes(view[begin : begin + CALL_BYTES_MAX])))
        self.size += len(data)

    def take(self) -> list[Piece]:
        """Return the oldest pieces that fit into one call."""
        count = size = 0
        for _, data in self._pieces:
            if count and size + len(data) > CALL_BYTES_MAX:
                break
            size += len(data)
            count += 1
        taken, self._pieces = self._pieces[:count], self._pieces[count:]
        self.size -= size
        return taken

    def forget(self, tunnel: int) -> None:
        """Forget the pieces of a tunnel."""
        self.size -= sum(len(data) for number, data in self._pieces if number == tunnel)
        self._pieces = [piece for piece in self._pieces if piece[0] != tunnel]

    def clear(self) -> None:
        """Forget all of them."""
        self._pieces.clear()
        self.size = 0

    def __bool__(self) -> bool:
        return bool(self._pieces)
