"""Sum of vectors over the ranks of a gang by TCP: rank 0 gathers in the order of the ranks, adds up and sends back.

The order of the additions is fixed, so the sum is the same bit by bit in every run. A rank that ends or hangs makes
every other rank fail within a time limit, never wait for ever.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from demo import task

_LENGTH = struct.Struct("!I")
_MESSAGE_BYTES_MAX = 64 * 1024 * 1024
_HELLO_S = 2.0
_RETRY_S = 0.1


class PeerLostError(ConnectionError):
    """Another rank of the gang ended, hangs or never came."""


class Place(NamedTuple):
    """Where this process stands in its gang, and how long it waits for the others."""

    job: str
    rank: int
    ranks: int
    incarnation: int
    address: str
    port: int
    join_s: float
    step_s: float


def _send(peer: socket.socket, body: bytes) -> None:
    peer.sendall(_LENGTH.pack(len(body)) + body)


def _receive(peer: socket.socket) -> bytes:
    (length,) = _LENGTH.unpack(_receive_exactly(peer, _LENGTH.size))
    if length > _MESSAGE_BYTES_MAX:
        raise ConnectionError(f"a message of {length} bytes is no part of the training")
    return _receive_exactly(peer, length)


def _receive_exactly(peer: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = peer.recv(size - len(parts))
        if not part:
            raise ConnectionError("the connection was closed")
        parts += part
    return bytes(parts)


def _hello_of(peer: socket.socket, place: Place) -> tuple[int, int] | None:
    """Rank and incarnation of who connected, None for a stranger."""
    try:
        hello: Any = json.loads(_receive(peer))
        rank, incarnation = int(hello["rank"]), int(hello["incarnation"])
        known = hello["job"] == place.job and 0 < rank < place.ranks
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return (rank, incarnation) if known else None


class Gang:
    """The connections of one rank: rank 0 has one to each other rank, the others have one to rank 0."""

    def __init__(self, place: Place) -> None:
        """Join; returns when all ranks are there.

        Raises:
            PeerLostError: a rank is not there within `place.join_s`.
            OSError: rank 0 cannot listen at its address.
        """
        self.place = place
        self._peers: dict[int, socket.socket] = self._gather() if place.rank == 0 else {0: self._connect()}
        for peer in self._peers.values():
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer.settimeout(place.join_s)

    def _gather(self) -> dict[int, socket.socket]:
        place = self.place
        deadline_s = time.monotonic() + place.join_s
        joined: dict[int, tuple[int, socket.socket]] = {}
        with socket.create_server((place.address, place.port), backlog=place.ranks * 2) as server:
            while len(joined) < place.ranks - 1:
                server.settimeout(max(deadline_s - time.monotonic(), 0.001))
                try:
                    peer, _ = server.accept()
                except TimeoutError:
                    absent = [str(rank) for rank in range(1, place.ranks) if rank not in joined]
                    raise PeerLostError(f"no word from rank {', '.join(absent)} in {place.join_s:g} s") from None
                peer.settimeout(_HELLO_S)
                hello = _hello_of(peer, place)
                if hello is None:
                    peer.close()
                    continue
                rank, incarnation = hello
                known = joined.get(rank)
                # A rank of an earlier life of the gang may still be knocking: the youngest counts.
                if known is not None and known[0] >= incarnation:
                    peer.close()
                    continue
                if known is not None:
                    known[1].close()
                joined[rank] = (incarnation, peer)
        return {rank: joined[rank][1] for rank in sorted(joined)}

    def _connect(self) -> socket.socket:
        place = self.place
        deadline_s = time.monotonic() + place.join_s
        while True:
            with contextlib.suppress(ConnectionError, TimeoutError):
                peer = socket.create_connection((place.address, place.port), timeout=_HELLO_S)
                # A connection to a free local port can meet itself.
                if peer.getsockname() != peer.getpeername():
                    hello = {"job": place.job, "rank": place.rank, "incarnation": place.incarnation}
                    _send(peer, json.dumps(hello).encode())
                    return peer
                peer.close()
            if time.monotonic() > deadline_s:
                raise PeerLostError(f"rank 0 does not listen at {place.address}:{place.port} in {place.join_s:g} s")
            time.sleep(_RETRY_S)

    def _lost(self, rank: int, error: OSError) -> PeerLostError:
        cause = "it says nothing" if isinstance(error, TimeoutError) else "its connection broke"
        return PeerLostError(f"rank {rank} is lost: {cause}")

    def broadcast(self, body: bytes) -> bytes:
        """Give rank 0's bytes to every rank; raises PeerLostError."""
        if self.place.rank == 0:
            for rank, peer in self._peers.items():
                try:
                    _send(peer, body)
                except OSError as error:
                    raise self._lost(rank, error) from error
            return body
        try:
            return _receive(self._peers[0])
        except OSError as error:
            raise self._lost(0, error) from error

    def started(self) -> None:
        """From here on each answer must come within `place.step_s`."""
        for peer in self._peers.values():
            peer.settimeout(self.place.step_s)

    def sum(self, vector: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sum over all ranks of vectors of one length, added in the order of the ranks; raises PeerLostError."""
        if self.place.rank != 0:
            try:
                _send(self._peers[0], vector.tobytes())
            except OSError as error:
                raise self._lost(0, error) from error
            return np.frombuffer(self.broadcast(b""), dtype=np.float64)
        total = vector.copy()
        for rank, peer in self._peers.items():
            try:
                part = np.frombuffer(_receive(peer), dtype=np.float64)
            except OSError as error:
                raise self._lost(rank, error) from error
            if part.shape != total.shape:
                raise PeerLostError(f"rank {rank} is lost: it sent {part.size} numbers instead of {total.size}")
            total += part
        self.broadcast(total.tobytes())
        return total

    def close(self) -> None:
        """Close the connections; the other ranks notice at once."""
        for peer in self._peers.values():
            peer.close()


def place_from_environment(step_extra_s: float) -> Place:
    """The variables that a gang's task is started with; `step_extra_s` is added to the time limit of a step."""
    ranks = task.integer("NNODES", at_least=1)
    return Place(
        job=task.text("CORRAL_JOB"),
        rank=task.integer("NODE_RANK", below=ranks),
        ranks=ranks,
        incarnation=task.integer("CORRAL_INCARNATION", 0),
        address=task.text("MASTER_ADDR"),
        port=task.integer("MASTER_PORT", at_least=1, below=65536),
        join_s=task.number("JOIN_TIMEOUT_SECONDS", 30.0, at_least=0.1),
        step_s=task.number("STEP_TIMEOUT_SECONDS", 10.0, at_least=0.1) + step_extra_s,
    )
