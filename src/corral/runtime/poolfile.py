"""``pool.json``: what ``corral up``, ``head`` or ``join`` asked for, for the supervisor, the daemon and their likes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from corral.model.errors import StateUnusable
from corral.runtime.wholefile import write_whole


class PoolFile(msgspec.Struct, frozen=True, kw_only=True):
    """The content of ``pool.json``. Fields are only ever added, with a default: a daemon may be newer than its pool.

    ``port`` is what was asked for (0: any free one, ``None``: the default one if it is free), ``bound_port`` what the
    daemon got: its restarts keep it. ``agents`` are the configurations (paths) by node. The supervisor, which lives on
    the standard library alone, reads ``fork_socket`` and ``agents`` by name. ``simulated`` and ``gpus_per_node`` are
    what the next start takes when it is not told: ``None`` is the real machine.

    ``role``: a pool of this machine alone, a head of several machines, one of their nodes, or nothing but a
    front end. ``engine`` is how the
    daemon reaches its agents. ``address`` is where other machines reach this one. ``gcs_port`` is the port of Ray's GCS
    on a head (0: any free one); ``ray_port_first`` is the first of the ports that a raylet listens on (``None``: any).
    ``address_given``: the administrator named the address of this node; else it is found anew where it has changed.
    """

    host: str
    fork_socket: str
    agents: dict[str, str]
    port: int | None = None
    bound_port: int | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    insecure: bool = False
    fault_dir: str | None = None
    simulated: str | None = None
    gpus_per_node: int | None = None
    role: Literal["local", "head", "node", "front"] = "local"
    engine: Literal["local", "ray"] = "local"
    address: str = "127.0.0.1"
    gcs_port: int = 0
    ray_port_first: int | None = None
    store: str | None = None
    address_given: bool = False


def load_pool(path: Path) -> PoolFile:
    """Read the file. Raises ``StateUnusable`` when it is missing or damaged."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=PoolFile)
    except (OSError, msgspec.DecodeError) as error:
        raise StateUnusable(f"{path} cannot be read: {error}", hint="`corral up` writes it anew") from None


def save_pool(path: Path, pool: PoolFile) -> None:
    """Write the file: whole, or not at all. Raises ``OSError``."""
    # The URL of a store may hold a password.
    write_whole(path, msgspec.json.format(msgspec.json.encode(pool), indent=2), mode=0o600)
