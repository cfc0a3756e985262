"""How machines become nodes of a pool: what they say, what a head tells them."""

from __future__ import annotations

from typing import Protocol

import msgspec

from corral.model.ids import NodeId
from corral.ports.pool import Principal


class Versions(msgspec.Struct, frozen=True):
    """Of what has to be the same on all machines. Ray demands the same release, and the same Python up to the minor."""

    corral: str
    python: str
    ray: str


class JoinAsk(msgspec.Struct, frozen=True, kw_only=True):
    """A machine that wants to be a node, or one that is and asks again where everything is now.

    ``machine`` tells two machines of the same name apart, ``incarnation`` and ``address`` those that have copies of one
    state directory; ``clock`` is the wall clock in seconds since the epoch.
    """

    node: NodeId
    machine: str
    versions: Versions
    clock: float
    incarnation: str = ""
    address: str = ""


class HeadPlace(msgspec.Struct, frozen=True):
    """A head: the address of its API, and its certificate (PEM; empty without TLS)."""

    url: str
    certificate: str = ""


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    """What a node has to know. ``gcs`` is HOST:PORT, empty while no GCS runs.

    ``node_token`` comes the first time only; ``connected`` says whether the node's agent is heard now; ``clock`` is the
    head's wall clock.
    """

    gcs: str
    ray_token: str
    heads: tuple[HeadPlace, ...]
    node_token: str = ""
    connected: bool = False
    clock: float = 0.0


class Membership(Protocol):
    """Joining and leaving. Who calls has a token of a machine (``join`` or ``node``), or is an admin."""

    async def join(self, who: Principal, ask: JoinAsk) -> Joined:
        """Let a machine in. Raises ``VersionMismatch``, ``ClockSkew``, ``NodeNameTaken`` or ``MachineCloned``."""

    def join_token(self, secret: str) -> str:
        """Return what a machine is told to join with: a secret, and the fingerprints of the heads' certificates."""

    async def leave(self, who: Principal, node: NodeId, *, drain: bool = False) -> int:
        """Give a node nothing new; return how many gangs have tasks there.

        With ``drain`` these are asked for a checkpoint, stopped, and queued again without charge: ask again until none
        is left. Raises ``NotFound`` and ``Forbidden``.
        """
