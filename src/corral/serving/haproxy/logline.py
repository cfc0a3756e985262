"""A line of the access log, as the proxy writes it."""

from __future__ import annotations

import msgspec


class AccessLine(msgspec.Struct, frozen=True):
    """One request. Names that are not known are ``-``; times are milliseconds, -1 where it did not come so far.

    ``server`` is whom the proxy asked last, ``told`` the replica that the relay names; see :attr:`replica`.
    ``at`` is when the request came (epoch milliseconds). ``total_ms`` is all of it; ``request_ms`` the wait for its
    head, ``queue_ms`` for a replica, ``connect_ms`` for a connection, ``response_ms`` for the head of the answer.
    ``retries`` begins with ``+`` where the last one went to another replica. ``ended`` says how it ended (two letters:
    HAProxy 2.8 configuration manual, 8.5). The query is not logged: it may hold secrets.
    """

    at: int
    client: str
    id: str
    service: str
    tenant: str
    server: str
    told: str
    method: str
    path: str
    status: int
    bytes_in: int
    bytes_out: int
    total_ms: int
    request_ms: int
    queue_ms: int
    connect_ms: int
    response_ms: int
    retries: str
    ended: str

    @property
    def replica(self) -> str:
        """Return the replica that answered, or was asked last; ``-`` when there was none."""
        if self.told != "-":
            return self.told
        return "-" if self.server in ("<NOSRV>", "relay") else self.server

    @property
    def retried(self) -> int:
        """Return how often it was sent again."""
        return int(self.retries.lstrip("+") or 0)


def read_line(line: bytes) -> AccessLine | None:
    """Read a line of the log; ``None`` for what the proxy says of itself, in no form, on the same way."""
    try:
        return _DECODER.decode(line)
    except msgspec.MsgspecError:
        return None


_DECODER = msgspec.json.Decoder(AccessLine)

# What callers choose is escaped; names of services, tenants and replicas hold nothing that has to be.
LOG_FORMAT = (
    '{"at":%Ts%ms,"client":"%ci","id":"%[var(txn.id),json(utf8s)]","service":"%[var(txn.service)]",'
    '"tenant":"%[var(txn.tenant)]","server":"%s","told":"%[var(txn.replica)]","method":"%HM",'
    '"path":"%[var(txn.path),json(utf8s)]","status":%ST,"bytes_in":%U,"bytes_out":%B,"total_ms":%Ta,'
    '"request_ms":%TR,"queue_ms":%Tw,"connect_ms":%Tc,"response_ms":%Tr,"retries":"%rc","ended":"%ts"}'
)
