"""Calls of the heads' API from a node, with the node's token. Standard library only; every method blocks."""

from __future__ import annotations

import http.client
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from corral.agent.config import AgentConfig
from corral.model.errors import CorralError, FilesDamaged, NoHead, Refusal, Unavailable
from corral.wire.trees import BLOBS_ASKED_MAX, batches, pack, unpack

JSON = "application/json"
BINARY = "application/octet-stream"
TIMEOUT_S = 60.0
CONNECT_S = 5.0
PAUSE_S = 0.5
KEPT_MAX = 4
FETCH_PATIENCE_S = 240.0
"""A task that was placed waits so long for its files: the heads' database may be away."""

BlobOf = Callable[[str], bytes]


class _Head(msgspec.Struct, frozen=True):
    url: str


class _Cluster(msgspec.Struct, frozen=True):
    """The part of ``cluster.json`` that is needed here."""

    heads: tuple[_Head, ...] = ()


class _Problem(msgspec.Struct, frozen=True):
    code: str
    message: str


class _Missing(msgspec.Struct, frozen=True):
    missing: tuple[str, ...]


class Courier:
    """Finds the head that leads and speaks with it. Threads may share one."""

    def __init__(self, config: AgentConfig) -> None:
        self._cluster = Path(config.cluster_path)
        self._token = Path(config.node_token_path)
        self._ca = config.ca_path
        self._idle: list[tuple[str, http.client.HTTPConnection]] = []
        self._good = ""
        self.answered_at = time.monotonic()
        """When a head answered last (monotonic)."""
        self._ending = threading.Event()

    def close(self) -> None:
        """Let calls that wait for a head give up, and close the connections that nobody uses."""
        self._ending.set()
        while self._idle:
            self._idle.pop()[1].close()

    def call(self, path: str, body: bytes, kind: str = JSON, *, patience_s: float = 30.0) -> bytes:
        """POST a body to a path below ``/v1`` and return the answer.

        Asks one head after the other until one answers that leads, for ``patience_s`` at most. Raises ``NoHead``, or
        the error with which the leader refuses.
        """
        deadline = time.monotonic() + patience_s
        reason = "there is none"
        while True:
            for url in self._heads():
                try:
                    status, answer = self._post(url, path, body, kind)
                except (OSError, http.client.HTTPException) as error:
                    reason = f"{url}: {str(error) or type(error).__name__}"
                    continue
                if status < 300:
                    self._good, self.answered_at = url, time.monotonic()
                    return answer
                if status < 400 or status in (421, 429) or status >= 500:
                    reason = f"{url}: HTTP {status}"
                    continue
                raise _refused(status, answer)
            if time.monotonic() >= deadline or self._ending.wait(PAUSE_S):
                raise NoHead(f"no head of the pool answers ({reason})")

    def _heads(self) -> list[str]:
        """Return the heads as they are known now, the one that answered last first."""
        try:
            cluster = msgspec.json.decode(self._cluster.read_bytes(), type=_Cluster)
        except (OSError, msgspec.MsgspecError):
            return []
        return sorted((head.url for head in cluster.heads), key=lambda url: url != self._good)

    def _post(self, url: str, path: str, body: bytes, kind: str) -> tuple[int, bytes]:
        """Send a request, once more where a kept connection was closed meanwhile."""
        headers = {"Authorization": f"Bearer {self._token.read_text().strip()}", "Content-Type": kind}
        while True:
            kept = next((one for one in self._idle if one[0] == url), None)
            if kept is not None:
                try:
                    self._idle.remove(kept)
                except ValueError:
                    continue
            connection = kept[1] if kept is not None else self._connect(url)
            try:
                connection.request("POST", f"/v1{path}", body, headers)
                response = connection.getresponse()
                answer = response.read()
            except (OSError, http.client.HTTPException):
                connection.close()
                if kept is None:
                    raise
                continue
            if response.will_close or len(self._idle) >= KEPT_MAX:
                connection.close()
            else:
                self._idle.append((url, connection))
            return response.status, answer

    def _connect(self, url: str) -> http.client.HTTPConnection:
        parts = urlsplit(url)
        host = parts.hostname or ""
        connection: http.client.HTTPConnection
        if parts.scheme == "https":
            connection = http.client.HTTPSConnection(host, parts.port, timeout=CONNECT_S, context=_trusting(self._ca))
        else:
            connection = http.client.HTTPConnection(host, parts.port, timeout=CONNECT_S)
        connection.connect()
        connection.sock.settimeout(TIMEOUT_S)
        return connection

    # ---- blobs -----------------------------------------------------------------------------------------------------

    def fetch(self, names: Sequence[str]) -> list[bytes | None]:
        """Return the first blobs of a list, at least one; ``None`` for those that are not there."""
        asked = list(names[:BLOBS_ASKED_MAX])
        body = msgspec.json.encode({"blobs": asked})
        found = unpack(self.call("/files/fetch", body, patience_s=FETCH_PATIENCE_S))
        if not 0 < len(found) <= len(asked):
            raise FilesDamaged(f"{len(asked)} blobs were asked for, {len(found)} came")
        return found

    def missing(self, names: Sequence[str]) -> list[str]:
        """Return the blobs that the pool does not hold."""
        found: list[str] = []
        for start in range(0, len(names), BLOBS_ASKED_MAX):
            body = msgspec.json.encode({"blobs": names[start : start + BLOBS_ASKED_MAX]})
            found += msgspec.json.decode(self.call("/files/missing", body), type=_Missing).missing
        return found

    def send(self, read: Sequence[tuple[str, int]], blob_of: BlobOf) -> None:
        """Send blobs, named with their sizes in bytes, as few packs as they need."""
        for batch in batches(read):
            self.call("/files/blobs", pack(blob_of(name) for name in batch), BINARY)


def _trusting(ca: str) -> ssl.SSLContext:
    """Return a context that believes the certificates of the heads and no others, whatever names they bear."""
    context = ssl.create_default_context(cafile=ca or None)
    if ca:
        context.check_hostname = False
        context.verify_flags = ssl.VERIFY_X509_TRUSTED_FIRST | ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def _refused(status: int, answer: bytes) -> CorralError:
    try:
        problem = msgspec.json.decode(answer, type=_Problem)
    except msgspec.MsgspecError:
        return Unavailable(f"what answers is no head of this pool (HTTP {status})")
    return CorralError.of(Refusal(problem.code, problem.message))
