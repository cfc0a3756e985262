"""What a gang misses of the nodes that are not offered: cordoned, silent or lost ones on which it would fit."""

from __future__ import annotations

from collections.abc import Sequence

from corral.model.offer import Candidate
from corral.policy.feasibility import empty_fit, kind_fit
from corral.policy.outlook import Absence, Scene

NODES_SHOWN = 3


def missed(scene: Scene, candidate: Candidate) -> tuple[Absence, ...]:
    """Return the absent nodes that a gang fits on, when without them it fits nowhere, even if nobody held anything."""
    if not scene.absent:
        return ()
    shapes = [bid.shape for bid in candidate.bids]
    for shape in shapes:
        room = 0
        for offer in scene.snapshot.nodes:
            room += empty_fit(offer, shape.demand)
            if room >= shape.ranks:
                return ()
    return tuple(gone for gone in scene.absent if any(kind_fit(gone.kind, shape.demand) for shape in shapes))


def missed_words(gone: Sequence[Absence]) -> str:
    """Return what is waited for: ``node n1 (cordoned: new disk), without which it fits nowhere``."""
    shown = ", ".join(f"{one.node} ({one.reason})" for one in gone[:NODES_SHOWN])
    rest = f" and {len(gone) - NODES_SHOWN} more" if len(gone) > NODES_SHOWN else ""
    return f"node{'s' if len(gone) > 1 else ''} {shown}{rest}, without which it fits nowhere"


def uncordoning(scene: Scene, candidate: Candidate, gone: Sequence[Absence]) -> str | None:
    """Return which cordoned nodes would have to be offered again, ``None`` when those alone are not enough."""
    shape = candidate.shape
    room = sum(empty_fit(offer, shape.demand) for offer in scene.snapshot.nodes)
    names: list[str] = []
    for one in gone:
        if not one.cordoned or room >= shape.ranks:
            continue
        room += kind_fit(one.kind, shape.demand)
        names.append(str(one.node))
    if not names or room < shape.ranks:
        return None
    held = {placement.node for holding in scene.snapshot.holdings for placement in holding.placements}
    when = ", when what runs there has ended" if held.intersection(names) else ""
    commands = "; ".join(f"corral nodes uncordon {name}" for name in names[:NODES_SHOWN])
    more = f" and {len(names) - NODES_SHOWN} more" if len(names) > NODES_SHOWN else ""
    return f"`{commands}`{more}: it fits there{when}"
