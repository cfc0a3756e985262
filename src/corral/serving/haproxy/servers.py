"""Which servers a service should have in the proxy, and with which weights. Pure."""

from __future__ import annotations

import ipaddress
import socket
import zlib
from collections import Counter
from collections.abc import Collection, Mapping

import msgspec

from corral.model.routes import Backend, Route
from corral.model.service import Balance, Guard

HOLDER = "files"
"""The name of a server that never serves: it holds the files that others will name."""

WEIGHT_MAX = 256
WEIGHT = 100
CHECK_EVERY = "inter 200ms fastinter 100ms fall 2 rise 2"
"""A server that refuses gets nothing 0.3 s after its last answer at the latest, one that is silent 0.9 s after it."""


class Server(msgspec.Struct, frozen=True):
    """A server as it should be. One with weight 0 gets no new requests."""

    name: str
    address: str
    port: int
    weight: int
    options: str

    @property
    def place(self) -> str:
        """Return address and port as the proxy reads them."""
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"

    @property
    def words(self) -> str:
        """Return what follows its name."""
        return f"{self.place} weight {self.weight} {self.options}"


def servers_of(
    route: Route, ejected: Collection[str], files: Mapping[str, str], addresses: Mapping[str, str]
) -> tuple[Server, ...]:
    """Return the servers of a service, those that drain or are ejected with weight 0.

    ``addresses`` resolves hosts that are no IP addresses; a backend whose host is not in it is left out. ``files`` are
    the paths of ``front_end`` and ``authority`` where replicas are called by mTLS.
    """
    weights = weights_of(route)
    found = []
    for backend in route.backends:
        address = backend.address if is_address(backend.address) else addresses.get(backend.address)
        if address is not None:
            out = backend.draining or backend.name in ejected
            weight = 0 if out else weights[backend.name]
            # As the proxy writes it: what it tells is compared with this.
            known = ipaddress.ip_address(address)
            address = socket.inet_ntop(socket.AF_INET6 if known.version == 6 else socket.AF_INET, known.packed)
            found.append(Server(backend.name, address, backend.port, weight, _options(route, backend, files)))
    return tuple(found)


def _options(route: Route, backend: Backend, files: Mapping[str, str]) -> str:
    # The same number on every front end: a consistent hash begins with it.
    words = [f"id {zlib.crc32(backend.name.encode()) & 0x7FFFFFFF or 1}", f"check {CHECK_EVERY}", "pool-purge-delay 1s"]
    if route.traffic.outstanding_max is not None:
        words.append(f"maxconn {route.traffic.outstanding_max}")
    if route.traffic.guard is Guard.MTLS:
        words.append(
            f"ssl verify required ca-file {files['authority']} crt {files['front_end']} alpn http/1.1 check-ssl"
        )
    return " ".join(words)


def is_address(text: str) -> bool:
    """Return whether this is an IP address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def weights_of(route: Route) -> dict[str, int]:
    """Return the weight of each backend, 1 to 256; 0 for revisions that are to get nothing.

    During a canary each revision gets its share, whatever the number of its replicas that take requests.
    """
    backends = route.backends
    weighted = route.traffic.balance is Balance.WEIGHTED
    each = {b.name: max(1, min(WEIGHT_MAX, b.weight)) if weighted else WEIGHT for b in backends}
    if not route.shares:
        return each
    sums: Counter[int] = Counter()
    for backend in backends:
        if not backend.draining:
            sums[backend.revision] += each[backend.name]
    exact = {
        b.name: route.shares.get(b.revision, 0) * each[b.name] / sums[b.revision] if sums[b.revision] else 0.0
        for b in backends
    }
    most = max(exact.values(), default=0.0)
    if most == 0.0:
        return each
    return {name: max(1, round(WEIGHT_MAX * part / most)) if part else 0 for name, part in exact.items()}
