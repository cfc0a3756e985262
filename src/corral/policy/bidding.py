"""The default bidder: what an AppMaster proposes for a job that brings no proposer of its own."""

from __future__ import annotations

from collections.abc import Iterable

from corral.model.job import Gang, JobSpec
from corral.model.offer import Bid, NodeOffer, Offer, Preference
from corral.policy.config import BIDS_MAX, SchedulingConfig
from corral.policy.feasibility import empty_fit

PREFERENCES_MAX = 64
"""Nodes that one bid lists: enough for every rank of a usual gang to find its data, small enough to send."""


def default_bids(
    spec: JobSpec,
    offer: Offer,
    *,
    gang: Gang | None = None,
    config: SchedulingConfig = SchedulingConfig(),  # noqa: B008 - frozen
) -> tuple[Bid, ...]:
    """Return the bids that stand for all pending gangs of a job, best first, at most 32.

    The declared shape is the one way to run a rigid job, so there is one bid: with the nodes that could take a rank and
    hold some of the declared data, by cold-start seconds, and with what a restart costs. It is made even when nothing
    fits now: bids stand until they are replaced. ``gang`` adds the time since which its work is unsaved.
    """
    preferred = _preferences(spec, offer.snapshot.nodes, config) if spec.data else ()
    since = gang.started_at if gang is not None and spec.checkpoint is not None else None
    bid = Bid(
        shape=spec.shape,
        preferred=preferred,
        restart_cost_s=spec.restart_cost_s,
        checkpoint_age_s=max(0.0, offer.snapshot.at - since) if since is not None else None,
        tenure_s=max(config.tenure_s, config.tenure_restarts * spec.restart_cost_s),
    )
    return (bid,)[:BIDS_MAX]


def _preferences(spec: JobSpec, nodes: Iterable[NodeOffer], config: SchedulingConfig) -> tuple[Preference, ...]:
    """Return the feasible nodes that hold at least one declared shard, fewest seconds to load first."""
    wanted = frozenset(spec.data)
    found = []
    for node in nodes:
        missing = len(wanted - node.shards)
        if missing < len(wanted) and empty_fit(node, spec.shape.demand):
            found.append(Preference(node.node, missing * config.cold_start_per_shard_s))
    found.sort(key=lambda preference: (preference.cold_start_s, preference.node))
    return tuple(found[:PREFERENCES_MAX])
