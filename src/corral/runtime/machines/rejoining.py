"""A node asks the heads again: where the GCS is now, and which heads there are."""

from __future__ import annotations

import os
import time

import msgspec

from corral.agent.machine import incarnation
from corral.model.errors import (
    CorralError,
    Forbidden,
    HeadUnreachable,
    MachineCloned,
    StateUnusable,
    Unauthenticated,
)
from corral.model.ids import NodeId
from corral.ports.membership import JoinAsk, Joined
from corral.runtime.machines.cluster import ClusterFile, Head, certificate_file, load_cluster, save_cluster
from corral.runtime.machines.heads import join_at
from corral.runtime.machines.machine import machine_id, own_versions
from corral.runtime.paths import StatePaths
from corral.runtime.poolfile import load_pool
from corral.runtime.wholefile import write_whole

REFUSALS = (Forbidden, MachineCloned, Unauthenticated)
"""What the head that leads says to a machine that is no node of the pool, or none any more, or a second one."""


def rejoin(paths: StatePaths) -> Joined:
    """Ask the heads, the last known one first; note down what the first that answers says, and return it.

    Raises at once what refuses this node (:data:`REFUSALS`), else the last error (``HeadUnreachable``: none answers).
    """
    cluster = load_cluster(paths.cluster)
    secret = read_secret(paths)
    ask = JoinAsk(
        node=NodeId(cluster.node),
        machine=machine_id(paths),
        versions=own_versions(),
        clock=time.time(),
        incarnation=incarnation(),
        address=load_pool(paths.pool).address,
    )
    refused: CorralError = HeadUnreachable("no head is known")
    for head in cluster.heads:
        try:
            joined = join_at(head, secret, ask)
        except REFUSALS:
            raise
        except CorralError as error:
            refused = error
            continue
        note_heads(paths, joined, head, cluster.node)
        return joined
    raise refused


def read_secret(paths: StatePaths) -> str:
    """Return this node's token. Raises ``StateUnusable``."""
    try:
        return paths.node_token.read_text().strip()
    except OSError as error:
        reason = (error.strerror or "").lower()
        raise StateUnusable(f"cannot read {paths.node_token}: {reason}", hint="`corral join` makes it anew") from None


def note_heads(paths: StatePaths, joined: Joined, answered: Head, node: str) -> None:
    """Write down where everything is. The head that answered comes first, by the address at which it did."""
    # It names itself first, by the address that it knows. Heads may share a certificate.
    others = [Head(head.url, head.certificate) for head in joined.heads[1:] if head.url != answered.url]
    heads = (answered, *others)
    write_whole(paths.heads_pem, "".join(head.certificate for head in heads).encode())
    save_cluster(paths.cluster, ClusterFile(gcs=joined.gcs, heads=heads, node=node))
    # By this, clients on this machine find the pool.
    known = [{"url": head.url, "tls_cert": certificate_file(paths.tls, head.certificate)} for head in heads]
    write_whole(paths.daemon, msgspec.json.encode({**known[0], "pid": os.getpid(), "heads": known[1:]}))
    paths.ray_token.parent.mkdir(mode=0o700, exist_ok=True)
    if not paths.ray_token.exists() or paths.ray_token.read_text() != joined.ray_token:
        write_whole(paths.ray_token, joined.ray_token.encode(), mode=0o600)
