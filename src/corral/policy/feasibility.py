"""What fits where: ranks on a node now, and whether a shape could ever run on a pool."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable, Sequence

from corral.model.errors import Refusal, Unavailable, Unschedulable
from corral.model.offer import NodeOffer
from corral.model.resources import MILLI, Demand, GangShape
from corral.policy.inventory import Inventory, NodeKind

UNBOUNDED = 1_000_000_000
"""The number of ranks that fit when a rank needs nothing of a resource."""

_WORD = re.compile(r"[a-z0-9]+")


@functools.lru_cache(maxsize=4_096)
def model_matches(wanted: str | None, model: str) -> bool:
    """Return whether a device of ``model`` is what was asked for.

    Case and vendor dress do not matter: all words of ``wanted`` must be words of ``model``, so that ``H100`` and
    ``h100-80gb`` are ``NVIDIA H100 80GB HBM3`` but ``L4`` is not ``L40``.
    """
    if wanted is None:
        return True
    return set(_WORD.findall(wanted.lower())) <= set(_WORD.findall(model.lower()))


def whole(count: int, per_rank: int) -> int:
    """Return how many times ``per_rank`` goes into ``count`` (``UNBOUNDED`` when nothing is needed)."""
    return count // per_rank if per_rank > 0 else UNBOUNDED


def node_fit(node: NodeOffer, demand: Demand) -> int:
    """Return how many ranks of ``demand`` the free part of ``node`` can take at once."""
    fits = min(whole(node.cpus_milli, demand.cpus_milli), whole(node.memory_mib, demand.memory_mib))
    if demand.gpu_milli == 0 or fits <= 0:
        return max(0, fits)
    free = [d.free_milli for d in node.devices if model_matches(demand.gpu_model, d.model)]
    return min(fits, device_fit(free, demand))


def device_fit(free_milli: Iterable[int], demand: Demand) -> int:
    """Return how many ranks fit on devices with these free parts, CPUs and memory aside."""
    if demand.gpus_whole:
        return sum(1 for free in free_milli if free >= MILLI) // demand.gpus_whole
    return sum(free // demand.gpu_milli for free in free_milli if free > 0)


def empty_fit(offer: NodeOffer, demand: Demand) -> int:
    """Return how many ranks a node could take if nobody held anything of it."""
    fits = min(whole(offer.total.cpus_milli, demand.cpus_milli), whole(offer.total.memory_mib, demand.memory_mib))
    if demand.gpu_milli == 0 or fits <= 0:
        return max(0, fits)
    count = sum(1 for d in offer.devices if model_matches(demand.gpu_model, d.model))
    return min(fits, device_fit((MILLI,) * count, demand))


def gpus_words(milli: int, model: str | None = None) -> str:
    """Return an amount of GPUs in words: ``8 H100``, ``0.5 GPU``, ``2 GPUs``."""
    count = f"{milli / MILLI:g}"
    if model is not None:
        return f"{count} {model}"
    return f"{count} GPU" + ("" if 0 < milli <= MILLI else "s")


def pool_words(pool: Inventory) -> str:
    """Return what a pool has in words: ``32 H100 on 4 nodes``."""
    on = f"{pool.nodes} node{'s' if pool.nodes != 1 else ''}"
    models = pool.models
    if not models:
        return f"no GPUs on {on}"
    return ", ".join(f"{count} {model}" for model, count in models.items()) + f" on {on}"


def _refuse(message: str, field: str, hint: str | None) -> Refusal:
    return Refusal(Unschedulable.code, message, field, hint)


def ever_fits(shape: GangShape, pool: Inventory) -> Refusal | None:
    """Return why ``shape`` could never run on a pool even if all of it were empty, ``None`` when it could."""
    if not pool.kinds:
        return Refusal(Unavailable.code, "the pool has no node yet", "resources", "see `corral nodes`")
    demand = shape.demand
    fits = {kind: kind_fit(kind, demand) for kind in pool.kinds}
    ranks = sum(fit * kind.nodes for kind, fit in fits.items())
    if ranks >= shape.ranks:
        return None
    if demand.gpu_milli:
        refusal = _gpus_refusal(demand, pool)
        if refusal is not None:
            return refusal
    refusal = _node_refusal(demand, [kind for kind in pool.kinds if _devices_fit(kind, demand) > 0])
    if refusal is not None:
        return refusal
    each = gpus_words(demand.gpu_milli, demand.gpu_model) if demand.gpu_milli else f"{demand.cpus_milli / MILLI:g} CPUs"
    message = f"{shape.ranks} x {each} is more than the pool can ever run at once ({ranks} ranks fit)"
    return _refuse(message, "num_nodes", f"the pool has {pool_words(pool)}")


def matching(kind: NodeKind, model: str | None) -> int:
    """Return how many devices of each node of a kind are what was asked for."""
    return sum(count for name, count in kind.models if model_matches(model, name))


def kind_fit(kind: NodeKind, demand: Demand) -> int:
    """Return how many ranks of ``demand`` an empty node of a kind could take at once."""
    fits = min(whole(kind.cpus_milli, demand.cpus_milli), whole(kind.memory_mib, demand.memory_mib))
    if demand.gpu_milli == 0 or fits <= 0:
        return max(0, fits)
    return min(fits, _devices_fit(kind, demand))


def _devices_fit(kind: NodeKind, demand: Demand) -> int:
    if demand.gpu_milli == 0:
        return 1
    return device_fit((MILLI,) * matching(kind, demand.gpu_model), demand)


def _gpus_refusal(demand: Demand, pool: Inventory) -> Refusal | None:
    field, has = "resources.accelerators", f"the pool has {pool_words(pool)}"
    devices = sum(matching(kind, demand.gpu_model) * kind.nodes for kind in pool.kinds)
    words = gpus_words(demand.gpu_milli, demand.gpu_model)
    if not devices and demand.gpu_model is not None:
        near = nearest_model(demand.gpu_model, pool)
        did = f"did you mean {near}? {has}" if near is not None else has
        return _refuse(f"the pool has no {demand.gpu_model}", field, did)
    if not devices:
        return _refuse("the pool has no GPU", field, "leave out the accelerators to run on CPUs")
    if demand.gpu_milli > MILLI * devices:
        return _refuse(f"{words} per node is more than the whole pool has ({devices})", field, has)
    largest = max(matching(kind, demand.gpu_model) for kind in pool.kinds)
    if demand.gpu_milli > MILLI * largest:
        hint = f"ask for at most {largest} per node and more nodes: --nodes N"
        return _refuse(f"{words} on one node is more than any node has ({largest})", field, hint)
    return None


def _node_refusal(demand: Demand, kinds: Sequence[NodeKind]) -> Refusal | None:
    """Say which of CPUs and memory is larger than any of the nodes whose devices would do."""
    cpus = max((kind.cpus_milli for kind in kinds), default=0)
    memory = max((kind.memory_mib for kind in kinds), default=0)
    if demand.cpus_milli > cpus:
        message = f"{demand.cpus_milli / MILLI:g} CPUs are more than any fitting node has ({cpus / MILLI:g})"
        return _refuse(message, "resources.cpus", f"ask for at most {cpus / MILLI:g}")
    if demand.memory_mib > memory:
        message = f"{demand.memory_mib} MiB of memory are more than any fitting node has ({memory} MiB)"
        return _refuse(message, "resources.memory", f"ask for at most {memory} MiB")
    if not any(kind_fit(kind, demand) for kind in kinds):
        message = "no node has the CPUs and the memory together"
        return _refuse(message, "resources", f"the largest have {cpus / MILLI:g} CPUs and {memory} MiB")
    return None


def nearest_model(wanted: str, pool: Inventory) -> str | None:
    """Return the device model of the pool whose name is most like ``wanted``, ``None`` when none is like it."""
    names: dict[str, str] = {}
    for model in pool.models:
        names[model.lower()] = model
        for word in _WORD.findall(model.lower()):
            names.setdefault(word, model)
    found = difflib.get_close_matches(wanted.lower(), list(names), n=1, cutoff=0.5)
    return names[found[0]] if found else None
