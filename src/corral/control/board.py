"""The offer board: what every schedulable node can give now, kept up to date node by node."""

from __future__ import annotations

import math
from collections import Counter

import msgspec
from msgspec.structs import replace

from corral.control.holdings import holding_of
from corral.model.ids import GangKey, NodeId
from corral.model.job import Gang, Job
from corral.model.offer import FreeDevice, Holding, NodeOffer, Proposal, Snapshot
from corral.model.resources import MILLI, Amount
from corral.model.state import Held, Node, PoolState
from corral.policy.config import SchedulingConfig

COUNTED = 8
"""Nodes that are told apart one by one; of more, a fifth more is the next number."""


class NodeView(msgspec.Struct, frozen=True):
    """What the board has to know of a node beyond the facts: whether it answers, and the shards that it holds.

    ``blocked`` devices are not offered, and nothing at all of a node with a wrong clock, or one that is ``unfit``: that
    can start no task.
    """

    answering: bool
    shards: frozenset[str]
    blocked: frozenset[str] = frozenset()
    clock_wrong: bool = False
    unfit: bool = False

    @property
    def takes_tasks(self) -> bool:
        """Return whether something may be placed there, as far as the node itself goes."""
        return self.answering and not self.clock_wrong and not self.unfit


def node_offer(node: Node, held: Held, view: NodeView) -> NodeOffer:
    """Return the free part of one node. Failed and blocked devices are not offered at all."""
    devices = tuple(
        FreeDevice(d.uuid, d.model, MILLI - held.devices.get(d.uuid, 0), d.memory_mib, d.island)
        for d in node.spec.devices
        if d.uuid not in node.failed and d.uuid not in view.blocked
    )
    return NodeOffer(
        node=node.spec.id,
        rack=node.spec.rack,
        devices=devices,
        cpus_milli=max(0, node.spec.cpus_milli - held.cpus_milli),
        memory_mib=max(0, node.spec.memory_mib - held.memory_mib),
        total=Amount(MILLI * len(devices), node.spec.cpus_milli, node.spec.memory_mib),
        shards=view.shards,
        address=node.spec.address or node.spec.hostname,
    )


def _coarse(count: int) -> int:
    return count if count <= COUNTED else COUNTED + int(4.0 * math.log2(count / COUNTED))


class Board:
    """Node offers and holdings; a snapshot costs only what changed."""

    def __init__(self, state: PoolState, config: SchedulingConfig) -> None:
        self._state = state
        self._config = config
        self._views: dict[NodeId, NodeView] = {}
        self._offers: dict[NodeId, NodeOffer] = {}
        self._stale: set[NodeId] = set(state.nodes)
        self._models_of: dict[NodeId, frozenset[str]] = {}
        self._nodes_with: Counter[str] = Counter()
        self.holdings: dict[GangKey, Holding] = {}
        self._protected: frozenset[GangKey] = frozenset()
        self.choosing = 0
        """Running gangs that might run otherwise: those with more than one bid."""
        self.capacity = state.capacity()
        self.version = 0
        for job in state.jobs.values():
            for gang in job.gangs.values():
                if gang.live:
                    self.hold(job, gang)

    def view(self, node: NodeId) -> NodeView:
        """Return what was observed of a node last; a node that never spoke does not answer."""
        return self._views.get(node, NodeView(answering=False, shards=frozenset()))

    def observe(self, node: NodeId, view: NodeView) -> bool:
        """Take in an observation; return whether it changes the offers."""
        if self._views.get(node) == view:
            return False
        self._views[node] = view
        self.touch(node)
        return True

    def touch(self, node: NodeId) -> None:
        """Note that a node's free part changed."""
        self._stale.add(node)
        self.version += 1

    def nodes_changed(self) -> None:
        """Note that nodes or devices came or went."""
        self.capacity = self._state.capacity()
        for known in (self._offers, self._views):
            for gone in known.keys() - self._state.nodes.keys():
                del known[gone]
        for gone in self._models_of.keys() - self._state.nodes.keys():
            self._note_models(gone, frozenset())
            del self._models_of[gone]
        self.version += 1

    def hold(self, job: Job, gang: Gang, proposal: Proposal | None = None) -> None:
        """Note what a gang holds now (fewer ranks than before, or nothing) and what its job last proposed."""
        key = GangKey(job.id, gang.index)
        before = self.holdings.get(key)
        self.choosing -= before is not None and len(before.bids) > 1
        if gang.live:
            held = holding_of(job, gang, proposal, self._config)
            if key in self._protected:
                held = replace(held, preemptible=False)
            self.holdings[key] = held
            self.choosing += len(held.bids) > 1
        else:
            self.holdings.pop(key, None)

    def protect(self, keys: frozenset[GangKey]) -> None:
        """Ask none of these gangs to give way, and all others again."""
        for key in keys ^ self._protected:
            held = self.holdings.get(key)
            if held is not None:
                self.holdings[key] = replace(held, preemptible=key not in keys)
        self._protected = keys

    def offers(self) -> dict[NodeId, NodeOffer]:
        """Return the offers of all schedulable nodes: not lost, not cordoned, and in a state to take tasks."""
        for name in self._stale:
            node = self._state.nodes.get(name)
            view = self.view(name)
            if node is None or node.lost or node.cordoned or not view.takes_tasks:
                self._offers.pop(name, None)
                self._note_models(name, frozenset())
            else:
                offer = self._offers[name] = node_offer(node, self._state.held.get(name) or Held(), view)
                self._note_models(name, frozenset([device.model for device in offer.devices]))
        self._stale.clear()
        return self._offers

    def _note_models(self, node: NodeId, models: frozenset[str]) -> None:
        before = self._models_of.get(node, frozenset())
        if models != before:
            self._models_of[node] = models
            self._nodes_with.update(models - before)
            self._nodes_with.subtract(before - models)

    def models(self) -> dict[str, int]:
        """Return the device models that are offered, with the number of nodes that do: exact up to 8, then coarse."""
        self.offers()
        return {name: _coarse(count) for name, count in self._nodes_with.items() if count > 0}

    def snapshot(self, now: float) -> Snapshot:
        """Return the whole capacity as of this version."""
        offers = self.offers()
        return Snapshot(
            version=self.version,
            at=now,
            nodes=tuple(offers[name] for name in sorted(offers)),
            holdings=tuple(self.holdings.values()),
            capacity=self.capacity,
        )
