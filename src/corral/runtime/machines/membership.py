"""Lets machines into the pool: checks them, makes their tokens, and tells them where everything is."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from msgspec.structs import replace

from corral.control.namesakes import ALIVE_S, is_copied
from corral.model.errors import ClockSkew, CorralError, Forbidden, MachineCloned, NodeNameTaken, VersionMismatch
from corral.model.ids import DEFAULT_TENANT, NodeId, TenantId
from corral.model.report import NodeReport
from corral.model.state import LEFT
from corral.model.tenant import Role, Token
from corral.ports.engine import Engine
from corral.ports.membership import HeadPlace, JoinAsk, Joined, Versions
from corral.ports.pool import Principal
from corral.runtime.machines.cluster import ClusterFile, fingerprints, load_cluster
from corral.runtime.machines.jointoken import JoinToken
from corral.runtime.machines.machine import own_versions
from corral.runtime.machines.tokens import node_label, node_of
from corral.runtime.paths import StatePaths
from corral.runtime.poolfile import PoolFile

SKEW_S_MAX = 2.0
FORGET_EVERY_S = 1.0
SILENT_LOOKS = 3
FORGET_S = 600.0
"""How long a node that left is watched before it is for an administrator to forget."""

log = logging.getLogger("corral.membership")
_SELF = Principal(DEFAULT_TENANT, Role.ADMIN, "join")


class Registry(Protocol):
    """What membership needs of the pool."""

    async def nodes(self, who: Principal) -> tuple[NodeReport, ...]:
        """Return all nodes."""

    async def cordon(self, who: Principal, node: NodeId, reason: str, *, drain: bool = False) -> None:
        """Give a node no new tasks; with ``drain`` have those that run there give way."""

    async def uncordon(self, who: Principal, node: NodeId) -> None:
        """Give a node tasks again."""

    async def remove_node(self, who: Principal, node: NodeId) -> None:
        """Forget a lost node without tasks."""

    async def tokens(self, who: Principal) -> tuple[Token, ...]:
        """Return the tokens."""

    async def issue_token(self, who: Principal, tenant: TenantId, role: Role, label: str) -> tuple[Token, str]:
        """Make a token."""

    async def revoke_token(self, who: Principal, token_id: str) -> None:
        """Refuse a token from now on."""


def make_membership(asked: PoolFile, paths: StatePaths, registry: Registry, engine: Engine) -> PoolMembership | None:
    """Return how machines join the pool of a head; ``None`` where none can."""
    if asked.role != "head":
        return None
    return PoolMembership(registry, paths, own_versions(), engine.connected, time.time)


class PoolMembership:
    """Implements ``ports.membership.Membership``. ``connected`` says which agents are heard, ``now`` the wall clock."""

    def __init__(
        self,
        registry: Registry,
        paths: StatePaths,
        versions: Versions,
        connected: Callable[[], frozenset[NodeId]],
        now: Callable[[], float],
    ) -> None:
        self._registry = registry
        self._paths = paths
        self._versions = versions
        self._connected = connected
        self._now = now
        self._watching: dict[NodeId, asyncio.Task[None]] = {}
        # Of two machines that ask for one name at once, one gets it, and the other's token is refused.
        self._naming = asyncio.Lock()

    async def join(self, who: Principal, ask: JoinAsk) -> Joined:
        """Let a machine in, or tell a node where everything is now."""
        check_versions(self._versions, ask.versions)
        connected = ask.node in self._connected()
        refuse_copy(ask, await self._node(ask.node))
        if who.role is Role.NODE:
            await self._check_owner(who, ask.node)
            return self._joined("", connected=connected)
        skew = ask.clock - self._now()
        if abs(skew) > SKEW_S_MAX:
            raise ClockSkew(
                f"the clock of {ask.node} is {abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} the head's; "
                f"{SKEW_S_MAX:g} s are allowed",
                hint="set both by NTP, then join again",
            )
        async with self._naming:
            secret = await self._name(ask)
        return self._joined(secret, connected=connected)

    async def _name(self, ask: JoinAsk) -> str:
        """Make a machine's token the only one of its node.

        Raises ``NodeNameTaken`` while another machine is heard under that name, while its tasks may run, and for the
        name of this head's own node.
        """
        label = node_label(ask.node, ask.machine)
        olds = [token for token in await self._registry.tokens(_SELF) if node_of(token) == ask.node]
        found = await self._node(ask.node)
        if any(token.label != label for token in olds):
            if ask.node in self._connected() or ask.node == load_cluster(self._paths.cluster).node:
                raise NodeNameTaken(f"another machine is in the pool as {ask.node}", hint="choose another with --name")
            if found is not None and found.gangs:
                raise NodeNameTaken(
                    f"tasks of another machine may still run as {ask.node}",
                    hint="choose another with --name, or wait until they have moved",
                )
        _, secret = await self._registry.issue_token(_SELF, DEFAULT_TENANT, Role.NODE, label)
        for token in olds:
            await self._registry.revoke_token(_SELF, token.id)
        if found is not None and found.cordoned and found.cordon_reason == LEFT:
            await self._registry.uncordon(_SELF, ask.node)
        return secret

    def join_token(self, secret: str) -> str:
        """Return what a machine is told to join with."""
        return JoinToken(secret, fingerprints(load_cluster(self._paths.cluster).heads)).text()

    async def leave(self, who: Principal, node: NodeId, *, drain: bool = False) -> int:
        """Give a node nothing new, with ``drain`` empty it; return how many gangs it still has."""
        if who.role is Role.NODE:
            await self._check_owner(who, node)
        found = await self._node(node)
        # Who leaves asks again and again how far it is: that is to leave nothing in the journal.
        told = found is not None and found.cordon_reason == LEFT and (found.draining or not drain)
        if not told:
            await self._registry.cordon(_SELF, node, LEFT, drain=drain)
            found = await self._node(node)
        self._watch(node)
        return 0 if found is None else len(found.gangs)

    async def resume(self) -> None:
        """Go on with what another controller, or this one before it was started again, had not come to an end with."""
        for found in await self._registry.nodes(_SELF):
            if found.cordoned and found.cordon_reason == LEFT:
                self._watch(found.spec.id)

    async def end(self) -> None:
        """Watch nodes no longer."""
        watching = list(self._watching.values())
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)

    def _watch(self, node: NodeId) -> None:
        watching = self._watching.get(node)
        if watching is None or watching.done():
            watching = self._watching[node] = asyncio.create_task(self._forget(node), name=f"forget-{node}")
            watching.add_done_callback(partial(self._watched, node))

    def _watched(self, node: NodeId, watching: asyncio.Task[None]) -> None:
        if self._watching.get(node) is watching:
            del self._watching[node]

    async def _forget(self, node: NodeId) -> None:
        """Forget a node that leaves once it is silent and has no task, unless it stays, or comes back, or is gone."""
        silent = 0
        for _ in range(int(FORGET_S / FORGET_EVERY_S)):
            await asyncio.sleep(FORGET_EVERY_S)
            try:
                found = await self._node(node)
                if found is None or found.cordon_reason != LEFT:
                    return
                # Its agent may be starting anew, to tell that no task is left.
                silent = 0 if node in self._connected() or found.gangs else silent + 1
                if silent == SILENT_LOOKS:
                    await self._drop(node)
                    return
            except CorralError as error:
                log.info("node %s, which left, is not forgotten yet: %s", node, error)

    async def _drop(self, node: NodeId) -> None:
        """Forget a node and its token, unless it joins at this moment."""
        async with self._naming:
            found = await self._node(node)
            if found is None or found.cordon_reason != LEFT:
                return
            await self._registry.remove_node(_SELF, node)
            for token in await self._registry.tokens(_SELF):
                if node_of(token) == node:
                    await self._registry.revoke_token(_SELF, token.id)

    async def _node(self, node: NodeId) -> NodeReport | None:
        return next((one for one in await self._registry.nodes(_SELF) if one.spec.id == node), None)

    async def _check_owner(self, who: Principal, node: NodeId) -> None:
        own = next((token for token in await self._registry.tokens(_SELF) if token.id == who.token_id), None)
        if own is None or node_of(own) != node:
            raise Forbidden(f"this token is not that of node {node}")

    def _joined(self, secret: str, *, connected: bool) -> Joined:
        cluster: ClusterFile = load_cluster(self._paths.cluster)
        return Joined(
            gcs=cluster.gcs,
            ray_token=self._paths.ray_token.read_text().strip(),
            heads=tuple(HeadPlace(head.url, head.certificate) for head in cluster.heads),
            node_token=secret,
            connected=connected,
            clock=self._now(),
        )


def refuse_copy(ask: JoinAsk, found: NodeReport | None) -> None:
    """Raise ``MachineCloned`` where a machine is not the one that is heard as this node but has its state directory."""
    if found is None or found.age_s is None or found.age_s > ALIVE_S:
        return
    said = replace(found.spec, machine=ask.machine, incarnation=ask.incarnation, address=ask.address)
    if is_copied(found.spec, said):
        raise MachineCloned(
            f"{ask.node} is heard at {found.spec.address}, and this machine at {ask.address} has a copy of its state "
            "directory",
            hint="join with a directory of its own (--state-dir) and another --name; where that is this machine after "
            "a start, wait until it is silent there",
        )


def check_versions(ours: Versions, theirs: Versions) -> None:
    """Raise ``VersionMismatch`` where a machine could not work with this one. Python may differ in its patch level."""
    wrong = []
    if theirs.corral != ours.corral:
        wrong.append(f"corral {theirs.corral} (the head has {ours.corral})")
    if theirs.ray != ours.ray:
        wrong.append(f"Ray {theirs.ray} (the head has {ours.ray})")
    if theirs.python.split(".")[:2] != ours.python.split(".")[:2]:
        wrong.append(f"Python {theirs.python} (the head has {ours.python})")
    if wrong:
        raise VersionMismatch(
            f"this machine has {', '.join(wrong)}", hint="install what the head has, in an environment of its own"
        )
