"""A gang with an EASY reservation: may it start on it now, and who has to give way?"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from corral.model.ids import DeviceId
from corral.model.resources import Placement
from corral.policy.market.cells import Cells
from corral.policy.market.contenders import Contender
from corral.policy.market.forms import Form
from corral.policy.market.ground import Ground


def runs_as(form: Form, placements: Sequence[Placement]) -> bool:
    """Return whether placements are those of a form."""
    demand, first = form.shape.demand, placements[0]
    return (
        form.footprint is None
        and form.shape.ranks == len(placements)
        and (demand.gpu_milli, demand.cpus_milli) == (first.gpu_milli, first.cpus_milli)
        and demand.memory_mib == first.memory_mib
    )


def in_the_way(
    placements: Sequence[Placement],
    ground: Ground,
    cells: Cells,
    contenders: Sequence[Contender],
    kept: Collection[int],
) -> list[int] | None:
    """Return who of ``kept`` holds what a reservation needs; ``None`` when it cannot be had now even without them."""
    lacking = _lacking(placements, ground)
    if lacking is None:
        return None
    short = _short_hosts(placements, ground, cells)
    found = []
    for index in sorted(kept):
        holding = contenders[index].holding
        assert holding is not None
        helps = [_give_back(placement, ground, lacking, short) for placement in holding.placements]
        if any(helps):
            found.append(index)
    if any(milli > 0 for milli in lacking.values()) or any(max(rest) > 0 for rest in short.values()):
        return None
    return found


def _lacking(placements: Sequence[Placement], ground: Ground) -> dict[DeviceId, int] | None:
    """Return the milli-GPUs that devices lack for a reservation, ``None`` when one is not offered."""
    lacking: dict[DeviceId, int] = {}
    for placement in placements:
        node = ground.node_of.get(placement.node)
        if node is None:
            return None
        free = {device.uuid: device.free_milli for device in ground.offers[node].devices}
        for share in placement.devices:
            if share.uuid not in free:
                return None
            if free[share.uuid] < share.milli:
                lacking[share.uuid] = share.milli - free[share.uuid]
    return lacking


def _give_back(
    placement: Placement, ground: Ground, lacking: dict[DeviceId, int], short: dict[int | None, tuple[int, int]]
) -> bool:
    """Subtract what a placement would give back; return whether any of it is needed."""
    helps = False
    node = ground.node_of.get(placement.node)
    if node in short:
        short[node] = (short[node][0] - placement.cpus_milli, short[node][1] - placement.memory_mib)
        helps = True
    for share in placement.devices:
        if share.uuid in lacking:
            lacking[share.uuid] -= share.milli
            helps = True
    return helps


def _short_hosts(placements: Sequence[Placement], ground: Ground, cells: Cells) -> dict[int | None, tuple[int, int]]:
    """Return the CPUs and memory that nodes lack for a reservation; it has been taken from the cells already."""
    nodes = {ground.node_of[p.node] for p in placements}
    return {
        node: (max(0, -cells.cpus[node]), max(0, -cells.memory[node]))
        for node in nodes
        if cells.cpus[node] < 0 or cells.memory[node] < 0
    }
