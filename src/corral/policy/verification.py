"""Re-checking at commit: does an allocation still hold on the newest capacity? A stale one gets a verdict."""

from __future__ import annotations

from collections.abc import Sequence

from corral.model.ids import NodeId
from corral.model.offer import Allocation, Snapshot, Verdict, VerdictKind
from corral.model.resources import Placement
from corral.policy.cursor import FOREVER
from corral.policy.trial import Trial


def verify(allocation: Allocation, newest: Snapshot) -> Verdict:
    """Re-check an allocation node by node against the newest capacity: committed, or stale with what to refresh to."""
    return _verify(allocation, newest.version, Trial(newest.nodes))


def verify_all(allocations: Sequence[Allocation], newest: Snapshot) -> tuple[Verdict, ...]:
    """Re-check allocations in order; each that holds is taken from what the next may have."""
    trial = Trial(newest.nodes)
    verdicts = []
    for allocation in allocations:
        verdict = _verify(allocation, newest.version, trial)
        if verdict.kind is VerdictKind.COMMITTED:
            trial.take(allocation.placements, FOREVER)
        verdicts.append(verdict)
    return tuple(verdicts)


def _verify(allocation: Allocation, version: int, trial: Trial) -> Verdict:
    by_node: dict[NodeId, list[Placement]] = {}
    for placement in allocation.placements:
        by_node.setdefault(placement.node, []).append(placement)
    for node, placements in by_node.items():
        offer = trial.offers.get(node)
        if offer is None:
            return Verdict(VerdictKind.STALE, allocation.key, version, f"{node} is not offered any more")
        room = trial.room(node)
        present = {device.uuid for device in offer.devices}
        for placement in placements:
            gone = [share.uuid for share in placement.devices if share.uuid not in present]
            if gone:
                return Verdict(VerdictKind.STALE, allocation.key, version, f"{node} has no device {gone[0]} any more")
            room.change(placement, -1)
        for device, free in zip(offer.devices, room.free, strict=True):
            if free < 0:
                return Verdict(VerdictKind.STALE, allocation.key, version, f"{device.uuid} on {node} was taken")
        if room.cpus_milli < 0 or room.memory_mib < 0:
            what = "CPUs" if room.cpus_milli < 0 else "memory"
            return Verdict(VerdictKind.STALE, allocation.key, version, f"the {what} of {node} were taken")
    return Verdict(VerdictKind.COMMITTED, allocation.key, version)
