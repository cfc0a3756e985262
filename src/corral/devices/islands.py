"""Which devices of a node are joined by links faster than PCIe (NVLink, XGMI), directly or through switches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import msgspec

from corral.model.ids import DeviceId
from corral.model.resources import DeviceSpec


def placed(
    specs: Collection[DeviceSpec],
    addresses: Mapping[DeviceId, str],
    linked: Callable[[DeviceId, DeviceId], bool],
) -> dict[DeviceId, DeviceSpec]:
    """Return the devices with their ``index`` along the PCI bus and their ``island``: the lowest index in it.

    ``addresses`` are the PCI addresses of all devices ever seen, so that one that is away keeps its index.
    """
    order = sorted(addresses, key=lambda uuid: addresses[uuid])
    indices = {uuid: index for index, uuid in enumerate(order)}
    here = sorted((spec.uuid for spec in specs), key=lambda uuid: indices[uuid])
    islands = {uuid: indices[uuid] for uuid in here}
    for first, one in enumerate(here):
        for other in here[first + 1 :]:
            if linked(one, other):
                joined = {islands[one], islands[other]}
                islands |= {uuid: min(joined) for uuid, island in islands.items() if island in joined}
    return {
        spec.uuid: msgspec.structs.replace(spec, index=indices[spec.uuid], island=islands[spec.uuid]) for spec in specs
    }
