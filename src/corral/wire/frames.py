"""Frames between the agents and the local engine: a length of four bytes (big endian), then one MessagePack value.

Bytes in, bytes out: who reads and writes the socket is none of this module's business. Both ends are of the same
release in practice; ``Hello.protocol`` says so before anything else is believed.
"""

from __future__ import annotations

import msgspec

from corral.model.messages import AgentSays, ControllerSays

HEADER_BYTES = 4
# A HostMaster carries a whole job: 100,000 array elements with their parameters stay below this.
FRAME_BYTES_MAX = 64 << 20


class FrameError(ValueError):
    """The peer does not speak this protocol: a frame is too long, or its content is no message."""


class Refused(msgspec.Struct, frozen=True, tag_field="type", tag="refused"):
    """Why the engine closes the connection: another protocol, or a node that it does not know."""

    reason: str


EngineAnswers = ControllerSays | Refused

_encoder = msgspec.msgpack.Encoder()
_agent_decoder: msgspec.msgpack.Decoder[AgentSays] = msgspec.msgpack.Decoder(AgentSays)
_engine_decoder: msgspec.msgpack.Decoder[EngineAnswers] = msgspec.msgpack.Decoder(EngineAnswers)


def frame(message: AgentSays | EngineAnswers) -> bytes:
    """Return the frame of a message. Raises :class:`FrameError` when it is too long to be accepted."""
    buffer = bytearray(HEADER_BYTES)
    _encoder.encode_into(message, buffer, HEADER_BYTES)
    size = len(buffer) - HEADER_BYTES
    if size > FRAME_BYTES_MAX:
        raise FrameError(f"a message of {size} bytes is longer than {FRAME_BYTES_MAX}")
    buffer[:HEADER_BYTES] = size.to_bytes(HEADER_BYTES, "big")
    return bytes(buffer)


def agent_message(payload: bytes) -> AgentSays:
    """Return what an agent said. Raises :class:`FrameError`."""
    try:
        return _agent_decoder.decode(payload)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise FrameError(f"no message of an agent: {error}") from None


def engine_message(payload: bytes) -> EngineAnswers:
    """Return what the engine said. Raises :class:`FrameError`."""
    try:
        return _engine_decoder.decode(payload)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise FrameError(f"no message of the engine: {error}") from None


class FrameBuffer:
    """Cuts a byte stream into the payloads of its frames."""

    def __init__(self, size_max: int = FRAME_BYTES_MAX) -> None:
        self._size_max = size_max
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Take in the next bytes and return the payloads that are complete now, in order.

        Raises :class:`FrameError` as soon as a length is out of bounds: the stream is of no use from there on.
        """
        rest = self._rest
        rest += data
        payloads = []
        begin = 0
        while len(rest) - begin >= HEADER_BYTES:
            size = int.from_bytes(rest[begin : begin + HEADER_BYTES], "big")
            if not 0 < size <= self._size_max:
                raise FrameError(f"a frame announces {size} bytes, 1 to {self._size_max} are allowed")
            end = begin + HEADER_BYTES + size
            if len(rest) < end:
                break
            payloads.append(bytes(rest[begin + HEADER_BYTES : end]))
            begin = end
        if begin:
            del rest[:begin]
        return payloads
