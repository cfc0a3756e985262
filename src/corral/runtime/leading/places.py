"""Where the heads and the GCS of a pool are: settled by the leader, followed by the other heads.

Of several heads, the leader uses the GCS that lives, wherever it is; when none does it moves it to its own machine.
Where it is, and Ray's token, stand in the database; each head has them in ``cluster.json`` and its files for its own
raylet and bridge, and for the nodes that ask.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import threading
import time
from collections.abc import Sequence

from msgspec.structs import replace

from corral.agent.machine import incarnation
from corral.model.errors import CorralError, Unauthenticated
from corral.model.ids import NodeId
from corral.ports.leadership import Head as KnownHead
from corral.ports.leadership import LeaderStore
from corral.ports.membership import JoinAsk
from corral.runtime.leading.announcing import certificate_of
from corral.runtime.machines.cluster import ClusterFile, Head, load_cluster, save_cluster
from corral.runtime.machines.heads import join_at
from corral.runtime.machines.machine import machine_id, own_versions
from corral.runtime.paths import StatePaths
from corral.runtime.poolfile import PoolFile
from corral.runtime.ray.node import answers, bracketed
from corral.runtime.wholefile import write_whole

GCS = "gcs"
RAY_TOKEN = "ray-token"  # noqa: S105 - the name of what is published
LOOK_S = 2.0
MOVE_FIRST_S = 4.0
"""How long a GCS that a new leader finds silent may go on to be: likely it was on the machine of the old one."""

MOVE_S = 30.0
"""How long a GCS on another machine is away before the leader moves it: its own supervisor is quicker."""

log = logging.getLogger("corral.daemon")
_writing = threading.Lock()
"""A controller that stands by and one that leads write the same files, from several threads."""


class Places:
    """What one head knows. ``leaders`` is ``None`` for a head that shares its state with nobody. All methods block."""

    def __init__(self, paths: StatePaths, asked: PoolFile, url: str, leaders: LeaderStore | None) -> None:
        self._paths = paths
        self._asked = asked
        self._leaders = leaders
        self._head = Head(url, certificate_of(asked.tls_cert))
        self._node = next(iter(asked.agents), "")
        self._joined = not self._node
        self.own = f"{bracketed(asked.address)}:{asked.gcs_port}"

    def settle(self, epoch: int) -> None:
        """At the beginning of a term: say where the GCS is to be. Raises the errors of the store, and ``OSError``."""
        if self._leaders is None:
            with _writing:
                self._write(self.own, ())
            return
        published = self._leaders.published()
        if published.get(RAY_TOKEN):
            self._adopt(published[RAY_TOKEN])
        else:
            self._leaders.publish(epoch, RAY_TOKEN, self._paths.ray_token.read_text().strip())
        # Whether it lives is found out later: a takeover does not wait for a machine that is silent.
        gcs = published.get(GCS, "") or self._move(epoch, "")
        with _writing:
            self._write(gcs, ())
        self._joined = True

    def follow(self, heads: Sequence[KnownHead], leader: str) -> None:
        """Note where everything is, as a standby, and have this machine's own node let in by the ``leader``.

        Raises the errors of the store, and ``OSError``.
        """
        if self._leaders is None or self._asked.role != "head":
            return
        published = self._leaders.published()
        self._adopt(published.get(RAY_TOKEN, ""))
        with _writing:
            self._write(published.get(GCS, ""), heads)
        if leader and not self._joined:
            self._join(next((self._as_written(head) for head in heads if head.url == leader), None))

    def know(self, heads: Sequence[KnownHead]) -> None:
        """Note the heads, as the leader. Raises ``OSError``."""
        with _writing:
            self._write(load_cluster(self._paths.cluster).gcs, heads)

    async def keep(self, epoch: int) -> None:
        """As the leader: move the GCS to this machine when the one of another machine is away for long."""
        patience_s, away_since = MOVE_FIRST_S, time.monotonic()
        while self._leaders is not None:
            try:
                gcs = load_cluster(self._paths.cluster).gcs
                if gcs == self.own or await asyncio.to_thread(answers, gcs):
                    patience_s, away_since = MOVE_S, time.monotonic()
                elif time.monotonic() - away_since > patience_s:
                    await asyncio.to_thread(self._take, epoch, gcs)
            except (CorralError, OSError) as error:
                log.warning("the GCS stays where it is for now: %s", error)
            await asyncio.sleep(LOOK_S)

    def _take(self, epoch: int, before: str) -> None:
        """Move the GCS here. Raises the errors of the store, and ``OSError``."""
        gcs = self._move(epoch, before)
        with _writing:
            save_cluster(self._paths.cluster, replace(load_cluster(self._paths.cluster), gcs=gcs))

    def _move(self, epoch: int, before: str) -> str:
        """Publish that the GCS is here from now on."""
        assert self._leaders is not None
        log.warning("no GCS answers at %s: there is one at %s from now on", before or "any address yet", self.own)
        # What one on this machine knew once is of another time.
        shutil.rmtree(self._paths.gcs_store, ignore_errors=True)
        self._leaders.publish(epoch, GCS, self.own)
        return self.own

    def _adopt(self, ray_token: str) -> None:
        """Take the pool's token of Ray for this machine's."""
        if ray_token and self._paths.ray_token.read_text().strip() != ray_token:
            write_whole(self._paths.ray_token, ray_token.encode(), mode=0o600)

    def _write(self, gcs: str, heads: Sequence[KnownHead]) -> None:
        known = [self._head, *(self._as_written(head) for head in heads if head.url != self._head.url)]
        cluster = ClusterFile(gcs=gcs, heads=tuple(known), node=self._node)
        save_cluster(self._paths.cluster, cluster)
        write_whole(self._paths.heads_pem, "".join(head.certificate for head in known).encode())

    @staticmethod
    def _as_written(head: KnownHead) -> Head:
        return Head(head.url, head.certificate)

    def _join(self, leader: Head | None) -> None:
        """Get a token for this machine's own node; the local admin's lets it in."""
        if leader is None:
            return
        ask = JoinAsk(
            node=NodeId(self._node),
            machine=machine_id(self._paths),
            versions=own_versions(),
            clock=time.time(),
            incarnation=incarnation(),
            address=self._asked.address,
        )
        try:
            if self._paths.node_token.exists() and self._known(leader, ask):
                self._joined = True
                return
            joined = join_at(leader, self._paths.token.read_text().strip(), ask)
            write_whole(self._paths.node_token, f"{joined.node_token}\n".encode(), mode=0o600)
            self._joined = True
        except CorralError as error:
            log.info("the leader does not let this machine's node in yet: %s", error)

    def _known(self, leader: Head, ask: JoinAsk) -> bool:
        try:
            join_at(leader, self._paths.node_token.read_text().strip(), ask)
        except Unauthenticated:
            return False
        return True
