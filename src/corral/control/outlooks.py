"""What is believed to be left of gangs that have run, carried over from what they ran on to what they will run on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from corral.model.events import GangRequeued
from corral.model.ids import NodeId
from corral.model.job import Gang, Job, StopReason
from corral.model.offer import Bid, Outlook, Proposal
from corral.model.resources import GangShape, Placement
from corral.model.state import Node


def model_of(placements: Sequence[Placement], nodes: Mapping[NodeId, Node]) -> str | None:
    """Return the one device model that is held, ``""`` where no device is held, ``None`` where models are mixed."""
    models: set[str] = set()
    for placement in placements:
        held = {share.uuid for share in placement.devices}
        node = nodes.get(placement.node)
        models.update(device.model for device in (node.spec.devices if node is not None else ()) if device.uuid in held)
    if not models:
        return ""
    return models.pop() if len(models) == 1 else None


def shape_of(job: Job, gang: Gang, nodes: Mapping[NodeId, Node]) -> GangShape:
    """Return the shape that a gang runs in, with the device model that it got."""
    shape = gang.bid.shape if gang.bid is not None else job.spec.shape
    model = model_of([task.placement for task in gang.tasks if task.placement is not None], nodes)
    return replace(shape, demand=replace(shape.demand, gpu_model=model)) if model else shape


def way_of(shape: GangShape, bids: Sequence[Bid]) -> Bid | None:
    """Return the best bid for a shape: for its device model, else for any model, ``None`` when there is none."""
    same = [b for b in bids if b.shape.ranks == shape.ranks and b.shape.demand.gpu_milli == shape.demand.gpu_milli]
    model = shape.demand.gpu_model
    for wanted in dict.fromkeys((model, None)):
        for bid in same:
            if bid.shape.demand.gpu_model == wanted:
                return bid
    return same[0] if same and model is None else None


def carried(seconds: float, of: GangShape | None, to: GangShape, bids: Sequence[Bid]) -> float:
    """Return what the seconds left on one shape (``None``: that of the first bid) are on another."""
    before = way_of(of, bids) if of is not None else bids[0] if bids else None
    after = way_of(to, bids)
    if before is None or after is None or before.throughput <= 0 or after.throughput <= 0:
        return seconds
    return seconds * before.throughput / after.throughput


def remaining_on_first(proposal: Proposal, gang: int) -> float | None:
    """Return the seconds that are left of a gang that waits, on its first bid."""
    outlook, first = proposal.outlooks.get(gang), proposal.bids[0]
    if outlook is None or outlook.remaining_s is None:
        return first.remaining_s
    return carried(outlook.remaining_s, outlook.shape, first.shape, proposal.bids)


def remaining_now(
    gang: Gang, bids: Sequence[Bid], outlook: Outlook | None, started: float
) -> tuple[float | None, float]:
    """Return the seconds that were left of a gang on what it runs on, and as of when."""
    if outlook is not None and outlook.remaining_s is not None:
        known_at = max(started, outlook.known_at)
        if gang.bid is None or (outlook.shape is not None and outlook.known_at > started):
            # It was measured in this very run.
            return outlook.remaining_s, known_at
        return carried(outlook.remaining_s, outlook.shape, gang.bid.shape, bids), known_at
    way = (way_of(gang.bid.shape, bids) or gang.bid) if gang.bid is not None else None
    return (way.remaining_s if way is not None else None), started


def after_run(job: Job, fact: GangRequeued, proposal: Proposal | None, nodes: Mapping[NodeId, Node]) -> Outlook | None:
    """Return what is left of a gang whose run is over and was not the last; ``None`` when nobody knows.

    Call it before the fact is folded. Who was asked to make room and can save itself has lost nothing. Otherwise
    the work since its last known checkpoint is to be done again, or all of this run.
    """
    gang, at = job.gangs.get(fact.gang), fact.at
    if gang is None:
        return None
    bids = proposal.bids if proposal is not None else ()
    outlook = proposal.outlooks.get(gang.index) if proposal is not None else None
    starts = [task.started_at for task in gang.tasks if task.started_at is not None]
    began = max(starts) if starts and len(starts) == len(gang.tasks) else at
    remaining_s, known_at = remaining_now(gang, bids, outlook, began)
    if remaining_s is None:
        return None
    if job.spec.checkpoint is not None and gang.stopping is StopReason.PREEMPTED:
        left_s = remaining_s - (at - known_at)
    else:
        saved = outlook.saved_at if outlook is not None else None
        left_s = remaining_s + known_at - (saved if saved is not None and began <= saved <= known_at else began)
    return Outlook(remaining_s=max(0.0, left_s), shape=shape_of(job, gang, nodes), known_at=at)
