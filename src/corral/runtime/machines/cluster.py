"""``cluster.json``: where the heads and Ray's GCS are now, on every machine of a pool of several."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from corral.model.errors import StateUnusable
from corral.runtime.machines.tls import fingerprint
from corral.runtime.wholefile import write_whole


class Head(msgspec.Struct, frozen=True):
    """A machine on which a controller runs: the address of its API, and its certificate (PEM; empty without TLS)."""

    url: str
    certificate: str = ""


class ClusterFile(msgspec.Struct, frozen=True, kw_only=True):
    """The content of ``cluster.json``. It changes when another head takes over: read it when it is needed.

    ``gcs`` is HOST:PORT of Ray's GCS, empty while there is none. ``heads`` begins with the one that answered last.
    """

    gcs: str
    heads: tuple[Head, ...] = ()
    node: str = ""


def load_cluster(path: Path) -> ClusterFile:
    """Read the file. Raises ``StateUnusable`` when it is missing or damaged."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=ClusterFile)
    except (OSError, msgspec.MsgspecError) as error:
        raise StateUnusable(f"{path} cannot be read: {error}", hint="`corral join` writes it anew") from None


def save_cluster(path: Path, cluster: ClusterFile) -> None:
    """Write the file: whole, or not at all. Raises ``OSError``."""
    write_whole(path, msgspec.json.format(msgspec.json.encode(cluster), indent=2))


def fingerprints(heads: Sequence[Head]) -> tuple[str, ...]:
    """Return those of the heads' certificates (SHA-256, hex)."""
    return tuple(fingerprint(head.certificate) for head in heads if head.certificate)


def certificate_file(folder: Path, certificate: str) -> str | None:
    """Return a file with a certificate (PEM), made in ``folder`` if it is not there; ``None`` without one."""
    if not certificate:
        return None
    place = folder / f"head-{hashlib.sha256(certificate.encode()).hexdigest()[:16]}.pem"
    if not place.exists():
        folder.mkdir(mode=0o700, exist_ok=True)
        write_whole(place, certificate.encode())
    return str(place)
