"""What a front end says of its proxy, whatever is routed."""

from __future__ import annotations

from pathlib import Path

import msgspec

BUFFER_BYTES = 16 * 1024
"""A buffer of the proxy. Each request that may be sent again is copied with all of its buffer, however short it is:
1 MB instead of 16 KB takes 0.9 ms of CPU for each request instead of 0.06 (measured with HAProxy 2.8.25)."""

BODY_SHORT_BYTES = 8 * 1024
"""A body that is no longer fits into such a buffer, with 7 KB of headers: it is waited for, read and sent again."""

BODY_HELD_BYTES = 1024 * 1024
"""A longer one goes through a second process, which holds up to so many bytes until they are complete."""

HOLD_BUFFER_BYTES = BODY_HELD_BYTES + 64 * 1024
HELD_AT_ONCE_MAX = 500
"""Two buffers for each: 1.1 GB at most, taken as they fill."""


LOG_RING_BYTES = 8 * 1024 * 1024
"""Lines that wait for their reader: about 20,000 requests."""


class Tls(msgspec.Struct, frozen=True):
    """PEM files: a certificate (with what vouches for it) and its key."""

    certificate: Path
    key: Path


class ProxyConfig(msgspec.Struct, frozen=True):
    """Where the proxy listens, what it lives on, and how long it waits for its clients.

    ``folder`` is its own, for its owner only. ``address`` and ``port`` are where all services are reached; services
    with a port of their own are at the same address. ``relay`` is the unix socket of the relay beside it,
    ``access_log`` a unix stream socket to which it writes its lines (each after its length, RFC 6587, 3.4.1); while
    nobody listens there ``LOG_RING_BYTES`` of them are kept, and no request waits. ``affinity`` is a Lua file that
    defines the action ``corral_affinity``, which may put the name of a server into ``txn.corral_server``.

    A client has ``request_within_s`` for the head of a request and ``body_within_s`` for a body that is held; one that
    sends nothing between requests is let go after ``idle_s``. A process that a newer one has followed ends with its
    last request, or after ``old_process_s``.
    """

    folder: Path
    address: str = "127.0.0.1"
    port: int = 7480
    tls: Tls | None = None
    binary: Path | None = None
    relay: Path | None = None
    access_log: Path | None = None
    affinity: Path | None = None
    threads: int | None = None
    connections_max: int = 10_000
    request_within_s: float = 10.0
    body_within_s: float = 60.0
    idle_s: float = 60.0
    old_process_s: float = 3600.0
